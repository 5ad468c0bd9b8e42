"""A rollout read back from what a governor and an endpoint recorded, and shown."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from lgov_core.commands import cli
from lgov_core.errors import StoreError
from lgov_core.governor import Governor
from lgov_core.policies import PolicySet, SQLPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import TraceStore, open_store
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, CapturedCall, Outcome, Point, Reward, Rollout, Span, ToolOutcome
from lgov_core.views.attempt_builder import first_denied, read_attempt
from lgov_core.views.attempt_view import AttemptView, routine
from lgov_core.views.show import show_attempt

DROP = "DROP TABLE staff"
SELECT = "SELECT count(*) FROM staff"


def captured(response_id: str, messages: list[dict[str, Any]], reply: dict[str, Any], attempt: int = 1) -> CapturedCall:
    calls = reply.get("tool_calls") or ()
    return CapturedCall(
        response_id=response_id,
        model="tiny",
        request={"model": "tiny", "messages": messages},
        response={"id": response_id, "choices": [{"message": {"role": "assistant", **reply}}]},
        prompt_ids=(1, 2, 3),
        response_ids=(4, 5),
        logprobs=(-0.1, -0.2),
        finish_reason="tool_calls" if calls else "stop",
        weights_version=7,
        temperature=1.0,
        top_p=1.0,
        started_at=1.0,
        ended_at=2.0,
        rollout_id="rol_1",
        attempt=attempt,
        tool_call_ids=tuple(call["id"] for call in calls),
    )


def proposes(call_id: str, query: str) -> dict[str, Any]:
    function = {"name": "run_sql", "arguments": json.dumps({"query": query})}
    return {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def act(governor: Governor, call_id: str, query: str, result: str) -> None:
    """What an adapter does around one tool call."""
    action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": query}, call_id=call_id)
    decision = governor.decide(action)
    status = "denied" if decision.blocks else "ok"
    shown = decision.denial_message() if decision.blocks else result
    governor.record(ToolOutcome(action, status, result=shown, decision=decision))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with one rollout: a denied query, a good one, an answer; and one without a denial before it."""
    path = tmp_path / "traces.sqlite"
    store = open_store(path)
    governor = Governor(PolicySet.of(SQLPolicy(dialect="sqlite", mode="read_only")), plugins=[StoreSink(store)])
    store.add_rollouts(
        [Rollout("rol_0", "task_0", "run_a", {}), Rollout("rol_1", "task_1", "run_b", {"question": "Q"})]
    )
    store.start_attempt("rol_0", 1)
    with enter_scope(RolloutScope("rol_0")):
        act(governor, "call_0", SELECT, "1")
    store.start_attempt("rol_1", 1)
    asked = [{"role": "system", "content": "Be \x1b[31mbrief."}, {"role": "user", "content": "How many staff?"}]
    first, second = proposes("call_1", DROP), proposes("call_2", SELECT)
    denied = {"role": "tool", "tool_call_id": "call_1", "content": "DENIED"}
    counted = {"role": "tool", "tool_call_id": "call_2", "content": "42"}
    with enter_scope(RolloutScope("rol_1")):
        store.add_call(captured("resp_1", asked, first))
        act(governor, "call_1", DROP, "gone")
        hiview = [*asked, {"role": "assistant", **first}, denied]
        store.add_call(captured("resp_2", hiview, second))
        act(governor, "call_2", SELECT, "42")
        hiview = [*hiview, {"role": "assistant", **second}, counted]
        store.add_call(captured("resp_3", hiview, {"content": "There are 42."}))
    store.add_rewards(
        [
            Reward(-0.5, "compliance", "rol_1", 1, tool_call_id="call_1", source="air"),
            Reward(0.1, "air", "rol_1", 1, tool_call_id="call_2", source="air"),
            Reward(0.3, "air", "rol_1", 1, response_id="resp_3"),
            Reward(0.7, "air", "rol_1", 1, tool_call_id="call_nobody_made"),
        ]
    )
    store.finish_attempt(
        "rol_1", 1, Outcome.SUCCEEDED, result={"answer": 42}, rewards=[Reward(1.0, "task", "rol_1", 1)]
    )
    store.close()
    return path


@pytest.fixture
def store(place: Path) -> Iterator[TraceStore]:
    opened = open_store(place)
    yield opened
    opened.close()


def test_each_step_has_what_the_model_saw_and_wrote_and_what_came_of_it(store: TraceStore) -> None:
    view = read_attempt(store, "rol_1")
    assert (view.task_id, view.run_id, view.attempt, view.attempts) == ("task_1", "run_b", 1, 1)
    assert (view.outcome, view.result, view.input) == (Outcome.SUCCEEDED, {"answer": 42}, {"question": "Q"})
    first, second, third = view.steps
    assert [message.role for message in first.seen] == ["system", "user"]
    assert [(message.role, message.text) for message in second.seen] == [("tool", "DENIED")]
    assert [(message.role, message.text) for message in third.seen] == [("tool", "42")]
    assert (first.prompt_tokens, first.response_tokens, first.weights_version) == (3, 2, 7)
    assert (first.wrote, third.wrote, third.tools) == ("", "There are 42.", ())


def test_decisions_outcomes_and_rewards_stand_with_the_call_they_name(store: TraceStore) -> None:
    first, second, third = read_attempt(store, "rol_1").steps
    (dropped,), (counted,) = first.tools, second.tools
    assert json.loads(dropped.arguments) == {"query": DROP}
    (decision,) = dropped.decisions
    assert (decision.effect, decision.policy, decision.blocks) == ("deny", "SQLPolicy", True)
    assert decision.rule
    assert decision.reason
    assert dropped.status == "denied"
    assert [(reward.dimension, reward.value) for reward in dropped.rewards] == [("compliance", -0.5)]
    assert [decision.effect for decision in counted.decisions] == ["allow"]
    assert (counted.status, counted.result) == ("ok", "42")
    assert [(reward.dimension, reward.value) for reward in counted.rewards] == [("air", 0.1)]
    assert [(reward.dimension, reward.value) for reward in third.rewards] == [("air", 0.3)]


def test_what_names_no_recorded_call_is_kept_apart(store: TraceStore) -> None:
    view = read_attempt(store, "rol_1")
    assert [(reward.dimension, reward.value) for reward in view.rewards] == [("task", 1.0)]
    assert [(reward.dimension, reward.value) for reward in view.loose_rewards] == [("air", 0.7)]
    assert view.loose_tools == ()
    uncaptured = read_attempt(store, "rol_0")
    assert uncaptured.steps == ()
    (tool,) = uncaptured.loose_tools
    assert (tool.name, tool.status, json.loads(tool.arguments)) == ("run_sql", "ok", {"query": SELECT})


def _run_without_an_endpoint(path: Path, *, content: bool) -> None:
    """A governed program on the openai client, whose calls no endpoint records: one is denied, and one gets no answer."""
    from openai import InternalServerError, OpenAI

    from lgov_openai import govern_client

    calls = [ScriptedCall("run_sql", {"query": DROP}, "c1"), ScriptedCall("run_sql", {"query": SELECT}, "c2")]
    script = [ScriptedReply(tool_calls=calls), "There are 42.", ScriptedReply("broken", status=500)]
    policies = PolicySet.of(SQLPolicy(dialect="sqlite", mode="read_only"))
    with closing(open_store(path)) as store, ScriptedModelServer(script) as model:
        governor = Governor(policies, plugins=[StoreSink(store, content=content)], capture_content=content)
        client = govern_client(OpenAI(base_url=model.base_url, api_key="none", max_retries=0), governor)
        messages: list[Any] = [{"role": "user", "content": "How many staff?"}]
        with governor.rollout(RolloutScope("r", task_id="staff")):
            first = client.chat.completions.create(model="scripted", messages=messages).choices[0].message
            assert [call.id for call in first.tool_calls or ()] == ["c2"]
            messages += [first, {"role": "tool", "tool_call_id": "c2", "content": "[(42,)]"}]
            client.chat.completions.create(model="scripted", messages=messages)
            with pytest.raises(InternalServerError):
                client.chat.completions.create(model="scripted", messages=messages[:1])
        governor.close()


def test_without_an_endpoint_the_spans_of_the_adapter_tell_the_turns(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    _run_without_an_endpoint(path, content=True)
    with closing(open_store(path)) as store:
        view = read_attempt(store, "r")
    asked, answered, failed = view.steps
    assert [step.captured for step in view.steps] == [False, False, False]
    assert (asked.model, [message.text for message in asked.seen]) == ("scripted", ["How many staff?"])
    denied, done = asked.tools
    assert (denied.call_id, json.loads(denied.arguments), denied.status) == ("c1", {"query": DROP}, "denied")
    assert (done.call_id, done.status, done.result) == ("c2", "ok", "[(42,)]")
    assert [decision.effect for tool in asked.tools for decision in tool.decisions if not routine(decision)] == [
        "deny",
        "allow",
    ]
    assert {"[(42,)]"} < {message.text for message in answered.seen}
    assert answered.wrote == "There are 42."
    assert (failed.wrote, failed.tools, failed.finish_reason) == ("", (), "APIStatusError")
    assert (view.loose_tools, view.loose_rewards, view.opened) == ((), (), False)
    text = shown(view)
    assert "turn 1  scripted  from its span" in text
    assert "model wrote  There are 42." in text
    assert "outcome  unknown" in text, "as in the list"


def test_code_that_no_call_proposed_is_at_the_turn_that_it_follows(tmp_path: Path) -> None:
    def span(name: str, at: float, parent: str | None = None, **attributes: Any) -> Span:
        return Span(name, f"{name}-{at:g}", at, at + 1, attributes, "rol_1", 1, parent)

    def ran(at: float, command: str) -> list[Span]:
        tool = {semconv.TOOL_STATUS: "ok", semconv.TOOL_NAME: "run_shell", semconv.TOOL_ARGUMENTS: command}
        decision = {semconv.POINT: "pre_tool_call", semconv.ACTION_NAME: "run_shell", semconv.DECISION_EFFECT: "allow"}
        return [span("run", at, **tool), span(semconv.DECISION_SPAN_NAME, at, f"run-{at:g}", **decision)]

    with closing(open_store(tmp_path / "traces.sqlite")) as store:
        store.add_rollouts([Rollout("rol_1", "task", "", {})])
        for at, response in ((1.0, "a"), (6.0, "b")):
            wrote = json.dumps([{"role": "assistant", "content": "code"}])
            chat = {semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response, semconv.OUTPUT_MESSAGES: wrote}
            store.add_span(span("chat", at, **chat))
        for each in (*ran(8.0, "third"), *ran(4.0, "second"), *ran(3.0, "first"), *ran(0.0, "before all turns")):
            store.add_span(each)
        store.flush()
        view = read_attempt(store, "rol_1")
    assert [[tool.arguments for tool in step.tools] for step in view.steps] == [["first", "second"], ["third"]]
    assert [len(tool.decisions) for step in view.steps for tool in step.tools] == [1, 1, 1]
    assert [tool.arguments for tool in view.loose_tools] == ["before all turns"]


def test_spans_that_hold_no_texts_make_no_turns(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    _run_without_an_endpoint(path, content=False)
    with closing(open_store(path)) as store:
        view = read_attempt(store, "r")
    assert [step.finish_reason for step in view.steps] == ["APIStatusError"]
    assert {tool.call_id for tool in view.loose_tools} == {"c1", "c2"}


def test_the_first_denied_rollout_is_found(store: TraceStore) -> None:
    assert first_denied(store) == ("rol_1", 1)


def test_a_store_without_denials_says_so(tmp_path: Path) -> None:
    empty = open_store(tmp_path / "empty.sqlite")
    try:
        with pytest.raises(StoreError, match="no rollout in this store was denied"):
            first_denied(empty)
    finally:
        empty.close()


def test_rollouts_and_attempts_that_do_not_exist_are_errors(store: TraceStore) -> None:
    with pytest.raises(StoreError, match="no rollout rol_9"):
        read_attempt(store, "rol_9")
    with pytest.raises(StoreError, match=r"no attempt 2.*its attempts: 1"):
        read_attempt(store, "rol_1", 2)


def test_attempts_do_not_mix(store: TraceStore) -> None:
    store.start_attempt("rol_1", 2)
    store.add_call(captured("resp_9", [{"role": "user", "content": "Again"}], {"content": "41"}, attempt=2))
    again = read_attempt(store, "rol_1")
    assert (again.attempt, again.outcome, [step.response_id for step in again.steps]) == (2, None, ["resp_9"])
    assert (again.rewards, again.loose_rewards) == ((), ())
    assert len(read_attempt(store, "rol_1", 1).steps) == 3


def shown(view: AttemptView, **options: Any) -> str:
    out = io.StringIO()
    show_attempt(view, Console(file=out, width=120), **options)
    return out.getvalue()


def test_the_shown_rollout_tells_the_view_in_order(store: TraceStore) -> None:
    text = shown(read_attempt(store, "rol_1"))
    parts = [
        "rollout rol_1",
        "turn 1",
        "How many staff?",
        DROP,
        "deny  SQLPolicy/",
        "denied  DENIED by policy SQLPolicy/",
        "compliance -0.5",
        "turn 2",
        SELECT,
        "allow  SQLPolicy",
        "ok  42",
        "turn 3",
        "There are 42.",
        "succeeded",
        "task +1",
        "of no known call",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places == sorted(places)


def test_what_a_model_wrote_cannot_steer_the_terminal(store: TraceStore) -> None:
    text = shown(read_attempt(store, "rol_1"))
    assert "\x1b" not in text
    assert r"Be \x1b[31mbrief." in text


def test_long_texts_are_cut_to_their_tail(store: TraceStore) -> None:
    long = "a" * 500 + "END"
    store.start_attempt("rol_1", 2)
    store.add_call(captured("resp_9", [{"role": "user", "content": long}], {"content": "x"}, attempt=2))
    view = read_attempt(store, "rol_1")
    assert "a" * 20 + "END" not in shown(view, tail=10)
    assert "aEND" in shown(view, tail=10)
    assert shown(view, tail=0).count("a") > 500


# ---------------------------------------------------------------------- the commands


def lgov(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["traces", *arguments], prog_name="lgov")


def test_traces_show_denied(place: Path) -> None:
    result = lgov("show", str(place), "--denied")
    assert result.exit_code == 0
    assert "rollout rol_1" in result.stdout
    assert result.stdout == lgov("show", str(place), "rol_1").stdout
    assert lgov("show", str(place), "rol_1", "--denied").stdout == result.stdout
    nothing = lgov("show", str(place), "rol_1", "--denied", "--attempt", "7")
    assert (nothing.exit_code, "rollout rol_1 was not denied anything" in nothing.stderr) == (1, True)


def test_traces_show_as_json(place: Path) -> None:
    view = json.loads(lgov("show", str(place), "rol_1", "--attempt", "1", "--json").stdout)
    assert view["outcome"] == "succeeded"
    assert view["steps"][0]["tools"][0]["decisions"][0]["effect"] == "deny"


def test_traces_show_wants_a_rollout_or_denied(place: Path) -> None:
    assert lgov("show", str(place)).exit_code == 2
    assert lgov("show", str(place), "rol_9").exit_code == 1


def test_traces_list(place: Path) -> None:
    entries = json.loads(lgov("list", str(place), "--json").stdout)["attempts"]
    assert [(entry["rollout_id"], entry["outcome"]) for entry in entries] == [
        ("rol_0", "running"),
        ("rol_1", "succeeded"),
    ]
    assert entries[1]["rewards"] == pytest.approx({"compliance": -0.5, "air": 1.1, "task": 1.0})
    only = json.loads(lgov("list", str(place), "--json", "--where", "run=run_a").stdout)["attempts"]
    assert [entry["rollout_id"] for entry in only] == ["rol_0"]
    only = json.loads(lgov("list", str(place), "--json", "--where", "outcome=succeeded").stdout)["attempts"]
    assert [entry["rollout_id"] for entry in only] == ["rol_1"]
    only = json.loads(lgov("list", str(place), "--json", "--limit", "1").stdout)["attempts"]
    assert [entry["rollout_id"] for entry in only] == ["rol_1"]
    assert "compliance -0.5" in lgov("list", str(place)).stdout


def test_looking_into_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    for command in (("list",), ("show",)):
        result = lgov(*command, str(tmp_path / "none.sqlite"), *(("rol_1",) if command == ("show",) else ()))
        assert result.exit_code == 1
        assert "there is no trace store" in result.stderr
    assert lgov("list", f"sqlite:///{tmp_path}/none.sqlite").exit_code == 1
    assert list(tmp_path.iterdir()) == []
