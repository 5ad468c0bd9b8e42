"""Policies that an installed package adds to what a file may use: real entry points on the path."""

from __future__ import annotations

import re
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Action, Effect, Governor, Point, load_policy_file
from lgov_core.errors import PluginError, PolicyFileError
from lgov_core.policies import PolicySet

PAGE = Path(__file__).parents[2] / "docs/reference/policies.md"

OFFICE = """
    from lgov_core import hookimpl
    from lgov_core.errors import PolicyError
    from lgov_core.policies import BoundedPolicy

    class Closed(BoundedPolicy):
        def __init__(self, *, until, name="office"):
            if not isinstance(until, int):
                raise PolicyError(f"{name}: until is {until!r}", hint="write an hour")
            self.name, self.until = name, until

        def judge(self, action):
            return self.deny("closed", f"Closed until {self.until}.")

    @hookimpl
    def lgov_policies():
        return {"NAME": Closed}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(module: str, source: str) -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[lgov]\n{module} = {module}\n")

    return installed


def policy_file(folder: Path, use: str, options: str = "{until: 9}") -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\nrules:\n  - name: desk\n    use: {use}\n    with: {options}\n")
    return path


def test_a_file_uses_the_policy_of_a_package(install, tmp_path: Path) -> None:
    install("lgov_office_a", OFFICE.replace("NAME", "office_hours"))
    decision = load_policy_file(policy_file(tmp_path, "office_hours")).judge(Action(Point.PRE_TOOL_CALL, "pay"))
    assert (decision.policy, decision.rule, decision.reason) == ("desk", "closed", "Closed until 9.")


def test_its_options_are_checked_with_their_line(install, tmp_path: Path) -> None:
    install("lgov_office_b", OFFICE.replace("NAME", "office_hours"))
    with pytest.raises(PolicyFileError) as wrong:
        load_policy_file(policy_file(tmp_path, "office_hours", "{until: late}"))
    assert (wrong.value.line, wrong.value.hint) == (5, "write an hour")
    with pytest.raises(PolicyFileError, match="there is no option 'til'"):
        load_policy_file(policy_file(tmp_path, "office_hours", "{til: 9}"))


@pytest.mark.parametrize(
    ("number", "source", "said"),
    [
        (0, OFFICE.replace("NAME", "sql"), "there is a policy 'sql' already"),
        (1, OFFICE.replace('{"NAME": Closed}', "{1: Closed}"), "is not a policy by name"),
        (2, OFFICE.replace('{"NAME": Closed}', "1 / 0"), "lgov_policies gives no names: ZeroDivisionError"),
        (3, "import no_such_module", "could not be loaded"),
    ],
)
def test_a_plugin_that_makes_no_sense_stops_the_loading(
    install, tmp_path: Path, number: int, source: str, said: str
) -> None:
    install(f"lgov_office_c{number}", source)  # Python keeps a module that it has imported
    file = policy_file(tmp_path, "office_hours")
    with pytest.raises(PluginError, match=said):
        load_policy_file(file)


def test_two_plugins_may_not_give_the_same_name(install, tmp_path: Path) -> None:
    install("lgov_office_d", OFFICE.replace("NAME", "office_hours"))
    install("lgov_office_e", OFFICE.replace("NAME", "office_hours"))
    with pytest.raises(PluginError, match="already"):
        load_policy_file(policy_file(tmp_path, "office_hours"))


def test_without_the_package_the_name_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="there is no policy 'office_hours'"):
        load_policy_file(policy_file(tmp_path, "office_hours"))


def test_a_policy_written_as_the_reference_shows_it_is_not_waited_for() -> None:
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0], names)
    office_hours = names["lgov_policies"]()["office_hours"]
    is_over = threading.Event()

    class AsksTheOffice(office_hours):  # pyright: ignore[reportUntypedBaseClass]
        def judge(self, action: Action) -> Any:
            is_over.wait(20)
            return super().judge(action)

    digests = {PolicySet([office_hours(opens=hour, closes=24)]).digest for hour in (0, 1)}
    assert len(digests) == 2, "its options are part of the policies"
    governor = Governor(PolicySet([AsksTheOffice(opens=0, closes=24)]), timeout_s=0.1)
    decision = governor.decide(Action(Point.PRE_TOOL_CALL, "pay"))
    is_over.set()
    governor.close()
    assert (decision.effect, decision.rule) == (Effect.DENY, "policy-timeout")
