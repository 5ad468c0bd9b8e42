"""What a client may tell a server about its attempts, and what is refused: over real HTTP, without an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.client.wire import Report
from lgov_core.errors import ClientError
from lgov_core.server.training import TrainingServer
from lgov_core.types import Outcome, Reward, Span

TASKS = [{"question": "digits"}]


def test_a_report_is_of_its_own_attempt_counts_once_and_has_to_be_one(serve: Callable[..., TrainingServer]) -> None:
    server = serve(steps=1, batch_size=1, group_size=2)
    client = Client(server.url, quiet=True, first_hand="guessed")  # makes no claim a fact
    client.upload_data(TASKS)
    post = client._connection.post
    run = post("/train/start", {"client": "c"})["run"]
    # While a run goes on its tasks are not changed; a script that is run again says the same ones.
    client.upload_data(TASKS)
    with pytest.raises(ClientError, match="a training on other tasks is going on"):
        client.upload_data([{"question": "others"}])
    claim = {"worker_id": "w", "limit": 2, "lease_s": 30.0, "wait_s": 30.0, "run": run, "after": 0}
    found: list[dict[str, Any]] = []
    while len(found) < 2:
        found += post("/train/claim", claim)["assignments"]
    mine, other = ((one["rollout_id"], one["attempt"]) for one in found)

    def finish(report: Report, **changes: Any) -> dict[str, Any]:
        names = {"worker_id": "w", "rollout_id": mine[0], "attempt": mine[1]}
        return post("/train/finish", {**names, **report.as_json(), **changes})

    own = Reward(0.5, "task", *mine, source="agent")
    span = Span("tool", "a" * 16, 1.0, 2.0, {}, *mine)
    report = Report(Outcome.SUCCEEDED, (own,), (span, replace(span, span_id="b" * 16, rollout_id=other[0])))
    # A reward of somebody else's attempt is refused with the whole report: nothing of it is kept.
    for wrong in (replace(own, rollout_id=other[0]), replace(own, attempt=mine[1] + 1)):
        with pytest.raises(ClientError, match="is of another attempt"):
            finish(replace(report, rewards=(own, wrong)))
    for changes in ({"outcome": "fine"}, {"rewards": [{"value": "1", "dimension": "task"}]}, {"counts": None}):
        with pytest.raises(ClientError, match=r"must be|missing required field .counts."):
            finish(report, **changes)
    with pytest.raises(ClientError, match="'extra' is not a field that /train/finish knows"):
        finish(report, extra=1)
    unknown = {"rollout_id": "nobody's", "rewards": [], "spans": []}
    with pytest.raises(ClientError, match="the report cannot be kept"):
        finish(report, **unknown)
    assert server.store.rewards() == []
    assert finish(report) == {"accepted": True}
    # The answer was lost, and it is said again; then something else is said of it.
    assert finish(report) == {"accepted": True}
    assert finish(replace(report, outcome=Outcome.FAILED)) == {"accepted": False}
    assert [(one.value, one.rollout_id) for one in server.store.rewards()] == [(0.5, mine[0])]
    shown = [(one.span_id, one.rollout_id, one.claimed) for one in server.store.spans() if one.name == "tool"]
    assert shown == [("a" * 16, mine[0], True)], "a span of another attempt is left out"
    # One that is handed back is tried again, and what comes of the first try then is not taken.
    post("/train/release", {"worker_id": "w", "reason": "asked to"})
    answer = finish(Report(Outcome.SUCCEEDED, (replace(own, rollout_id=other[0]),)), rollout_id=other[0])
    assert answer == {"accepted": False}
    assert post("/train/claim", {**claim, "wait_s": 0.0})["assignments"] == [], "who has gone is given nothing"
    (again,) = post("/train/claim", {**claim, "worker_id": "v", "limit": 1})["assignments"]
    assert (again["rollout_id"], again["attempt"]) == (other[0], other[1] + 1)
    # What a client of the server's own process saw is kept as what happened.
    seen = Report(Outcome.FAILED, (), (replace(span, span_id="c" * 16, rollout_id=other[0], attempt=other[1] + 1),))
    names = {"worker_id": "v", "rollout_id": other[0], "attempt": other[1] + 1}
    within = Client(server.url, quiet=True, first_hand=server.first_hand_key)._connection.post
    assert within("/train/finish", {**names, **seen.as_json()}) == {"accepted": True}
    assert [one.claimed for one in server.store.spans() if one.span_id == "c" * 16] == [False]
