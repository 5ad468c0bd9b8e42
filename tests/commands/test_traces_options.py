"""`lgov traces show` without an id, the agent in its turns, and `--limit 0`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from lgov_core.store import open_store
from lgov_core.types import CapturedCall, Outcome, Rollout
from tests.commands.cli_runner import lgov

STORE = "traces.sqlite"


def write(*names: str) -> None:
    with closing(open_store(STORE)) as store:
        for number, name in enumerate(names):
            store.add_rollouts([Rollout(name, "t", "run", {}, float(number))])
            store.start_attempt(name, 1)
            request = {"messages": [{"role": "user", "content": "q"}]}
            response = {"choices": [{"message": {"role": "assistant", "content": "a"}}]}
            call = CapturedCall(
                f"call_{name}", "m", request, response, (1,), (2,), (-0.5,), "stop", 0, 1.0, 1.0, 1.0, 2.0, name, 1,
                agent="clerk",
            )  # fmt: skip
            store.add_call(call)
            store.finish_attempt(name, 1, Outcome.SUCCEEDED)


def test_a_store_with_one_rollout_needs_no_id() -> None:
    write("r1")
    assert json.loads(lgov("traces", "show", STORE, "--json").stdout)["rollout_id"] == "r1"


def test_the_folder_of_a_run_names_its_store(folder: Path) -> None:
    write("r1")
    (folder / "runs").mkdir()
    (folder / STORE).rename(folder / "runs" / "store.sqlite")
    assert json.loads(lgov("traces", "show", "runs", "r1", "--json").stdout)["rollout_id"] == "r1"
    assert "there is no trace store ." in lgov("traces", "list", ".").stderr


def test_a_turn_names_its_agent() -> None:
    write("r1")
    assert "turn 1  clerk  m  weights 0" in lgov("traces", "show", STORE).stdout


def test_a_store_with_several_rollouts_needs_an_id() -> None:
    write("r1", "r2")
    shown = lgov("traces", "show", STORE)
    assert (shown.exit_code, "the store holds 2 rollouts: give an id" in shown.stderr) == (2, True)
    assert "rollout r2 was not denied anything" in lgov("traces", "show", STORE, "r2", "--denied").stderr


def test_the_beginning_of_an_id_names_a_rollout() -> None:
    write("ro_1", "ro_10", "ro_22")
    for given, found in (("ro_2", "ro_22"), ("ro_1", "ro_1"), ("ro_10", "ro_10")):
        assert json.loads(lgov("traces", "show", STORE, given, "--json").stdout)["rollout_id"] == found
    assert (
        "the store holds 3 rollouts whose id begins with ro_: give an id" in lgov("traces", "show", STORE, "ro_").stderr
    )
    assert "there is no rollout ro_9" in lgov("traces", "show", STORE, "ro_9").stderr


def test_a_rollout_is_pruned_by_its_id() -> None:
    write("r1", "r2", "r3")
    done = lgov("traces", "prune", STORE, "--where", "rollout=r1", "--where", "rollout=r3", "--yes")
    assert done.stdout == "deleted 2 rollouts, 2 attempts, 2 calls, 0 rewards, 0 spans\n"
    assert [one["rollout_id"] for one in json.loads(lgov("traces", "list", STORE, "--json").stdout)["attempts"]] == [
        "r2"
    ]


def test_a_limit_of_0_lists_everything() -> None:
    write(*(f"r{number}" for number in range(60)))
    assert len(json.loads(lgov("traces", "list", STORE, "--json").stdout)["attempts"]) == 50
    assert len(json.loads(lgov("traces", "list", STORE, "--json", "--limit", "0").stdout)["attempts"]) == 60
