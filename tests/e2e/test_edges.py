"""Edges of a run, with real processes and a real agent: each ends in a recorded outcome and a clear message."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="needs a framework to govern")

# The agent and the bench around it are those of the tests of training.
_TRAIN = Path(__file__).parents[1] / "train"
sys.path.insert(0, str(_TRAIN))

from episodes import ALLOW_ALL, READ_ONLY, Bench, clerk, named  # noqa: E402

from lgov_core.audit import verify  # noqa: E402
from lgov_core.gateway.limits import Limits  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.gateway.upstream import UpstreamEngine  # noqa: E402
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply  # noqa: E402
from lgov_core.train.loop.collecting import new_rollouts  # noqa: E402
from lgov_core.transitions import build_transitions  # noqa: E402
from lgov_core.types import Attempt, Outcome, Rollout  # noqa: E402
from lgov_core.views.attempt_builder import read_attempt  # noqa: E402
from lgov_core.views.attempt_view import AttemptView, ToolStep  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(sqlite3.connect(tmp_path / "company.db")) as connection, connection:
        connection.execute("CREATE TABLE staff (name)")
        connection.execute("INSERT INTO staff VALUES ('a'), ('b')")
    made = Bench(tmp_path, READ_ONLY)
    yield made
    made.store.close()


def rollout_for(bench: Bench) -> Rollout:
    (rollout,) = new_rollouts("run", [named("edge", say="go", database=str(bench.folder / "company.db"))], 1)
    return rollout


# ---------------------------------------------------------------------- what a model can write


class Told:
    """One rollout of the clerk, from beginning to end."""

    def __init__(self, bench: Bench, *replies: ScriptedReply | str) -> None:
        with (
            ScriptedModelServer(replies, token_ids=True) as model,
            EndpointServer([UpstreamEngine(model.base_url)], bench.store) as endpoint,
        ):
            rollout = rollout_for(bench)
            with bench.collecting(clerk, endpoint.url, max_attempts=1) as pool:
                (self.result,) = pool.collect_rollouts([rollout])
            self.asked: list[Mapping[str, Any]] = [request.body for request in model.requests]
        self.story: AttemptView = read_attempt(bench.store, rollout.rollout_id)
        self.trainable = build_transitions(bench.store, [rollout.rollout_id]).transitions
        self.tasks = [r.value for r in bench.store.rewards([rollout.rollout_id]) if r.dimension == "task"]
        assert self.story.outcome is self.result.outcome
        assert verify(bench.folder / "audit.sqlite").ok

    @property
    def tools(self) -> dict[str, ToolStep]:
        return {tool.call_id: tool for step in self.story.steps for tool in step.tools}

    def heard(self) -> dict[str, str]:
        """What the model read as tool results in its last prompt, by call."""
        return {m["tool_call_id"]: m["content"] for m in self.asked[-1]["messages"] if m["role"] == "tool"}

    def earned(self, call_id: str) -> list[tuple[str, float]]:
        return [(reward.dimension, reward.value) for reward in self.tools[call_id].rewards]


def calling(*calls: tuple[str, str, dict[str, Any] | str]) -> ScriptedReply:
    return ScriptedReply(tool_calls=[ScriptedCall(name, arguments, call_id) for call_id, name, arguments in calls])


def test_broken_arguments_are_an_outcome_of_their_call(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "run_sql", '{"query": "DROP TAB')))
    assert told.result.outcome is Outcome.FAILED
    assert told.tools["c1"].status == "invalid_args"
    assert told.earned("c1") == [("air", -0.05)]
    assert told.tools["c1"].arguments == '{"query": "DROP TAB'
    assert len(told.trainable) == 1, "it is the model's own mistake, so it is trained on"


def test_of_two_calls_at_once_one_is_denied_and_the_other_runs(bench: Bench) -> None:
    both = calling(
        ("c1", "run_sql", {"query": "DELETE FROM staff"}), ("c2", "run_sql", {"query": "SELECT COUNT(*) FROM staff"})
    )
    told = Told(bench, both, "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.result.counts["violations"] == 1
    assert {call_id: tool.status for call_id, tool in told.tools.items()} == {"c1": "denied", "c2": "ok"}
    assert told.heard()["c1"].startswith("DENIED by policy")
    assert told.heard()["c2"] == "[(2,)]"
    assert told.earned("c1") == [("compliance", -0.5)]
    assert told.earned("c2") == [("air", 0.05)]


def test_an_unknown_tool_is_denied_where_tools_are_listed(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "format_disk", {})), "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.tools["c1"].status == "denied"
    assert "format_disk" in told.heard()["c1"]


def test_an_unknown_tool_is_told_to_the_model_where_they_are_not(bench: Bench) -> None:
    bench.policy.write_text(ALLOW_ALL)
    told = Told(bench, calling(("c1", "format_disk", {})), "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.tools["c1"].status == "unknown_tool"
    assert told.earned("c1") == [("air", -0.05)]
    assert "format_disk" in told.heard()["c1"]


def test_arguments_that_do_not_fit_are_told_to_the_model(bench: Bench) -> None:
    bench.policy.write_text(ALLOW_ALL)
    told = Told(bench, calling(("c1", "run_sql", {"text": "SELECT 1"})), "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.tools["c1"].status == "invalid_args"
    assert told.earned("c1") == [("air", -0.05)]


def test_a_tool_that_raises_for_the_model_goes_on(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "fail", {"how": "to the model"})), "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.tools["c1"].status == "error"
    assert told.heard()["c1"] == "that went wrong"
    assert told.earned("c1") == [("air", -0.05)]


def test_a_tool_that_breaks_is_a_failed_attempt_that_says_why(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "fail", {"how": "badly"})))
    assert told.result.outcome is Outcome.FAILED
    assert told.story.error is not None
    assert "KeyError" in told.story.error
    assert "the tool's own mistake" in told.story.error
    assert told.tools["c1"].status == "error"


def test_a_tool_that_is_too_late_says_nothing_about_the_agent(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "late", {})))
    assert told.result.outcome is Outcome.TIMEOUT
    assert told.story.error == "TimeoutError: the warehouse did not answer"
    assert told.tools["c1"].status == "timeout"
    assert told.earned("c1") == []
    assert told.tasks == []
    assert told.trainable == ()


def test_a_tool_that_returns_nothing_has_done_its_work(bench: Bench) -> None:
    told = Told(bench, calling(("c1", "nothing", {})), "done")
    assert told.result.outcome is Outcome.SUCCEEDED
    assert told.tools["c1"].status == "ok"
    assert told.earned("c1") == [("air", 0.05)]


def test_a_reply_of_nothing_at_all_is_the_agents_own(bench: Bench) -> None:
    told = Told(bench, ScriptedReply(""))
    assert told.result.outcome is Outcome.FAILED
    assert told.tasks == [0.0]


@pytest.mark.parametrize("reply", [ScriptedReply("overloaded", status=503), ScriptedReply(body=b"<html>oops</html>")])
def test_a_model_that_answers_nonsense_is_the_machines_failure(reply: ScriptedReply, bench: Bench) -> None:
    told = Told(bench, reply)
    assert told.result.outcome is Outcome.INFRASTRUCTURE
    assert told.story.error
    assert told.tasks == []
    assert told.trainable == ()


# ---------------------------------------------------------------------- the endpoint goes away and comes back


def test_an_endpoint_that_is_restarted_in_mid_run_costs_attempts_and_nothing_else(bench: Bench) -> None:
    asked, answer = threading.Event(), threading.Event()

    def script(body: Mapping[str, Any]) -> ScriptedReply:
        first = not asked.is_set()
        asked.set()
        return ScriptedReply("done", gate=answer if first else None)

    with ScriptedModelServer(script, token_ids=True) as model:

        def serve(port: int = 0) -> EndpointServer:
            return EndpointServer(
                [UpstreamEngine(model.base_url)], bench.store, port=port, limits=Limits(drain_s=0)
            ).start()

        endpoint = serve()
        running = [endpoint]

        def restart() -> None:
            asked.wait()  # the first call is on its way
            running.pop().stop()
            answer.set()
            running.append(serve(endpoint.port))

        restarting = threading.Thread(target=restart)
        restarting.start()
        try:
            with bench.collecting(clerk, endpoint.url, max_attempts=6, retry_delay_s=0.2) as pool:
                (result,) = pool.collect_rollouts([rollout_for(bench)])
        finally:
            asked.set()
            restarting.join()
            running.pop().stop()
    _check_retried(bench, result)


def _check_retried(bench: Bench, result: Attempt) -> None:
    assert result.outcome is Outcome.SUCCEEDED
    outcomes = bench.outcomes(result.rollout_id)
    assert len(outcomes) >= 2
    assert outcomes == ["infrastructure"] * (len(outcomes) - 1) + ["succeeded"]
    (lost, *_) = bench.store.attempts([result.rollout_id])
    assert lost.error is not None
    assert "503" in lost.error or "Connection" in lost.error
    paid = [(reward.attempt, reward.value) for reward in bench.store.rewards() if reward.dimension == "task"]
    assert paid == [(len(outcomes), 1.0)]
    data = build_transitions(bench.store, [result.rollout_id])
    assert {turn.attempt for turn in data.transitions} == {len(outcomes)}


def test_an_endpoint_that_never_comes_back_is_infrastructure_and_no_reward(bench: Bench) -> None:
    with bench.collecting(clerk, "http://127.0.0.1:9") as pool:
        (result,) = pool.collect_rollouts([rollout_for(bench)])
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert bench.outcomes(result.rollout_id) == ["infrastructure"] * 2
    assert bench.store.rewards() == []


# ---------------------------------------------------------------------- the machine


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from lgov_core.audit import AuditLog
    from lgov_core.governor import Governor
    from lgov_core.policies import load_policy_file
    from lgov_langchain.middleware import LgovMiddleware

    folder, url = Path(sys.argv[1]), sys.argv[2]
    audit = AuditLog(folder / "audit.sqlite")
    governor = Governor(load_policy_file(folder / "policy.yaml"), audit=audit)

    @tool
    def act(name: str) -> str:
        "Does something, and then the disk is full."
        (folder / name).touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
        return "did it"

    model = ChatOpenAI(model="scripted", base_url=url, api_key="x", max_retries=0)
    agent = create_agent(model, [act], middleware=[LgovMiddleware(governor)])
    print(agent.invoke({"messages": [("user", "go")]})["messages"][-1].text)
"""


def test_an_act_that_cannot_be_put_on_record_for_a_full_disk_is_not_done(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(ALLOW_ALL)
    script = [calling(("c1", "act", {"name": "first"})), calling(("c2", "act", {"name": "second"})), "done"]
    with ScriptedModelServer(lambda body: script[sum(m["role"] == "assistant" for m in body["messages"])]) as model:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path), model.base_url],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first").exists()
    assert not (tmp_path / "second").exists()
    assert "DENIED" in done.stdout
    assert "audit-failed" in done.stdout
    assert verify(tmp_path / "audit.sqlite").ok, "what was on record still is"


def test_a_port_in_use_is_said_to_be_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*LGOV, "serve", "--upstream", "http://127.0.0.1:9/v1", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "OPENAI_API_KEY": "x"},
        )
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "choose another port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "obstacle",
    [
        "a file",
        pytest.param("no permission", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")),
    ],
)
def test_a_run_folder_that_cannot_be_made_is_an_error_that_names_it(obstacle: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='needs the extra "train"')
    place = tmp_path / "place"
    if obstacle == "a file":
        place.write_text("here is a file already")
    else:
        place.mkdir(mode=0o500)
    done = subprocess.run(
        [*LGOV, "demo", "--quick", "--iterations", "0", "--warm-steps", "1", "--folder", str(place / "run")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert str(place / "run") in done.stderr
    assert "Traceback" not in done.stderr
