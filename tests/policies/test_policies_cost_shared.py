"""CostControlPolicy under a governor, in threads and processes, and from a policy file."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from cost_helpers import BOUND, PRICES, after, before, governor, refused, server_address, tool

from lgov_core.commands import cli
from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.policies import (
    CostControlPolicy,
    PolicySet,
    ReloadingPolicySet,
    Rule,
    SQLPolicy,
    ToolPolicy,
    dry_run,
    load_policies,
    load_policy_file,
)
from lgov_core.policies.budgets.ledger import SharedDatabase
from lgov_core.policies.loader import named_places
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point, ToolOutcome

# ---------------------------------------------------------------------- under a governor


@pytest.mark.parametrize("as_plugin", [False, True])
def test_what_another_policy_denies_is_given_back(ledger: Any, as_plugin: bool) -> None:
    policy = CostControlPolicy(max_calls=2, ledger=ledger)
    only = ToolPolicy(allow=["good"])
    subject = governor(plugins=[PolicySet([Rule(policy), Rule(only)])]) if as_plugin else governor(policy, only)
    with subject.rollout(RolloutScope("ro_1")):
        for _ in range(5):
            assert subject.decide(tool(name="bad", rollout=None)).policy in ("tool", only.name)
        assert policy.spent("ro_1").reserved_calls == 0
        effects = [subject.decide(tool(name="good", rollout=None)).effect for _ in range(3)]
    assert effects == [Effect.ALLOW, Effect.ALLOW, Effect.DENY]
    subject.close()


def test_a_call_judged_again_counts_once(ledger: Any) -> None:
    class Shortens:
        name = "shortens"
        bounded = True

        def judge(self, action: Action) -> Decision | None:
            if action.arguments.get("q") == "short":
                return Decision(Effect.ALLOW, self.name)
            return Decision(Effect.TRANSFORM, self.name, arguments={"q": "short"})

    policy = CostControlPolicy(max_calls=3, ledger=ledger)
    subject = governor(policy, Shortens())
    for _ in range(3):
        assert subject.decide(tool(arguments={"q": "long"})).effect is Effect.TRANSFORM
    spent = policy.spent("ro_1")
    assert spent.calls + spent.reserved_calls == 3
    assert subject.decide(tool(arguments={"q": "long"})).effect is Effect.DENY
    subject.close()


def test_one_operation_id_for_many_calls_buys_nothing(ledger: Any) -> None:
    policy = CostControlPolicy(max_calls=2, ledger=ledger)
    subject = governor(policy, ToolPolicy(allow=["*"]))
    effects = [subject.decide(tool("always the same")).effect for _ in range(4)]
    assert effects == [Effect.ALLOW, Effect.ALLOW, Effect.DENY, Effect.DENY]
    subject.close()


@pytest.mark.parametrize(
    ("status", "calls"), [("ok", 1), ("error", 1), ("timeout", 1), ("unknown_tool", 0), ("denied", 0)]
)
def test_a_tool_call_counts_when_it_was_made(ledger: Any, status: Any, calls: int) -> None:
    policy = CostControlPolicy(max_calls=5, ledger=ledger)
    subject = governor(policy, ToolPolicy(allow=["*"]))
    decision = subject.decide(tool("op_1"))
    subject.record(ToolOutcome(tool("op_1"), status, decision=decision))
    spent = policy.spent("ro_1")
    assert (spent.calls, spent.reserved_calls) == (calls, 0)
    subject.close()


def test_beside_an_sql_policy_it_counts_and_permits_nothing() -> None:
    cost = CostControlPolicy(max_cost_usd=100)
    subject = governor(SQLPolicy(dialect="sqlite", deny=["DROP"], argument="input"), cost)
    query = Action(Point.PRE_TOOL_CALL, "agent", "text", arguments={"input": "SELECT 1"})
    assert cost.name == "CostControlPolicy"
    assert cost.judge(query) is None
    assert subject.decide(query).effect is Effect.ALLOW
    assert subject.decide(Action(Point.PRE_TOOL_CALL, "a", "text", arguments={"input": "DROP TABLE t"})).blocks
    assert governor(cost).decide(query).rule == "no-policy", "a limit is no permission"


def test_it_goes_on_counting_where_the_one_before_it_stopped() -> None:
    old = CostControlPolicy(max_calls=2)
    old.judge(tool())
    new = CostControlPolicy(max_calls=2, max_seconds=100)
    new.continue_from(old)
    assert new.judge(tool()) is None
    assert refused(new.judge(tool())) == "call-budget"


def test_what_cannot_be_counted_on_is_not_taken_over(tmp_path: Path) -> None:
    for new in (
        CostControlPolicy(max_calls=1, per="agent"),
        CostControlPolicy(max_calls=1, ledger=tmp_path / "b.sqlite"),
    ):
        with pytest.raises(PolicyError):
            new.continue_from(CostControlPolicy(max_calls=1))


def test_an_edit_of_the_policy_file_is_no_fresh_budget(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    text = "version: 1\nrules:\n  - {name: all, use: allow}\n  - {name: budget, use: cost, with: {max_calls: 2}}\n"
    path.write_text(text)
    subject = ReloadingPolicySet(path)
    assert not subject.judge(tool()).blocks
    path.write_text(text.replace("max_calls: 2", "max_calls: 3"))
    assert subject.reload()
    assert [subject.judge(tool()).blocks for _ in range(3)] == [False, False, True]
    path.write_text(text.replace("max_calls: 2", "max_calls: 9, per: agent"))
    with pytest.raises(PolicyError, match="another name"):
        subject.reload()
    assert subject.judge(tool()).blocks


def test_the_commands_that_only_look_spend_nothing(tmp_path: Path) -> None:
    ledger, file, cases = tmp_path / "budgets.sqlite", tmp_path / "policy.yaml", tmp_path / "cases.jsonl"
    file.write_text(json.dumps(document(max_calls=1, ledger=str(ledger))))
    lines = [
        {"id": str(n), "name": "t", "rollout_id": "ro_1", "expect": "allow" if n == 0 else "deny"} for n in range(2)
    ]
    cases.write_text("\n".join(json.dumps(line) for line in lines))
    for arguments in (
        ["check", str(file)],
        ["eval", str(file), str(cases)],
        ["explain", str(file), "--action", "{}"],
    ):
        arguments = [part.replace("{}", '{"name": "t"}') for part in arguments]
        result = CliRunner().invoke(cli, ["policy", *arguments])
        assert result.exit_code == 0, result.output
    assert not ledger.exists()


def test_a_ledger_that_cannot_be_used_denies_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "budgets.sqlite"
    policy = CostControlPolicy(max_calls=5, ledger=path)
    assert policy.judge(tool()) is None
    path.unlink()
    decision = policy.judge(tool())
    assert refused(decision) == "cost-ledger"
    assert decision is not None
    assert decision.fault, "an endpoint answers it with an error that a client repeats"
    reply = policy.judge(after(input_tokens=1, output_tokens=1))
    assert reply is not None
    assert reply.effect is Effect.WARN


# ---------------------------------------------------------------------- a ledger that is away for a while


@pytest.fixture(params=["locked", "moved", "server"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A ledger, and a block during which it cannot be used."""
    path = tmp_path / "budgets.sqlite"

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    @contextlib.contextmanager
    def moved() -> Iterator[None]:
        path.rename(tmp_path / "elsewhere")
        yield
        (tmp_path / "elsewhere").rename(path)

    if request.param != "server":
        yield str(path), {"locked": locked, "moved": moved}[request.param]
        return
    from tests.postgres_server import PostgresServer

    server = PostgresServer()

    @contextlib.contextmanager
    def down() -> Iterator[None]:
        server.kill()
        yield
        server.start()

    yield server.url("postgres"), down
    server.close()


def figures(policy: CostControlPolicy) -> tuple[int, int, int, int]:
    spent = policy.spent()
    return spent.calls, spent.tokens, spent.reserved_calls, spent.reserved_tokens


def test_what_calls_used_while_the_ledger_was_away_is_booked_once_it_is_back(away: Any) -> None:
    ledger, outage = away
    policy = CostControlPolicy(max_calls=100, per="global", ledger=ledger)
    replied, cut, refused_call, made = before("op_1"), before("op_2"), before("op_3"), tool("op_4")
    for action in (replied, cut, refused_call, made):
        assert policy.judge(action) is None
    with outage():
        warning = policy.judge(after("op_1", input_tokens=30, output_tokens=10))
        for event in (
            ModelCallFailed(cut, "ReadTimeout"),
            ModelCallFailed(refused_call, "Refused", refused=True),
            ToolOutcome(made, "ok"),
        ):
            with pytest.raises(PolicyError):
                policy.observe(event)
    assert warning is not None
    assert (warning.effect, warning.rule) == (Effect.WARN, "cost-ledger")
    policy.ping()  # as the endpoint does every two seconds; every other use of the ledger does too
    other = CostControlPolicy(max_calls=100, per="global", ledger=ledger)
    assert figures(other) == (3, 40 + BOUND, 0, 0), "the real cost, where it is known; the refused call cost nothing"


@pytest.mark.parametrize("takes_place", [True, False])
@pytest.mark.parametrize("step", ["reserve", "settle", "unasked", "unasked, then settled"])
def test_a_commit_without_an_answer_counts_once(
    ledger: Any, takes_place: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, commits, is_broken = SharedDatabase._open, itertools.count(), False

    class Breaks:
        """A connection on which the answer to a commit is lost."""

        def __init__(self, connection: Any) -> None:
            self.connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

        def execute(self, statement: str, *values: Any) -> Any:
            if statement != "COMMIT" or not is_broken or next(commits) != (step == "unasked, then settled"):
                return self.connection.execute(statement, *values)
            self.connection.execute("COMMIT" if takes_place else "ROLLBACK")
            raise sqlite3.OperationalError("the connection was lost")

    monkeypatch.setattr(SharedDatabase, "_open", lambda self: Breaks(connect(self)))
    policy = CostControlPolicy(max_calls=100, per="global", ledger=ledger)
    if step == "settle":
        assert policy.judge(before()) is None
    is_broken = True
    if step == "reserve":
        assert refused(policy.judge(before())) == "cost-ledger"
    else:
        reply = policy.judge(after(input_tokens=30, output_tokens=10))
        assert reply is not None
        assert reply.effect is Effect.WARN
    is_broken = False
    for _ in range(2):
        assert figures(policy) == ((0, 0, 0, 0) if step == "reserve" else (1, 40, 0, 0))


def test_at_the_end_it_tries_once_more_and_says_what_is_lost(away: Any, caplog: pytest.LogCaptureFixture) -> None:
    ledger, outage = away
    policy = CostControlPolicy(max_calls=100, per="global", ledger=ledger)
    subject = governor(PolicySet([Rule(policy)], default="allow"))
    assert not subject.decide(before()).blocks
    with outage():
        assert not subject.decide(after(input_tokens=30, output_tokens=10)).blocks
        subject.close()
        assert "what 1 calls used is never booked" in caplog.text
    subject.close()
    assert figures(CostControlPolicy(max_calls=100, per="global", ledger=ledger)) == (1, 40, 0, 0)


def test_what_is_to_be_booked_is_handed_on_by_a_reload_and_not_by_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "budgets.sqlite"
    old = CostControlPolicy(max_calls=100, per="global", ledger=path)
    assert old.judge(before()) is None
    path.rename(tmp_path / "elsewhere")
    assert old.judge(after(input_tokens=30, output_tokens=10)) is not None
    (tmp_path / "elsewhere").rename(path)
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            os._exit(figures(old)[2])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    new = CostControlPolicy(max_calls=50, per="global", ledger=path)
    new.continue_from(old)
    assert figures(new) == (1, 40, 0, 0)


def test_what_is_kept_to_be_booked_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "budgets.sqlite"
    policy = CostControlPolicy(max_calls=100, per="global", ledger=path)
    for number in range(3):
        assert policy.judge(before(f"op_{number}")) is None
    monkeypatch.setattr("lgov_core.policies.budgets.ledger.MAX_OPEN", 2)
    path.rename(tmp_path / "elsewhere")
    for number in range(3):
        assert policy.judge(after(f"op_{number}", input_tokens=30, output_tokens=10)) is not None
    (tmp_path / "elsewhere").rename(path)
    assert "what op_2 used is never booked" in caplog.text
    assert figures(policy) == (2, 80, 1, BOUND)


def test_what_was_set_aside_too_late_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "budgets.sqlite"
    policy = CostControlPolicy(max_calls=100, per="global", ledger=path)
    subject = governor(PolicySet([Rule(policy)], default="allow"), timeout_s=0.1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert subject.decide(before()).rule == "policy-timeout"
    subject._judges._threads._pool.shutdown()  # type: ignore[union-attr] # it answers after all
    assert figures(policy) == (0, 0, 0, 0)


# ---------------------------------------------------------------------- several threads, several processes


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that are interrupted nearly everywhere."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_do_not_overspend_by_one(ledger: Any) -> None:
    policy = CostControlPolicy(max_calls=3, ledger=ledger)
    allowed: list[int] = []
    # Many budgets that everybody runs at: each is a race. A file is slow, so fewer do.
    budgets = 20 if ledger else 500
    start = threading.Barrier(8)

    def work(number: int) -> None:
        for budget in range(budgets):
            start.wait()
            action = tool(f"op_{number}_{budget}", rollout=f"ro_{budget}")
            if policy.judge(action) is None:
                allowed.append(budget)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = [policy.spent(f"ro_{budget}") for budget in range(budgets)]
    assert [one.reserved_calls for one in spent] == [3] * budgets
    assert sorted(allowed) == sorted([*range(budgets)] * 3)


def _spend(path: str, number: int, results: Any) -> None:
    policy = CostControlPolicy(max_tokens=40 * BOUND, per="global", ledger=path)
    allowed = 0
    for turn in range(20):
        operation = f"op_{os.getpid()}_{turn}"
        if policy.judge(before(operation)) is None:
            allowed += 1
            if turn % 5 == 0:
                policy.release(operation)
                allowed -= 1
            elif turn % 2:
                policy.judge(after(operation, input_tokens=BOUND - 1, output_tokens=1))
    results.put(allowed)


@pytest.mark.parametrize("ledger", ["file", "server"], indirect=True)
def test_processes_share_one_budget(ledger: Any) -> None:
    path = str(ledger)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    workers = [spawn.Process(target=_spend, args=(path, number, results)) for number in range(4)]
    for worker in workers:
        worker.start()
    allowed = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    policy = CostControlPolicy(max_tokens=40 * BOUND, per="global", ledger=path)
    spent = policy.spent()
    # Four would like to make 64 calls; released ones count for nothing, and what is left is less than one call.
    assert sum(allowed) == spent.calls + spent.reserved_calls <= 40
    assert (spent.tokens + spent.reserved_tokens) == sum(allowed) * BOUND
    assert sum(allowed) >= 36, "released calls may keep a few others out for a moment, not all of them"
    while policy.judge(before(f"rest_{policy.spent().reserved_calls}")) is None:
        pass
    total = policy.spent()
    assert total.tokens + total.reserved_tokens == 40 * BOUND


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("ledger", ["file", "server"], indirect=True)
def test_a_forked_child_spends_from_the_same_ledger(ledger: Any) -> None:
    policy = CostControlPolicy(max_calls=3, per="global", ledger=ledger)
    assert policy.judge(tool()) is None
    child = os.fork()
    if child == 0:
        os._exit(0 if policy.judge(tool()) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert policy.judge(tool()) is None
    assert refused(policy.judge(tool())) == "call-budget"


def _race(address: str, budgets: int, results: Any) -> None:
    """Two policies of one name, on two connections, in two threads that run at the same budgets."""
    allowed: list[int] = []

    def work(policy: CostControlPolicy, number: int) -> None:
        for budget in range(budgets):
            if policy.judge(tool(f"op_{os.getpid()}_{number}_{budget}", rollout=f"ro_{budget}")) is None:
                allowed.append(budget)

    policies = [CostControlPolicy(max_calls=3, ledger=address) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(policy, number)) for number, policy in enumerate(policies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(allowed)


def test_eight_processes_with_two_connections_each_share_budgets_exactly() -> None:
    address = server_address()
    CostControlPolicy(max_calls=3, ledger=address)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    workers = [spawn.Process(target=_race, args=(address, 10, results)) for _ in range(8)]
    for worker in workers:
        worker.start()
    allowed = [budget for _ in workers for budget in results.get(timeout=240)]
    for worker in workers:
        worker.join()
    assert sorted(allowed) == sorted([*range(10)] * 3)
    policy = CostControlPolicy(max_calls=3, ledger=address)
    assert [policy.spent(f"ro_{budget}").reserved_calls for budget in range(10)] == [3] * 10


def test_a_server_that_was_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    from tests.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        policy = CostControlPolicy(max_calls=3, per="global", ledger=server.url("postgres"))
        assert policy.judge(tool("op_1")) is None
        server.kill()
        decision = policy.judge(tool("op_2"))
        assert refused(decision) == "cost-ledger"
        assert decision is not None
        assert str(server.folder) not in decision.reason, "an agent learns nothing of the server"
        assert str(server.folder) in str([vars(record) for record in caplog.records]), "the log has the cause"
        server.start()
        assert policy.judge(tool("op_3")) is None
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert policy.judge(tool("op_4")) is None, "a connection that was lost is made anew"
        assert policy.spent().reserved_calls == 3
        assert refused(policy.judge(tool("op_5"))) == "call-budget"
    finally:
        server.close()


def test_an_address_with_a_password_or_that_cannot_be_read_is_refused_and_not_shown() -> None:
    for address in ("postgresql://u:hunter2@h/d", "postgresql://u:hun@ter2@h/d", "postgresql://h/d?password=hunter2"):
        with pytest.raises(PolicyError, match="PGPASSWORD") as caught:
            CostControlPolicy(max_calls=1, ledger=address)
        assert "ter2" not in str(caught.value)
    with pytest.raises(PolicyError, match=r"budget ledger postgresql://127\.0\.0\.1:9/d"):
        CostControlPolicy(max_calls=1, ledger="postgresql://127.0.0.1:9/d")


# ---------------------------------------------------------------------- by day


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_a_limit_by_day_begins_anew_at_midnight_of_its_zone(ledger: Any, zone: str) -> None:
    midnight = datetime(2026, 3, 1, tzinfo=ZoneInfo(zone)).timestamp()
    now = [midnight - 1]
    policy = CostControlPolicy(max_calls=2, per="agent", day=zone, ledger=ledger, clock=lambda: now[0])
    call = [tool(f"op_{number}", agent="desk") for number in range(6)]
    assert [policy.judge(call[0]), policy.judge(call[1])] == [None, None]
    denied = policy.judge(call[2])
    assert refused(denied) == "call-budget"
    assert denied is not None
    assert f"this agent for this day ({zone}) does not reach" in denied.reason
    now[0] = midnight + 1
    assert policy.spent("desk").reserved_calls == 0
    # What began yesterday is booked there.
    policy.observe(ToolOutcome(call[0], "ok"))
    assert [policy.judge(call[3]), policy.judge(call[4])] == [None, None]
    assert refused(policy.judge(call[5])) == "call-budget"
    assert (policy.spent("desk").reserved_calls, policy.spent().reserved_calls, policy.spent().calls) == (2, 3, 1)
    now[0] = midnight - 1
    assert policy.spent("desk").calls == 1
    policy.reset("desk")
    assert policy.judge(tool("op_9", agent="desk")) is None


def test_days_that_are_over_make_room_in_memory() -> None:
    now = [0.0]
    policy = CostControlPolicy(max_calls=1, per="agent", day="UTC", max_budgets=2, clock=lambda: now[0])
    for day in range(5):
        now[0] = day * 86_400.0
        for agent in ("a", "b"):
            action = tool(f"op_{day}_{agent}", agent=agent)
            assert policy.judge(action) is None
            policy.observe(ToolOutcome(action, "ok"))
        assert refused(policy.judge(tool("op_c", agent="c"))) == "cost-budgets"


def test_a_zone_that_is_none_and_another_day_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"no time zone 'Mars/Olympus'.*Europe/Berlin"):
        CostControlPolicy(max_calls=1, day="Mars/Olympus")
    old, new = CostControlPolicy(max_calls=1), CostControlPolicy(max_calls=1, day="UTC")
    with pytest.raises(PolicyError, match="not counted per rollout and day in UTC"):
        new.continue_from(old)


# ---------------------------------------------------------------------- from a file, and mistakes


def document(**options: Any) -> dict[str, Any]:
    allow = {"name": "all", "use": "allow"}
    return {"version": 1, "rules": [allow, {"name": "budget", "use": "cost", "with": options}]}


def test_from_a_policy_file(tmp_path: Path) -> None:
    subject = load_policies(document(max_cost_usd=0.5, per="session", tool_costs={"*": 0.25}, prices=PRICES))
    first, second = (Action(Point.PRE_TOOL_CALL, "t", session_id=session) for session in ("a", "b"))
    assert [subject.judge(first).effect.label for _ in range(3)] == ["allow", "allow", "deny"]
    denied = subject.judge(first)
    assert (denied.policy, denied.rule) == ("budget", "cost-budget")
    assert subject.judge(second).effect is Effect.ALLOW
    budget = next(rule for rule in subject.rules if rule.name == "budget")
    assert set(budget.on) >= {Point.PRE_MODEL_CALL, Point.POST_MODEL_CALL, Point.PRE_TOOL_CALL}
    assert subject.bounded
    assert not load_policies(document(max_calls=1, ledger=str(tmp_path / "b.sqlite"))).bounded


def test_from_a_policy_file_with_an_address(tmp_path: Path) -> None:
    address = server_address()
    (tmp_path / "policy.yaml").write_text(json.dumps(document(max_calls=1, per="global", ledger=address)))
    first, second = (load_policy_file(tmp_path / "policy.yaml") for _ in range(2))
    assert first.judge(tool("op_1")).effect is Effect.ALLOW
    assert second.judge(tool("op_2")).blocks
    assert not [place for place in named_places(tmp_path / "policy.yaml").kept if "postgres" in place]


def test_a_dry_run_spends_nothing_that_is_shared(tmp_path: Path) -> None:
    path = str(tmp_path / "budgets.sqlite")
    with dry_run():
        rehearsed = load_policies(document(max_calls=1, ledger=path))
    rehearsed.judge(tool())
    assert rehearsed.judge(tool()).blocks
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no limit"),
        ({"max_cost_usd": 0}, "max_cost_usd"),
        ({"max_cost_usd": float("inf")}, "max_cost_usd"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd"),
        ({"max_cost_usd": "100"}, "max_cost_usd"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_calls": True}, "max_calls"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"max_calls": 1, "per": "user"}, "per"),
        ({"max_calls": 1, "prices": {"m": 3}}, "prices"),
        ({"max_calls": 1, "prices": {"m": {"input": -1, "output": 1}}}, "prices"),
        ({"max_calls": 1, "prices": {"m": {"input": 1}}}, "prices"),
        ({"max_calls": 1, "tool_costs": {"t": float("nan")}}, "tool_costs"),
        ({"max_calls": 1, "tool_costs": [1]}, "tool_costs"),
        ({"max_calls": 1, "ledger": 5}, "ledger"),
        ({"max_calls": 1, "ledger": ""}, "ledger"),
        ({"max_calls": 1, "bytes_per_token": 0}, "bytes_per_token"),
        ({"max_calls": 1, "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_settings_without_a_meaning_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        CostControlPolicy(**options)
    with pytest.raises(PolicyFileError):
        load_policies(document(**options))


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to be told from an empty one" * 20)
    with pytest.raises(PolicyError, match=r"notes\.txt"):
        CostControlPolicy(max_calls=1, ledger=path)


@pytest.mark.parametrize("option", ["max_tokens", "n"])
@pytest.mark.parametrize("most", [2**40, 10**400, float("inf")], ids=["large", "huge", "endless"])
def test_a_limit_beyond_all_measure_is_no_small_one(option: str, most: Any, ledger: Any) -> None:
    policy = CostControlPolicy(max_tokens=1_000_000, ledger=ledger)
    assert refused(policy.judge(before("op", **{option: most}))) == "token-budget"


def test_a_budget_that_a_rule_asks_before_model_calls_only_still_learns_what_they_used() -> None:
    policy = CostControlPolicy(max_tokens=BOUND + 100)
    subject = governor(plugins=[PolicySet([Rule(policy, on=[Point.PRE_MODEL_CALL])], default="allow")])
    for number in range(3):
        assert not subject.decide(before(f"op_{number}")).blocks
        subject.decide(after(f"op_{number}", input_tokens=5, output_tokens=5))
    spent = policy.spent()
    assert (spent.tokens, spent.reserved_tokens, spent.calls) == (30, 0, 3)
    subject.decide(tool("op_9"))
    assert policy.spent().calls == 3, "tool calls are not counted by this rule"
