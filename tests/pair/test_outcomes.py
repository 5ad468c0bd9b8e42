"""What becomes of an attempt: which failures are the machines', what is counted, what a governed agent leaves."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lgov_core.client.attempts import AttemptCounts, outcome_of
from lgov_core.client.worker_process import govern_imports
from lgov_core.errors import AuditError, InstrumentationError, PolicyDenied, StoreError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PolicySet, load_policy_file
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Effect, Outcome, Point, Severity

pytest.importorskip("langchain", reason="a worker governs at least one framework")

READ_ONLY = """
version: 1
name: desk
default: deny
rules:
  - {name: tools, use: tool, with: {allow: [run_sql]}}
  - {name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")


def raised_by(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the test says which
        function()
    return caught.value


# ---------------------------------------------------------------------- whose failure it is


def connect_to_nobody() -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    socket.create_connection(("127.0.0.1", port))


def fill_a_device() -> None:
    with Path("/dev/full").open("w") as device:
        device.write("x")
        device.flush()


def fill_a_database() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA max_page_count = 2")
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


def wrap(how: str) -> None:
    try:
        connect_to_nobody()
    except OSError as error:
        if how == "from":
            raise RuntimeError("the agent gave up") from error
        if how == "while handling":
            raise RuntimeError("the agent gave up")  # noqa: B904 - that is the case
        raise RuntimeError("the agent gave up") from None


@pytest.mark.parametrize(
    "fails",
    [
        connect_to_nobody,
        lambda: bytearray(1 << 62),
        pytest.param(fill_a_device, marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")),
        fill_a_database,
        lambda: wrap("from"),
        lambda: wrap("while handling"),
        lambda: wrap("from None"),
    ],
    ids=["connection", "memory", "disk", "database disk", "caused", "while handling", "from None"],
)
def test_the_machines_failures(fails: Callable[[], Any]) -> None:
    assert outcome_of(raised_by(fails))[0] is Outcome.INFRASTRUCTURE


@pytest.mark.parametrize("error", [StoreError("the store"), AuditError("the record")])
def test_lgovs_own_files_are_machines(error: Exception) -> None:
    assert outcome_of(error)[0] is Outcome.INFRASTRUCTURE


def query_nothing() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("SELECT * FROM nothing")


@pytest.mark.parametrize(
    "fails",
    [
        lambda: Path("/no/such/file").read_text(),
        lambda: Path("/").read_text(),
        lambda: Path("/dev/null/x").touch(),
        lambda: {}["x"],
        lambda: int("x"),
        query_nothing,
        lambda: sys.exit("no tools"),
    ],
    ids=["no file", "a folder", "not a folder", "key", "value", "sql", "exit"],
)
def test_the_agents_failures(fails: Callable[[], Any]) -> None:
    error = raised_by(fails)
    assert outcome_of(error)[0] is Outcome.FAILED
    assert outcome_of(PolicyDenied(Decision(Effect.DENY, "p")))[0] is Outcome.BLOCKED


def test_an_exception_that_causes_itself_is_looked_at_once() -> None:
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert outcome_of(first)[0] is Outcome.FAILED


@contextmanager
def client(reply: ScriptedReply, **options: Any) -> Generator[Any]:
    openai = pytest.importorskip("openai")
    with (
        ScriptedModelServer([reply]) as model,
        openai.OpenAI(base_url=model.base_url, api_key="x", max_retries=0, **options) as made,
    ):
        yield made


@pytest.mark.parametrize(
    ("status", "name", "infrastructure"),
    [
        (500, "InternalServerError", True),
        (503, "InternalServerError", True),
        (429, "RateLimitError", True),
        (401, "AuthenticationError", True),
        (400, "BadRequestError", False),
        (422, "UnprocessableEntityError", False),
    ],
)
def test_what_an_endpoint_answers(status: int, name: str, infrastructure: bool) -> None:
    with client(ScriptedReply("no", status=status)) as openai:
        error = raised_by(lambda: openai.chat.completions.create(model="m", messages=[]))
    assert type(error).__name__ == name
    assert (outcome_of(error)[0] is Outcome.INFRASTRUCTURE) is infrastructure


def test_an_endpoint_that_is_too_late_or_not_there() -> None:
    openai = pytest.importorskip("openai")
    with client(ScriptedReply("no", delay_s=1.0), timeout=0.1) as slow:
        late = raised_by(lambda: slow.chat.completions.create(model="m", messages=[]))
    assert isinstance(late, openai.APITimeoutError)
    assert outcome_of(late)[0] is Outcome.INFRASTRUCTURE
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as nobody:
        gone = raised_by(lambda: nobody.chat.completions.create(model="m", messages=[]))
    assert isinstance(gone, openai.APIConnectionError)
    assert outcome_of(gone)[0] is Outcome.INFRASTRUCTURE


# ---------------------------------------------------------------------- what is counted


def test_the_tally_counts_per_attempt_and_forgets(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(READ_ONLY)
    tally = AttemptCounts()
    governor = Governor(load_policy_file(tmp_path / "policy.yaml"), plugins=[tally])

    def act(rollout: str, attempt: int, query: str) -> None:
        arguments = {"query": query}
        governor.decide(
            Action(Point.PRE_TOOL_CALL, "run_sql", arguments=arguments, rollout_id=rollout, attempt=attempt)
        )

    for query in ("SELECT 1", "DROP TABLE t", "DELETE FROM t", "SELEC FROM ("):
        act("a", 1, query)
    act("a", 2, "SELECT 1")
    governor.decide(Action(Point.PRE_MODEL_CALL, "m", kind="model", rollout_id="a", attempt=1))
    governor.decide(Action(Point.PRE_TOOL_CALL, "unknown", rollout_id="b", attempt=1))
    assert tally.take("a", 1) == {
        "tool_calls": 4,
        "denied": 3,
        "violations": 2,  # what cannot be read is denied, but nobody knows it for dangerous
        "model_calls": 1,
    }
    assert tally.take("a", 1) == {}
    assert tally.take("a", 2) == {"tool_calls": 1, "denied": 0, "violations": 0}
    assert tally.take("b", 1) == {"tool_calls": 1, "denied": 1, "violations": 1}


def test_a_policy_that_fails_is_no_violation_of_the_agents(tmp_path: Path) -> None:
    class Breaks:
        name = "breaks"

        def judge(self, action: Action) -> Decision:
            raise RuntimeError

    class Hangs:
        name = "hangs"

        def judge(self, action: Action) -> Decision:
            return release.wait()  # type: ignore[return-value]

    class Denies:
        name = "denies"

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.DENY, "denies", "no", "not this", Severity.LOW)

    release = threading.Event()
    act = Action(Point.PRE_TOOL_CALL, "run_sql", rollout_id="a", attempt=1)
    try:
        for policies, counts in (
            ([Breaks()], {"faults": 1}),
            ([Hangs()], {"faults": 1}),
            ([PolicySet.of(Breaks())], {"faults": 1}),
            ([PolicySet.of(Breaks()).in_shadow()], {"tool_calls": 1, "denied": 0, "violations": 0}),
            ([Breaks(), Denies()], {"tool_calls": 1, "denied": 1, "violations": 0}),
        ):
            tally = AttemptCounts()
            governor = Governor(policies, plugins=[tally], timeout_s=0.2)
            governor.decide(act)
            assert tally.take("a", 1) == counts
            governor.close()
    finally:
        release.set()


def test_nothing_to_govern_is_no_work() -> None:
    governor = Governor(manager=make_plugin_manager(builtin=(), third_party=False))
    with pytest.raises(InstrumentationError, match="no framework here can be governed"):
        govern_imports(governor, _not_called)


def _not_called(reason: str) -> NoReturn:
    raise AssertionError(reason)
