"""What a call repeats of an earlier one is not stored again, and comes back as it was."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lgov_core._util.sqlite_file import open_sqlite
from lgov_core.errors import StoreError
from lgov_core.store import folding, rows
from lgov_core.store.database import GroupCommitWriter
from lgov_core.store.folding import CHAIN, FOLDED_ROW, FoldIndex, FoldingWriter, Unfolding
from lgov_core.store.sqlite import TRACE_STORE, SQLiteDatabase, SQLiteStore, SQLiteTransaction
from lgov_core.types import CapturedCall, Reward
from tests.slow import examples
from tests.store.conversations import Conversation, call, stored_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def test_a_rollout_of_20_turns_costs_at_most_twice_its_distinct_tokens(path: Path) -> None:
    agent = Conversation("solo", 1)
    calls = [agent.next() for _ in range(20)]
    with SQLiteStore(path) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
    tokens, requests = stored_bytes(path)
    distinct = 4 * (400 + agent.distinct)
    assert tokens <= 2 * distinct
    assert tokens == distinct  # each token once
    # Of the requests too only what is new, although each has another seed.
    assert requests < 1.3 * len(rows.stored_text(calls[-1].request, "request"))
    # What a turn costs does not grow with the turns before it, whatever else the file keeps of a call.
    with SQLiteStore(path) as store:
        for _ in range(180):
            store.add_call(agent.next())
        assert len(list(store.calls())) == 200
    connection = sqlite3.connect(path)
    size = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
    connection.close()
    assert size < 200 * 3000


def test_a_reply_that_says_the_whole_prompt_again_takes_no_room_for_it(path: Path) -> None:
    agent = Conversation("solo", 1)
    calls: list[CapturedCall] = []
    for _ in range(20):
        made = agent.next()
        reply: dict[str, Any] = {
            "id": made.response_id,
            "choices": [{"message": {"content": "done"}, "token_ids": list(made.response_ids or ())}],
            "prompt_token_ids": list(made.prompt_ids or ()),
        }
        calls.append(replace(made, response=reply))
    with SQLiteStore(path) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
    connection = sqlite3.connect(path)
    sizes = [size for (size,) in connection.execute("SELECT length(response) FROM calls ORDER BY seq")]
    connection.close()
    assert len(calls[-1].prompt_ids or ()) > 1500
    assert max(sizes) < 300  # twenty tokens of the reply and its words


@pytest.mark.parametrize("known_tokens", [True, False])
def test_forty_agents_that_take_turns_in_one_attempt_each_find_their_own(path: Path, known_tokens: bool) -> None:
    agents = [Conversation(f"agent{i}", i + 1) for i in range(40)]
    calls = [agent.next() for _ in range(6) for agent in agents]
    if not known_tokens:
        calls = [call(one.response_id, None, None, dict(one.request), agent=str(one.agent)) for one in calls]
    with SQLiteStore(path) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
        assert [c.response_id for c in store.calls() if c.agent == "agent7"] == [f"agent7-{i}-1" for i in range(1, 7)]
    tokens, requests = stored_bytes(path)
    distinct = 4 * (400 + sum(agent.distinct for agent in agents))
    if known_tokens:
        assert tokens <= 1.1 * distinct
    assert requests < 0.4 * sum(len(rows.stored_text(one.request, "request")) for one in calls)


def test_parallel_choices_and_branches_share_what_they_have_in_common(path: Path) -> None:
    prompt = tuple(range(1000))
    calls = [call("best", prompt, (i,) * 50, {"n": 4}) for i in range(4)]
    calls = [CapturedCall(**{**_fields(one), "choice": i}) for i, one in enumerate(calls)]
    for i in range(4):  # each branch goes on from its own choice
        calls.append(call(f"b{i}", prompt + (i,) * 50 + (77,) * 10, (1,), {"n": 1}))
    with SQLiteStore(path) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
    assert stored_bytes(path)[0] == 4 * (1000 + 4 * 50 + 4 * 11)


def _fields(one: CapturedCall) -> dict[str, Any]:
    return {name: getattr(one, name) for name in CapturedCall.__dataclass_fields__}


def test_a_store_that_is_opened_again_goes_on_from_what_is_there(path: Path) -> None:
    agent, calls = Conversation("solo", 1), []
    for _ in range(4):
        with SQLiteStore(path) as store:
            for _ in range(5):
                calls.append(agent.next())
                store.add_call(calls[-1])
    with SQLiteStore(path) as store, SQLiteStore(path) as other:
        for i in range(10):  # and two at once find what the other one wrote
            calls.append(agent.next())
            (store if i % 2 else other).add_call(calls[-1])
        assert list(store.calls()) == calls
    assert stored_bytes(path)[0] == 4 * (400 + agent.distinct)


def test_attempts_and_rollouts_do_not_refer_to_each_other(path: Path) -> None:
    with SQLiteStore(path) as store:
        for rollout, attempt in (("r1", 1), ("r1", 2), ("r2", 1), ("r1", None)):
            store.add_call(
                call(
                    f"{rollout}-{attempt}", tuple(range(500)), (1,), {"x": "y" * 500}, rollout=rollout, attempt=attempt
                )
            )
        store.add_call(call("u1", tuple(range(500)), (1,), {"x": "y" * 500}, rollout=None))
        store.add_call(call("u2", tuple(range(500)), (1,), {"x": "y" * 500}, rollout=None))
        assert [c.prompt_ids for c in store.calls(["r2"])] == [tuple(range(500))]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM calls WHERE base IS NOT NULL").fetchone() == (0,)
    connection.close()


def test_a_base_that_another_process_deleted_is_not_referred_to(path: Path) -> None:
    agent = Conversation("solo", 1)
    with SQLiteStore(path) as store:
        store.add_call(agent.next())
        store.add_call(agent.next())
        other = sqlite3.connect(path)
        other.execute("DELETE FROM calls")
        other.commit()
        late = [agent.next(), agent.next()]
        store.add_call(late[0])
        other.execute(
            "INSERT INTO calls SELECT 1000, 'copy' || response_id, choice, route, model, request, response,"
            " prompt_rest, response_ids, logprobs, finish_reason, weights_version, temperature, top_p,"
            " started_at, ended_at, rollout_id, attempt, agent, tool_call_ids, engine, base, prompt_shared,"
            " request_repeats FROM calls"
        )
        other.execute("DELETE FROM calls WHERE seq < 1000")
        other.commit()
        other.close()
        store.add_call(late[1])
        assert [c.prompt_ids for c in store.calls()] == [c.prompt_ids for c in late]
        assert [c.request for c in store.calls()] == [c.request for c in late]


def test_a_lost_transaction_leaves_no_ghost_to_refer_to(path: Path) -> None:
    SQLiteStore(path).close()
    connection = open_sqlite(TRACE_STORE, path, busy_timeout_s=1.0)
    transaction, writer = SQLiteTransaction(connection), FoldingWriter()
    long, other = tuple(range(1000)), tuple(range(5000, 6000))
    writer.write(transaction, *rows.call_parts(call("first", (7, 7), (1,), {})))
    connection.execute("BEGIN IMMEDIATE")
    writer.write(transaction, *rows.call_parts(call("lost", long, (1,), {})))
    connection.execute("ROLLBACK")
    writer.forget()
    connection.execute("BEGIN IMMEDIATE")
    # Written by somebody else, it gets the number that the lost one had.
    FoldingWriter().write(transaction, *rows.call_parts(call("kept", other, (1,), {})))
    writer.write(transaction, *rows.call_parts(call("next", (*long, 1, 2), (3,), {})))
    connection.execute("COMMIT")
    connection.close()
    with SQLiteStore(path) as store:
        assert [c.prompt_ids for c in store.calls()] == [(7, 7), other, (*long, 1, 2)]


def test_a_number_is_not_given_again_to_another_call(path: Path) -> None:
    long, other = tuple(range(1000)), tuple(range(5000, 6000))
    with SQLiteStore(path) as store, SQLiteStore(path) as second:
        store.add_call(call("gone", long, (1,), {}))
        # All is deleted, and somebody else writes to the attempt, while the first store still remembers how it was.
        second.prune(run_id=None, keep_last=0)
        second.add_call(call("other", other, (1,), {}))
        store.add_call(call("next", (*long, 1, 2), (3,), {}))
        assert [c.prompt_ids for c in second.calls()] == [other, (*long, 1, 2)]


def test_the_writer_says_when_a_transaction_was_lost(path: Path) -> None:
    SQLiteStore(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute(
        "CREATE TRIGGER boom BEFORE INSERT ON rewards WHEN NEW.source = 'boom' BEGIN SELECT RAISE(ROLLBACK, 'boom'); END"
    )
    lost: list[bool] = []
    writer = GroupCommitWriter(
        SQLiteDatabase(path, busy_timeout_s=30), shown="store", span_limit=10, on_rollback=lambda: lost.append(True)
    )
    holder.execute("BEGIN IMMEDIATE")
    first = writer.submit(lambda c: None)
    futures = [
        writer.submit(lambda t, s=source: t.insert("rewards", [rows.reward_row(Reward(1.0, source=s))]))
        for source in ("fine", "boom", "fine too")
    ]
    holder.execute("ROLLBACK")
    first.result(30)
    assert [future.exception(30) is None for future in futures] == [True, False, True]
    assert lost
    writer.close()
    holder.close()


def test_a_damaged_reference_is_an_error_and_no_wrong_prompt(path: Path) -> None:
    agent = Conversation("solo", 1)
    with SQLiteStore(path) as store:
        for _ in range(3):
            store.add_call(agent.next())
    for damage, place in (
        ("base = 99", 3),
        ("base = 3", 2),
        ("base = 3", 3),
        ("prompt_shared = 9999", 2),
        ("request = '{}'", 3),
    ):
        broken = path.with_name("broken.sqlite")
        broken.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        connection.execute("VACUUM INTO ?", (str(broken),))
        connection.close()
        connection = sqlite3.connect(broken)
        connection.execute(f"UPDATE calls SET {damage} WHERE seq = ?", (place,))
        connection.commit()
        connection.close()
        with SQLiteStore(broken) as store:
            with pytest.raises(StoreError, match=f"call {place} refers to"):
                list(store.calls())
            store.add_call(agent.next())  # writing goes on


TOKENS = st.lists(st.integers(0, 2), max_size=6).map(tuple)
#: Each step: whose it is, from which earlier call of the test it goes on (if any), how much of that it keeps, what it adds.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", None]),
        st.sampled_from([1, 2, None]),
        st.integers(0, 9),
        st.integers(0, 40),
        TOKENS,
        st.one_of(st.none(), TOKENS),
        st.booleans(),
    ),
    min_size=2,
    max_size=14,
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SQLiteStore]]:
    """Two stores on one file, for all the examples; one of them may remember almost nothing."""
    path = tmp_path_factory.mktemp("prefixes") / "store.sqlite"
    stores = [SQLiteStore(path), SQLiteStore(path)]
    stores[1]._calls._index = FoldIndex(limit_bytes=100)
    yield stores
    for store in stores:
        store.close()


NUMBER = iter(range(10**9))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_folded_calls_come_back_as_plain_ones_would(places: list[SQLiteStore], steps: list[Any]) -> None:
    example = next(NUMBER)
    written: list[CapturedCall] = []
    for i, (rollout, attempt, origin, keep, added, response, no_prompt) in enumerate(steps):
        prompt: tuple[int, ...] = (9,) * 20
        messages: list[Any] = ["s" * 70]
        if written:
            before = written[origin % len(written)]
            # As conversations go on: from the end of the one before, or from somewhere within.
            prompt = ((before.prompt_ids or ()) + (before.response_ids or ()))[: keep if keep < 30 else None]
            messages = list(before.request["messages"])[: 1 + keep // 4]
        one = call(
            f"e{example}-{i}",
            None if no_prompt and i % 3 == 0 else prompt + added,
            response,
            {"seed": keep, "messages": [*messages, *map(str, added)], "tools": "t\u00fc" * keep},
            rollout=None if rollout is None else f"{rollout}-{example}",
            attempt=attempt,
        )
        places[(i + len(added)) % 2].add_call(one)
        written.append(one)
    mine = [f"{name}-{example}" for name in ("r1", "r2")]
    expected = [one for one in written if one.rollout_id in mine]
    for store in places:
        assert list(store.calls(mine)) == expected
        assert list(store.calls(mine[:1])) == [one for one in expected if one.rollout_id == mine[0]]


def test_reading_remembers_little_and_still_finds_everything(path: Path) -> None:
    agents = [Conversation(f"a{i}", i + 1) for i in range(5)]
    calls = [agent.next() for _ in range(6) for agent in agents]
    with SQLiteStore(path) as store:
        for one in calls:
            store.add_call(one)
    connection = sqlite3.connect(path)
    asked: list[int] = []

    def chain(seq: int) -> list[Any]:
        asked.append(seq)
        return connection.execute(CHAIN, (seq,)).fetchall()

    found = Unfolding(chain, limit_bytes=1).calls(connection.execute(f"SELECT {FOLDED_ROW} FROM calls ORDER BY seq"))
    assert list(found) == calls
    assert asked
    connection.close()


def test_who_follows_a_conversation_parses_no_call_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, parsed = Conversation("solo", 1), list[str]()
    with SQLiteStore(path) as store:
        for _ in range(20):
            store.add_call(agent.next())
    monkeypatch.setattr(
        folding, "json", SimpleNamespace(dumps=json.dumps, loads=lambda text: parsed.append(text) or json.loads(text))
    )
    with SQLiteStore(path) as store:  # a writer that does not know the attempt yet
        last = agent.next()
        store.add_call(last)
        assert not [text for text in parsed if "role" in text], "the writer holds up all others meanwhile"
        assert list(store.calls())[-1] == last
        assert [text for text in parsed if "role" in text], "a reader gets the values"
        assert store.has_calls("r1", 1)
        assert not store.has_calls("r1", 2)


def test_a_writer_that_is_killed_in_between_leaves_nothing_that_cannot_be_read(path: Path) -> None:
    code = """
        import os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from tests.store.conversations import Conversation
        from lgov_core.store.sqlite import SQLiteStore
        store, agent = SQLiteStore(sys.argv[1]), Conversation("solo", 1)
        for i in range(30):
            store.submit_call(agent.next())
            if i == 20:
                store.add_call(agent.next())
                os.write(1, b"x")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path), str(root)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"x", done.stderr
    expected = Conversation("solo", 1)
    with SQLiteStore(path) as store:
        found = list(store.calls())
        assert len(found) >= 22
        assert found == [expected.next() for _ in found]
