"""The tree of open runs."""

from __future__ import annotations

from uuid import uuid4

from lgov_langchain.runs import RunTree


def test_a_run_below_one_that_has_ended_is_an_outermost_one() -> None:
    tree = RunTree()
    agent = tree.begin(uuid4(), None, agent="clerk")
    call = tree.begin(uuid4(), agent)
    tree.end(agent.run_id)
    assert call.ended, "nothing of it is left when the outermost run ends"
    later = tree.begin(uuid4(), call, agent="later")
    never_ended = tree.begin(uuid4(), later)
    tree.end(later.run_id)
    tree.end(call.run_id)
    assert never_ended.ended
    assert len(tree) == 0
