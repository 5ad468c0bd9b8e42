"""The pytest plugin: ``pytest --lgov-policy policy.yaml`` runs a project's own tests with its agents under policy.

Each test is a rollout of its own (its node id), so that the record shows which test made which decision. The import
hook is installed before the first test module is imported. When the policy, the record or a framework cannot be loaded,
pytest ends with status 78 and no test is run. Without its options the plugin does nothing and loads nothing.

``pytest --lgov-confine`` starts again in a box (`docs/how-to/confinement.md`) before the project's first line is run: with the
policy file's rules, or a preset's in the working folder. The record stays outside. Where a strict box cannot be had
pytest ends with status 78.

Fixtures: ``lgov_governor`` (the `Governor`; the test is skipped without ``--lgov-policy``) and ``lgov_decisions`` (the
decisions of this test so far, a list of `ObservedDecision`, oldest first).

Under pytest-xdist each of its processes governs its own tests and writes to the same record; the closing report counts
the decisions of all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from lgov_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from lgov_core.governance import Governance
    from lgov_core.governor import Governor, ObservedDecision
    from lgov_core.process.governed import GovernedProcess


class _Governed:
    """The state of a governed session."""

    def __init__(self, process: GovernedProcess) -> None:
        self.process = process
        self.instrumented = process.guard.instrumented
        self.decisions: list[ObservedDecision] = []
        #: Of the processes that ran tests for this one: their decisions, and the frameworks that they instrumented.
        self.effects_elsewhere: Counter[str] = Counter()
        self.instrumented_elsewhere: set[str] = set()

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Keeps the decisions of the running test."""
        from lgov_core.governor import ObservedDecision

        if isinstance(event, ObservedDecision):
            self.decisions.append(event)


_KEY = pytest.StashKey[_Governed]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("lgov", "agents under policy")
    group.addoption("--lgov-policy", metavar="FILE", help="Govern the agents that the tests run by this policy file.")
    group.addoption(
        "--lgov-audit",
        metavar="FILE",
        default=".lgov/pytest.db",
        help="File of the audit record. [default: %(default)s]",
    )
    group.addoption("--lgov-confine", action="store_true", help="Run the tests in a box that the Linux kernel holds.")
    group.addoption(
        "--lgov-preset", metavar="NAME", help="Preset of the box. [default: the policy file's; without one, workspace]"
    )
    group.addoption("--lgov-broker", help=argparse.SUPPRESS)  # the address, given to the pytest in a box


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Starts pytest again in a box, before any file of the project is loaded and before output is captured."""
    options: Any = early_config.known_args_namespace
    if options.lgov_preset is not None and not options.lgov_confine:
        raise pytest.UsageError("--lgov-preset is for --lgov-confine")
    if options.lgov_confine and options.lgov_broker is None:
        _start_in_box(early_config, options)
    return (yield)


def _start_in_box(config: pytest.Config, options: Any) -> NoReturn:
    from lgov_core.errors import LgovError
    from lgov_core.process.confined import command_in_box
    from lgov_core.process.governed import end_process, say

    arguments, folder = list(config.invocation_params.args), config.invocation_params.dir
    _refuse_plugins_of(folder, config)
    cut = len(sys.orig_argv) - len(arguments)
    if sys.orig_argv[cut:] != arguments:
        end_process(lambda: say("not run: a program that calls pytest.main cannot be started again by --lgov-confine"))
    try:
        governance = _governance(folder, options)
    except LgovError as error:
        message = str(error)
        end_process(lambda: say(f"not run: {message}"))
    command = command_in_box(sys.orig_argv[1:cut], arguments, governance=governance, preset=options.lgov_preset)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def _refuse_plugins_of(folder: Path, config: pytest.Config) -> None:
    """Raises for a plugin that lies in the project: pytest has loaded it by now, which was outside of the box."""
    for name, plugin in config.pluginmanager.list_name_plugin():
        file = Path(getattr(plugin, "__file__", None) or "/").resolve()
        if folder.resolve() in file.parents and not {Path(sys.prefix).resolve(), Path(__file__).parent.resolve()} & {
            *file.parents
        }:
            raise pytest.UsageError(
                f"the plugin {name} lies in the project ({file}), and pytest has run it outside of the box: leave it out of "
                "-p, addopts, PYTEST_PLUGINS and entry points, and name it in conftest.py (pytest_plugins), which the box holds"
            )


def _governance(folder: Path, options: Any) -> Governance:
    """Reads the settings, under the policy file and on the record that the options name. Raises `SettingsError`."""
    from lgov_core.governance import Governance
    from lgov_core.settings import load_settings

    governance = Governance.from_settings(load_settings(folder=folder))
    policy = None if options.lgov_policy is None else folder / options.lgov_policy
    return replace(governance.under(policy, folder / options.lgov_audit), broker=options.lgov_broker)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Opens the policy and installs the import hook, before any test module is imported."""
    options: Any = config.option
    if config.getoption("--lgov-confine", default=False):
        from lgov_core.policies.confinement import in_box

        if not in_box():
            _cannot("the plugin was loaded too late for --lgov-confine: name it with -p lgov_core.pytest_plugin")
    if config.getoption("--lgov-policy", default=None) is None:
        return
    from lgov_core.errors import LgovError
    from lgov_core.process.governed import GovernedProcess
    from lgov_core.scope import carry_into_threads

    try:
        process = GovernedProcess(_governance(config.invocation_params.dir, options), partial(_stop, config))
    except LgovError as error:
        _cannot(str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is broken here, no test may run without it
        _cannot(f"{type(error).__name__}: {error}")
    governed = _Governed(process)
    process.governor.manager.register(governed)
    process.governor.plugins_changed()
    config.stash[_KEY] = governed
    carry_into_threads()
    process.guard.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Closes the record."""
    if (governed := config.stash.get(_KEY, None)) is not None:
        governed.process.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Makes each test, with its fixtures, a rollout of its own."""
    governed = item.config.stash.get(_KEY, None)
    if governed is None:
        return (yield)
    from lgov_core.scope import RolloutScope, enter_scope
    from lgov_core.types import new_id

    governed.decisions.clear()
    with enter_scope(RolloutScope(new_id("rol"), 1, task_id=item.nodeid)):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of pytest-xdist: sends the counts of this process to the one that reports."""
    governed = session.config.stash.get(_KEY, None)
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if governed is not None and output is not None:
        output["lgov"] = {
            "effects": dict(governed.process.governor.effects),
            "instrumented": list(governed.instrumented),
            "blocked": governed.process.tally.blocked.as_json(),
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the counts of a pytest-xdist process that has ended. One that crashed is not counted; its record remains."""
    governed = node.config.stash.get(_KEY, None)
    sent = getattr(node, "workeroutput", {}).get("lgov")
    if governed is not None and sent is not None:
        from lgov_core.process.governed import Blocked

        governed.process.tally.blocked.merge(Blocked(**kind) for kind in sent["blocked"])
        governed.effects_elsewhere.update(sent["effects"])
        governed.instrumented_elsewhere.update(sent["instrumented"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the closing report."""
    governed = config.stash.get(_KEY, None)
    if governed is None:
        return
    from lgov_core.process.report import blocked_lines

    effects = Counter(governed.process.governor.effects) + governed.effects_elsewhere
    denied = effects["deny"] + effects["escalate"]
    terminalreporter.section("lgov")
    instrumented = ", ".join(sorted({*governed.instrumented, *governed.instrumented_elsewhere})) or "no framework"
    terminalreporter.line(
        f"governed: {instrumented}; decisions: {sum(effects.values()) - denied} allowed, {denied} denied"
    )
    audit = str(governed.process.governance.audit)
    for line in blocked_lines(list(governed.process.tally.blocked), audit):
        terminalreporter.line(line)
    terminalreporter.line(f"audit record: {audit}")


@pytest.fixture
def lgov_governor(request: pytest.FixtureRequest) -> Governor:
    """The governor of the session. Skips the test when the session is not governed."""
    governed = request.config.stash.get(_KEY, None)
    if governed is None:
        pytest.skip("needs pytest --lgov-policy FILE")
    return governed.process.governor


@pytest.fixture
def lgov_decisions(request: pytest.FixtureRequest, lgov_governor: Governor) -> list[ObservedDecision]:
    """The decisions of this test so far."""
    return request.config.stash[_KEY].decisions


def _stop(config: pytest.Config, reason: str) -> NoReturn:
    """Ends the process at once: pytest would take an exception out of a test module's import for an error of that module."""
    from lgov_core.process.governed import end_process, say

    def show_output() -> None:
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)

    end_process(show_output, lambda: say(f"stopped: {reason}"))


def _cannot(reason: str) -> NoReturn:
    from lgov_core.process.governed import CANNOT_GOVERN

    pytest.exit(f"lgov: the agents of these tests cannot be governed: {reason}", returncode=CANNOT_GOVERN)
