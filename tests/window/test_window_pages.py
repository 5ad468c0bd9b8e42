"""The window's answers, over HTTP, on a real store: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from lgov_core.store import open_store
from lgov_core.types import Outcome
from tests.postgres_server import shared_server
from tests.window.conftest import Browser, Opened
from tests.window.recorded_rollouts import RUN, call, record, record_rollout

RECORDED = [
    *("mixed-0", "mixed-1", "mixed-2"),
    *("alike-0", "alike-1", "before-0-0", "after-0-0"),
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with the recorded rollouts, which is only read."""
    file = tmp_path_factory.mktemp("window") / "store.sqlite"
    place = str(file) if request.param == "sqlite" else shared_server().empty_store()
    with open_store(place) as store:
        assert record(store) == RECORDED
        yield place


@pytest.fixture
def browser(place: str, opened: Opened) -> Browser:
    """A window on the recorded rollouts."""
    return opened(place)


def test_sources_say_what_is_there(browser: Browser) -> None:
    (source,) = browser.get("sources")["sources"]
    assert (source["kind"], source["state"], source["runs"]) == ("store", "live", [RUN])
    assert source["counts"] == {"rollouts": 7, "open_attempts": 0, "calls": 14}
    assert "postgres@" not in source["place"] or ":" not in source["place"].split("@")[0].removeprefix("postgresql://")


def test_rollouts_come_newest_first_in_pages_that_do_not_overlap(browser: Browser) -> None:
    assert [row["rollout_id"] for row in browser.all("rollouts", limit=2)] == RECORDED[::-1]
    assert browser.get("rollouts", limit=7)["cursor"] is None


def test_a_row_has_the_figures_of_its_attempt(browser: Browser) -> None:
    (row,) = browser.get("rollouts", task="before-0")["items"]
    assert row | {"created_at": 0, "seconds": 0, "source": ""} == {
        "source": "",
        "rollout_id": "before-0-0",
        "task_id": "before-0",
        "run_id": RUN,
        "attempt": 1,
        "attempts": 1,
        "outcome": "failed",
        "error": None,
        "created_at": 0,
        "seconds": 0,
        "turns": 2,
        "agents": ["desk"],
        "denials": 1,
        "would": 1,
        "rewards": {"compliance": -0.5, "task": 0.0},
        "return": -0.5,
        "prompt_tokens": 9,
        "response_tokens": 3,
        "truncated": 0,
        "weights_version": [7, 7],
        "advantage": None,
    }


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"outcome": "succeeded"}, ["after-0-0", "mixed-0"]),
        ({"outcome": "running"}, []),
        ({"denied": "1"}, ["before-0-0", "alike-1", "alike-0", "mixed-2", "mixed-1"]),
        ({"denied": "0"}, []),
        ({"denied": "would"}, RECORDED[::-1]),
        ({"agent": "desk", "task": "mixed"}, ["mixed-2", "mixed-1", "mixed-0"]),
        ({"agent": "nobody"}, []),
        ({"policy": "tables", "rule": "no-drop", "task": "mixed"}, ["mixed-2", "mixed-1"]),
        ({"rule": "nothing"}, []),
        ({"text": "denied", "task": "alike"}, ["alike-1", "alike-0"]),
        ({"text": "100%_"}, []),
        ({"run": "another"}, []),
    ],
)
def test_lists_are_narrowed(browser: Browser, filters: dict[str, str], found: list[str]) -> None:
    assert [row["rollout_id"] for row in browser.all("rollouts", limit=1, **filters)] == found


def test_groups_say_whether_they_teach_anything(browser: Browser) -> None:
    groups = {group["task_id"]: group for group in browser.all("tasks", limit=2)}
    assert list(groups) == ["after-0", "before-0", "alike", "mixed"]
    assert [groups[name]["why"] for name in groups] == ["one rollout", "one rollout", "all rewards are alike", None]
    assert [name for name in groups if groups[name]["teaches_nothing"]] == ["alike"]
    mixed = groups["mixed"]
    assert (mixed["count"], mixed["outcomes"], mixed["denials"]) == (3, {"succeeded": 1, "failed": 2}, 2)
    assert mixed["rewards"]["task"]["mean"] == pytest.approx(1 / 3)
    assert mixed["return"] == {"mean": 0.0, "least": -0.5, "most": 1.0, "spread": 1.5}
    assert [row["rollout_id"] for row in mixed["rollouts"]] == ["mixed-0", "mixed-1", "mixed-2"]
    assert [group["task_id"] for group in browser.all("tasks", teaches="nothing")] == ["alike"]
    assert [group["task_id"] for group in browser.all("tasks", teaches="something")] == ["mixed"]
    assert [group["task_id"] for group in browser.all("tasks", outcome="succeeded")] == ["after-0", "mixed"]


def test_a_rollout_is_shown_step_by_step_and_nested_by_agent(browser: Browser) -> None:
    shown = browser.get("rollouts/mixed-1")
    assert [(run["name"], run["depth"]) for run in shown["agents"]] == [("planner", 0), ("desk", 1)]
    first, second = shown["steps"]
    assert [(step["depth"], step["agent"], step["turn"]) for step in (first, second)] == [
        (1, "desk", 1),
        (1, "desk", 2),
    ]
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert [message["text"]["text"] for message in second["messages"]] == ["DENIED"]
    (tool,) = first["tools"]
    assert (tool["name"], tool["status"], tool["arguments"]["text"]) == ("drop", "denied", '{"table": "staff"}')
    (decision,) = tool["decisions"]
    assert (decision["effect"], decision["policy"], decision["rule"]) == ("deny", "tables", "no-drop")
    assert (decision["reason"], decision["routine"]) == ("Not this table.", False)
    assert tool["rewards"] == [{"dimension": "compliance", "value": -0.5, "source": "air:denied"}]
    (about_the_call,) = second["decisions"]  # by the span that it is inside of
    assert (about_the_call["effect"], about_the_call["would"]) == ("allow", "deny")
    assert shown["rewards"] == [{"dimension": "task", "value": 0.0, "source": ""}]
    assert (shown["outcome"], shown["decisions"], shown["loose_tools"]) == ("failed", [], [])
    assert browser.get("rollouts/mixed-1", **{"from": 1})["steps"][0]["index"] == 1
    assert browser.get("rollouts/mixed-1", count=1)["next"] == 1


def test_advantages_are_worked_out_where_no_batch_is_kept(browser: Browser) -> None:
    shown = browser.get("rollouts/mixed-0")
    assert shown["advantage_source"] == "recomputed"
    assert all(step["advantage"] > 0 for step in shown["steps"])
    assert all(step["advantage"] < 0 for step in browser.get("rollouts/mixed-1")["steps"][:1])
    assert browser.get("rollouts/after-0-0")["advantage_source"] is None


def test_tokens_come_as_columns(browser: Browser) -> None:
    call = browser.get("rollouts/mixed-0")["steps"][1]["call"]
    path = f"rollouts/mixed-0/calls/{quote(call, safe='')}/tokens"
    shown = browser.get(path)
    assert (shown["ids"], shown["prompt_count"], shown["response_count"]) == ([1, 2, 3, 4, 5, 6, 7], 6, 1)
    assert shown["mask"] == [0, 0, 0, 0, 0, 0, 1]
    assert shown["logprobs"] == [None] * 6 + [-0.25]
    assert shown["advantages"][:6] == [None] * 6
    assert shown["advantages"][6] > 0
    assert (shown["shared"], shown["texts"], shown["weights_version"], shown["next"]) == (5, None, 7, None)
    part = browser.get(path, **{"from": 5, "count": 1})
    assert (part["ids"], part["mask"], part["logprobs"], part["next"]) == ([6], [0], [None], 6)


def test_a_run_is_found_by_its_id(tmp_path: Path, opened: Opened) -> None:
    said = [{"role": "user", "content": "Hello"}]
    with open_store(tmp_path / "store.sqlite") as store:
        for number, name in enumerate(("order-17", "order-18")):
            store.add_call(call(f"c{number}", name, said, {"role": "assistant", "content": "Hi"}, None, None))
    browser = opened(str(tmp_path / "store.sqlite"))
    assert [row["rollout_id"] for row in browser.get("rollouts", text="ORDER-17")["items"]] == ["order-17"]


def test_two_evaluations_are_compared_on_the_same_tasks(browser: Browser) -> None:
    sides = browser.get("compare/sides")
    (pair,) = sides["pairs"]
    assert [pair["a"].rpartition("~")[2], pair["b"].rpartition("~")[2]] == ["before-", "after-"]
    shown = browser.get("compare", **pair)
    assert (shown["matched_by"], shown["tasks"]) == ("input", {"shared": 1, "only_a": 0, "only_b": 0})
    assert shown["counts"] == {"fixed": 1, "broken": 0, "better": 0, "worse": 0, "same": 0}
    (item,) = shown["items"]
    assert (item["change"], item["difference"]) == ("fixed", 1.0)
    assert shown["success"]["difference"]["mean"] == 1.0
    assert browser.get("compare", only="broken", **pair)["items"] == []
    backwards = browser.get("compare", a=pair["b"], b=pair["a"])
    assert backwards["counts"]["broken"] == 1
    source = browser.get("sources")["sources"][0]["id"]
    names = {side: f"{quote(source, safe='')}~{one}~1" for side, one in (("a", "before-0-0"), ("b", "after-0-0"))}
    assert browser.get("compare/rollouts", **names)["part"] == {"step": 0, "where": "tools", "tool": 0}


def test_evaluations_of_one_training_are_told_apart_by_their_weights(tmp_path: Path, opened: Opened) -> None:
    with open_store(tmp_path / "store.sqlite") as store:
        for version, reward in ((0, 0.0), (8, 1.0), (15, 1.0)):
            outcome = Outcome.SUCCEEDED if reward else Outcome.FAILED
            for task in ("test-000000", "train-000000"):
                name = f"{task}-{version}"
                record_rollout(store, name, task, outcome, reward, weights_version=version)
    browser = opened(str(tmp_path / "store.sqlite"))
    shown = browser.get("compare/sides")
    assert [(side["label"], side["rollouts"]) for side in shown["sides"]] == [
        (RUN, 6), *((f"{RUN}: test, weights {version}", 1) for version in (0, 8, 15)),
    ]  # fmt: skip
    assert [pair["b"].rpartition("@")[2] for pair in shown["pairs"]] == ["15", "8", "15"]
    compared = browser.get("compare", **shown["pairs"][0])
    assert (compared["matched_by"], compared["counts"]["fixed"]) == ("task_id", 1)
    assert [len(compared["items"][0][half]["rollouts"]) for half in "ab"] == [1, 1]


def test_decisions_are_counted_and_listed(browser: Browser) -> None:
    shown = browser.get("governance", by="rule")
    assert (shown["decisions"], shown["effects"], shown["would"]) == (14, {"allow": 9, "deny": 5}, {"deny": 7})
    counts = {one["key"]: (one["total"], one["blocked"], one["would"]) for one in shown["series"]}
    assert counts == {"default": (9, 0, 7), "no-drop": (5, 5, 0)}
    assert sum(map(sum, (row for one in shown["series"] for row in one["values"].values()))) == 14
    assert {row["policy"]: row["count"] for row in shown["table"]} == {"tables": 5, "budget": 7}
    blocked = browser.all("governance/decisions", effect="blocked", limit=2)
    assert [one["rollout_id"] for one in blocked] == ["before-0-0", "alike-1", "alike-0", "mixed-2", "mixed-1"]
    assert len(browser.all("governance/decisions", effect="would")) == 7
    assert browser.all("governance/decisions", tool="read") == []
    assert len(browser.all("governance/decisions")) == 12


def test_filters_are_offered(browser: Browser) -> None:
    offered = browser.get("filters")
    assert (offered["runs"], offered["agents"]) == ([RUN], ["desk"])
    assert (offered["policies"], offered["rules"]) == (["budget", "tables"], ["default", "no-drop"])


def test_what_is_not_there_is_said(browser: Browser) -> None:
    assert browser.error("rollouts/none", 404) == "store"
    assert browser.error("rollouts/mixed-0", 404, attempt=2) == "store"
    assert browser.error("rollouts/mixed-0/calls/none/tokens", 404) == "store"
    assert browser.error("rollouts", 404, source="none") == "not_found"
    assert browser.error("compare", 404, a="x", b="y") == "not_found"
    assert browser.error("nothing", 404) == "not_found"
    for path, given in (
        ("rollouts", {"limit": "0"}),
        ("rollouts", {"cursor": "x"}),
        ("rollouts", {"denied": "maybe"}),
        ("tasks", {"teaches": "all"}),
        ("compare", {"a": "x"}),
        ("text", {}),
        ("changes", {"since": "%%%"}),
        ("governance", {"by": "time"}),
        ("rollouts", {"text": "x" * 501}),
    ):
        assert browser.error(path, 400, **given) == "query"
