"""``lgov transitions --format``: a store's rollouts for one trainer or another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lgov_core.commands import cli
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span


def call(rollout: str, turn: int, messages: list[Any], reply: str, prompt: tuple[int, ...], said: int) -> CapturedCall:
    return CapturedCall(
        response_id=f"{rollout}-{turn}",
        model="m",
        request={"model": "m", "messages": messages},
        response={"choices": [{"index": 0, "message": {"role": "assistant", "content": reply}}]},
        prompt_ids=prompt,
        response_ids=(said,),
        logprobs=(-0.5,),
        finish_reason="stop",
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=float(turn),
        ended_at=turn + 0.5,
        rollout_id=rollout,
        attempt=1,
        agent="clerk",
    )


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    ask = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    with SQLiteStore(tmp_path / "s.db") as store:
        store.add_rollouts([Rollout(name, "task", "run", {"question": "Who?"}) for name in ("r1", "r2")])
        for name, outcome, value, said in (("r1", Outcome.SUCCEEDED, 1.0, 7), ("r2", Outcome.FAILED, 0.0, 8)):
            store.start_attempt(name, 1)
            store.add_call(call(name, 0, ask, f"said {said}", (1, 2), said))
            more = [*ask, {"role": "assistant", "content": f"said {said}"}, {"role": "user", "content": "Sure?"}]
            store.add_call(call(name, 1, more, "Yes.", (1, 2, said, 3), 9))
            air = Reward(0.4, "air", name, 1, response_id=f"{name}-0", reward_id=f"air-{name}")
            store.add_rewards([air])
            store.finish_attempt(name, 1, outcome, rewards=[Reward(value, reward_id=f"final-{name}")])
        denial = {semconv.DECISION_EFFECT: "deny", semconv.DECISION_POLICY: "sql", semconv.DECISION_REASON: "DROP"}
        store.add_span(Span(semconv.DECISION_SPAN_NAME, "d", 0.0, 0.0, denial, "r2", 1))
        store.flush()
    return str(tmp_path / "s.db")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["transitions", *arguments])


def told(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_rewards_count_in_full_unless_they_are_capped(recorded: str) -> None:
    returns = {row["response_id"]: row["return"] for row in told(recorded)}
    assert returns == {"r1-0": pytest.approx(1.4), "r1-1": 1.0, "r2-0": pytest.approx(0.4), "r2-1": 0.0}
    capped = {row["response_id"]: row["return"] for row in told(recorded, "--cap", "air=0.1", "--discount", "0.5")}
    assert capped == {"r1-0": pytest.approx(0.6), "r1-1": 1.0, "r2-0": pytest.approx(0.1), "r2-1": 0.0}


def test_each_format_writes_its_records(recorded: str, tmp_path: Path) -> None:
    (conversation,) = told(recorded, "--format", "sft")
    assert [message["content"] for message in conversation["messages"]][-3:] == ["said 7", "Sure?", "Yes."]
    assert conversation["trained"] == [2, 4]
    (pair,) = told(recorded, "--format", "preferences")
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("said 7", "said 8")
    attempts = {row["rollout_id"]: row for row in told(recorded, "--format", "prompts")}
    assert attempts["r2"]["denials"] == ["sql: DROP"]
    assert attempts["r1"]["input"] == {"question": "Who?"}
    assert {row["rollout_id"]: row["completion_ids"] for row in told(recorded, "--format", "trl")} == {
        "r1": [7, 3, 9],
        "r2": [8, 3, 9],
    }
    rows = told(recorded, "--format", "verl")
    assert [row["key"] for row in rows] == ["task_0_0", "task_0_1", "task_1_0", "task_1_1"]
    assert sum(sum(row["rm_scores"]) for row in rows) == pytest.approx(1.8)

    out = tmp_path / "out.jsonl"
    done = run(recorded, "--format", "sft", "--out", str(out))
    assert done.exit_code == 0
    assert "1 record for sft" in done.stderr
    assert "left out, outcome: 1" in done.stderr
    assert [json.loads(line) for line in out.read_text("utf-8").splitlines()] == [conversation]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(recorded, "--format", "verl", "--out", str(tmp_path / "v.parquet")).exit_code == 0
    assert parquet.read_table(tmp_path / "v.parquet").num_rows == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--format", "sft"], "--out or --json"),
        (["--format", "sft", "--json", "--chains"], "not with --chains"),
        (["--format", "sft", "--out", "x.parquet"], "--out takes a .jsonl file with --format sft"),
        (["--chains", "--out", "x.parquet"], "--out takes a .jsonl file with --chains"),
        (["--format", "nothing"], "nothing"),
        (["--cap", "air"], "DIMENSION=NUMBER"),
        (["--cap", "air=x"], "takes a finite number"),
        (["--cap", "air=-1"], "0 or more"),
        (["--format", "verl", "--credit", "none", "--json"], "has no credit"),
    ],
)
def test_what_makes_no_sense_is_refused(given: list[str], said: str, recorded: str) -> None:
    done = run(recorded, *given)
    assert done.exit_code != 0
    assert said in done.output + str(done.exception)


# ---------------------------------------------------------------------- files of spans


def file_of_spans(path: Path) -> str:
    """Two rollouts of one task, as somebody writes them down by hand: messages in two forms, rewards, no adapter."""
    spans: list[dict[str, Any]] = []

    def add(name: str, attributes: dict[str, Any]) -> None:
        listed = [{"key": key, "value": value_of(value)} for key, value in attributes.items()]
        times = {"startTimeUnixNano": str(len(spans)), "endTimeUnixNano": str(len(spans) + 1)}
        spans.append(
            {"traceId": "a" * 32, "spanId": f"{len(spans) + 1:016x}", "name": name, "attributes": listed, **times}
        )

    asked = [{"role": "user", "content": "Who?"}]
    in_parts = [{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}]
    replies = (
        ("r1", asked, {"role": "assistant", "content": "Anna."}, 7, 1.0, "succeeded"),
        ("r2", in_parts, {"parts": [{"type": "text", "content": "Bob."}], "finish_reason": "stop"}, 8, 0.0, "failed"),
    )
    for rollout, said, reply, token, value, outcome in replies:
        whose = {"lgov.rollout_id": rollout, "lgov.task_id": "t"}
        call = {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.id": f"{rollout}-c",
            "gen_ai.input.messages": json.dumps(said),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", **reply}]),
            "lgov.prompt_token_ids": [1, 2],
            "lgov.response_token_ids": [token],
            "lgov.response_logprobs": [-0.5],
        }
        add("chat m", whose | call)
        add("lgov.rollout", {**whose, "lgov.outcome": outcome})
        add("lgov.reward", {**whose, "lgov.reward.value": value})
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) + "\n")
    return str(path)


def value_of(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [value_of(one) for one in value]}}
    return {{str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]: value}


def test_messages_that_only_spans_say_become_records(tmp_path: Path) -> None:
    source = file_of_spans(tmp_path / "spans.jsonl")
    (conversation,) = told(source, "--format", "sft")
    said = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Anna."}]
    assert (conversation["messages"], conversation["trained"]) == (said, [1])
    (pair,) = told(source, "--format", "preferences")
    assert (pair["chosen"], pair["rejected"]) == ([said[1]], [{"role": "assistant", "content": "Bob."}])
    attempts = {row["rollout_id"]: row for row in told(source, "--format", "prompts")}
    assert attempts["r2"]["threads"][0]["messages"] == [said[0], {"role": "assistant", "content": "Bob."}]


def test_instructions_tools_and_results_that_spans_say_apart_are_in_the_records(tmp_path: Path) -> None:
    """OpenTelemetry's conventions keep the system prompt beside the messages, and results of tools in one message."""
    calls = [{"type": "tool_call", "id": name, "name": "look", "arguments": {"at": name}} for name in ("k1", "k2")]
    results = [{"type": "tool_call_response", "id": name, "response": f"saw {name}"} for name in ("k1", "k2")]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}, {"role": "assistant", "parts": calls}]
    source = Path(file_of_spans(tmp_path / "spans.jsonl"))
    (line,) = [json.loads(line) for line in source.read_text().splitlines()]
    attributes = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    more = {
        "gen_ai.input.messages": [*asked, {"role": "tool", "parts": results}],
        "gen_ai.system_instructions": [{"type": "text", "content": "Be "}, {"type": "text", "content": "brief."}],
        "gen_ai.tool.definitions": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    }
    listed = [one for one in attributes if one["key"] not in more]
    attributes[:] = [*listed, *({"key": key, "value": value_of(json.dumps(value))} for key, value in more.items())]
    source.write_text(json.dumps(line))
    (record,) = told(str(source), "--format", "sft")
    assert [message["role"] for message in record["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert record["messages"][0]["content"] == "Be brief."
    assert [message["content"] for message in record["messages"][3:5]] == ["saw k1", "saw k2"]
    assert record["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    attributes[-2]["value"] = value_of(json.dumps([{"type": "blob"}]))  # instructions that cannot be read
    source.write_text(json.dumps(line))
    assert told(str(source), "--format", "sft") == []


@pytest.mark.parametrize(
    "broken",
    [
        '["Who?"]',
        '[{"content": "Who?"}]',
        '[{"role": "user", "tool_calls": ["f"]}]',
        '[{"role": "user", "tool_calls": [{"function": "f"}]}]',
        '[{"role": "user", "parts": [{"type": "blob"}]}]',
        '[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "k", "content": "x"}]}]',
        '[{"type": "message", "role": "user", "content": "Who?"}]',
        '[{"role": "user", "parts": [{"type": "text", "content": "Who?"}, {"type": "tool_call_response", "id": "k"}]}]',
    ],
)
def test_what_are_no_messages_is_counted(broken: str, tmp_path: Path) -> None:
    source = Path(file_of_spans(tmp_path / "spans.jsonl"))
    asked = json.dumps(json.dumps([{"role": "user", "content": "Who?"}]))
    assert asked in source.read_text()
    source.write_text(source.read_text().replace(asked, json.dumps(broken)))
    done = run(str(source), "--format", "sft", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert "left out, no_messages: 1" in done.stderr


def test_of_a_chosen_rollout_nothing_is_said_of_others(recorded: str, tmp_path: Path) -> None:
    for source, name in ((file_of_spans(tmp_path / "spans.jsonl"), "r2"), (recorded, "r2")):
        done = run(source, "--where", f"rollout={name}", "--credit", "none", "--json", "--strict")
        assert (done.exit_code, {row["rollout_id"] for row in json.loads(done.stdout)}) == (0, {name}), done.stderr
        gone = run(source, "--where", f"rollout={name}", "--where", "rollout=gone", "--json")
        assert gone.exit_code == 1
        assert json.loads(gone.stderr)["error"]["message"] == "nothing is recorded of rollout gone"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--credit", "nothing"], "no credit scheme 'nothing'"),
        (["--discount", "nan"], "discount is nan"),
        (["--cap", "air=x", "--credit", "none"], "takes a finite number"),
    ],
)
def test_wrong_words_are_wrong_usage(given: list[str], said: str, recorded: str) -> None:
    done = run(recorded, *given)
    assert (done.exit_code, said in done.stderr) == (2, True)


def test_nothing_is_written_over_what_is_read_or_written(recorded: str, tmp_path: Path) -> None:
    source = file_of_spans(tmp_path / "spans.jsonl")
    was = Path(source).read_bytes()
    same, link, new = tmp_path / "same.jsonl", tmp_path / "link.jsonl", str(tmp_path / "new.jsonl")
    same.hardlink_to(source)
    link.symlink_to(source)
    for wrong in (
        [source, "--out", source],
        [source, "--out", str(same)],
        [source, "--diagnostics", str(link)],
        [source, "--out", new, "--diagnostics", new],
    ):
        done = run(*wrong)
        assert (done.exit_code, "are the same file" in done.stderr) == (2, True), wrong
    assert Path(source).read_bytes() == was
    assert not Path(new).exists()
    store = Path(recorded).read_bytes()
    assert "is a database" in run(source, "--diagnostics", recorded).stderr
    assert Path(recorded).read_bytes() == store
