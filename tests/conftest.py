"""What every test needs."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core.policies.confinement import in_box

# For tests that ask for no number (`tests.slow.examples` is for those that do). What verl is tested in has no hypothesis.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("lgov", deadline=None, max_examples=100 if os.environ.get("LGOV_TEST_SLOW") else 50)
    settings.load_profile("lgov")

# A shell that starts the tests in the background makes them ignore SIGINT, and every process they start would inherit that.
# With a handler of our own here, children begin with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that a test records or signs goes to, or depends on, what the user has in their own folders.
_HOME = tempfile.TemporaryDirectory(prefix="lgov-tests-")
os.environ["XDG_CONFIG_HOME"] = f"{_HOME.name}/config"
os.environ["XDG_STATE_HOME"] = f"{_HOME.name}/state"

#: What programs under lgov, and clients of models, are told by: a test that leaves one behind changes the tests after it.
_TOLD_BY = ("LGOV_", "LIGHTNING_", "AGENT_LIGHTNING_", "OPENAI_", "ANTHROPIC_")


@pytest.fixture(autouse=True)
def environment_is_left_as_it_was() -> Iterator[None]:
    """Puts such variables back, and fails the test that changed one."""
    before = _told()
    yield
    if (after := _told()) != before:
        for name in after:
            del os.environ[name]
        os.environ.update(before)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        pytest.fail(f"the test left the environment changed: {', '.join(changed)}")


def _told() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_TOLD_BY)}


@pytest.fixture
def carrying() -> Iterator[None]:
    """An attempt runs, and threads belong to it, as `lgov run`, training and the kernel have it."""
    from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope

    start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit
    carry_into_threads()
    with enter_scope(RolloutScope("r1")):
        yield
    threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit = start, submit  # type: ignore[method-assign]


#: Tests that need what a box refuses, with what that is: `make test-confined` skips them.
_REFUSED = {
    "test_two_trainers_on_one_postgresql_store_are_refused_until_the_first_has_ended": (
        "PostgreSQL does not run as root, and a box has no second user to run it as"
    ),
}
#: Folders whose files take longest: they run first, so that no worker waits for one of them at the end.
_LONG = ("e2e", "pair", "train", "agent_hooks")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in _LONG)
    for item in items if in_box() else ():
        if item.name in _REFUSED:
            item.add_marker(pytest.mark.skip(f"in a box: {_REFUSED[item.name]}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers per core: half of the tests' time is spent waiting for servers, subprocesses and timeouts."""
    return 2 * (os.cpu_count() or 1)
