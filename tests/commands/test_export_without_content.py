"""``lgov export --no-content``: in no format of a record or a store is anything that users, models and tools wrote."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog
from lgov_core.commands.export import OF_RECORD, OF_STORE
from lgov_core.policies import ApprovalPolicy, ApprovalRequests
from lgov_core.store import open_store
from lgov_core.types import ALLOW, CapturedCall, JSONValue, Outcome, Rollout, Span, SpanEvent, ToolOutcome
from tests.commands.cli_runner import lgov

SECRET = "tulip-4711"
#: The number of a token that only the secret has.
TOKEN = 990_017


def act(name: str = "refund") -> Action:
    return Action(Point.PRE_TOOL_CALL, name, agent="clerk", text=SECRET, arguments={"note": SECRET}, rollout_id="r1")


@pytest.fixture
def record(folder: Path) -> Path:
    """A denial that quotes, also in shadow mode; an approval and a rejection with a comment; a result; an erasure."""
    asks = ApprovalPolicy(store=folder / "asked.db")
    denial = Decision(Effect.DENY, "desk", "no", f"it says {SECRET}")
    with AuditLog(folder / "audit.db", signer=None) as log:
        log.commit(act(), denial)
        log.commit(act(), Decision(Effect.ALLOW, "desk", "shadow", "", parts=(denial.changed(shadowed=True),)))
        with closing(ApprovalRequests(folder / "asked.db")) as requests:
            asks.judge(act())
            requests.approve(requests.pending()[0].request_id, by="Ada")
            log.commit(act(), asks.judge(act()) or ALLOW)
            asks.judge(act())
            requests.reject(requests.pending()[0].request_id, by="Ada", reason=SECRET)
            log.commit(act(), asks.judge(act()) or ALLOW)
        log.commit_outcome(ToolOutcome(act(), "ok", result=SECRET), None)
        log.append("erasure", {"erased": {}, "reason": SECRET}, arguments=None, content={})
    return folder / "audit.db"


@pytest.fixture
def store(folder: Path) -> Path:
    body = {"messages": [{"role": "user", "content": SECRET}]}
    tokens = ((TOKEN,), (TOKEN,), (-0.5,))
    with open_store(str(folder / "traces.sqlite")) as opened:
        opened.add_rollouts([Rollout("r1", "t1", "run", {"task": SECRET, "mode": "test"}, 1.0)])
        opened.start_attempt("r1", 1)
        opened.add_call(CapturedCall("c1", "m", body, body, *tokens, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1))
        result: JSONValue = {"answer": SECRET, "counts": {"denied": 2}}
        opened.finish_attempt("r1", 1, Outcome.FAILED, error=SECRET, result=result)
        event = SpanEvent("said", 1.0, {"text": SECRET})
        opened.add_spans([Span("run", "s1", 1.0, 2.0, {"gen_ai.input.messages": SECRET}, "r1", 1, events=(event,))])
    return folder / "traces.sqlite"


@pytest.mark.parametrize("form", OF_RECORD)
def test_a_record_without_content(record: Path, form: str) -> None:
    targets = ("out.json", "out.html", "out.txt") if form == "report" else ("out.jsonl",)
    for target in targets:
        for content in (True, False):
            options = ("--format", form, "--to", target, *(() if content else ("--no-content",)))
            assert lgov("export", str(record), *options).exit_code == 0
            text = (record.parent / target).read_text()
            assert ((SECRET in text), "refund" in text, "Ada" in text) == (content, True, True)


@pytest.mark.parametrize("form", [form for form in OF_STORE if not form.startswith("otlp")])  # tests/otlp has those
def test_a_store_without_content(store: Path, form: str) -> None:
    for content in (True, False):
        target = store.parent / f"out-{content}"
        options = ("--format", form, "--to", str(target), *(() if content else ("--no-content",)))
        assert lgov("export", str(store), *options).exit_code == 0
        if form == "parquet":
            pq = pytest.importorskip("pyarrow.parquet")
            text = "".join(str(pq.read_table(file).to_pylist()) for file in target.glob("*.parquet"))
        else:
            text = target.read_text()
        assert (SECRET in text, str(TOKEN) in text, "denied" in text, "stop" in text) == (content, content, True, True)
