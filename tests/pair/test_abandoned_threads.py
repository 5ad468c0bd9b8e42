"""Agents that nobody waits for any more: they keep no program from ending, and do nothing that was not judged."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lgov_core.client.abandoned_threads import as_they_end
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment
from lgov_core.governance import Governance
from tests.pair.test_client_governed import POLICY


def test_what_ends_is_given_back_with_its_place_and_what_was_raised_is_raised() -> None:
    assert dict(as_they_end(lambda one: one * 2, [1, 2, 3], 2, "test")) == {0: 2, 1: 4, 2: 6}
    assert list(as_they_end(lambda one: one, [], 2, "test")) == []
    with pytest.raises(ZeroDivisionError):
        list(as_they_end(lambda one: 1 // one, [1, 0], 1, "test"))


def test_when_nobody_asks_any_more_nothing_is_begun_and_nothing_is_waited_for() -> None:
    go, begun, over = threading.Event(), [], threading.Event()

    def run(one: int) -> int:
        begun.append(one)
        if one:
            go.wait()
            over.set()
        return one

    running = as_they_end(run, [0, 1, 2], 1, "test")
    assert next(running) == (0, 0)
    running.close()  # the second runs, or will not be begun
    go.set()
    if 1 in begun:
        over.wait()
    assert 2 not in begun
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("test-"))


def test_an_agent_that_is_left_behind_stays_governed_until_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("langchain", reason="needs the extra langchain")
    from langchain_core.tools import tool

    ran: list[str] = []

    @tool
    def delete(what: str) -> str:
        """Deletes something."""
        ran.append(what)
        return "gone"

    begun, go, said = threading.Event(), threading.Event(), list[Any]()

    def agent(resource: Any, task: Any) -> float:
        begun.set()
        go.wait()
        try:
            said.append(delete.invoke({"what": "everything"}))
        except Exception as error:
            said.append(error)
        return 1.0

    (tmp_path / "policy.yaml").write_text(POLICY.replace("[nothing]", "[delete]"))
    runner = AgentRunner(
        agent,
        endpoint="http://127.0.0.1:9",
        governance=Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"),
    )
    given = Assignment("ro_1", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 600.0)
    thread = threading.Thread(target=runner.run, args=(given,))
    thread.start()
    begun.wait()
    runner.close()  # as after Ctrl-C, or when the run is over and one attempt hangs
    go.set()
    thread.join()
    assert ran == [], "its record is closed, so nothing can be committed, and what cannot be committed does not run"
    assert len(said) == 1
    # Once it has ended nothing is governed here any more, and a new runner may govern again.
    assert delete.invoke({"what": "this"}) == "gone"
    again = AgentRunner(
        agent,
        endpoint="http://127.0.0.1:9",
        governance=Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"),
    )
    again.run(given)
    assert ran == ["this", "everything"]
    again.close()
