"""`shell` with ``unknown: allow`` is permitted only in a box."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from lgov_core.errors import PolicyFileError
from lgov_core.policies import load_policies, load_policy_file
from lgov_core.policies.loader import fresh_policies
from lgov_core.policies.reload import ReloadingPolicySet
from tests.confine.conftest import LGOV, Workspace

ALLOWS = "version: 1\nrules:\n  - use: shell\n    with: {unknown: allow}\n"
CONFINED = f"{ALLOWS}confine: {{preset: workspace}}\n"
LOAD = "from lgov_core import load_policy_file; print(len(load_policy_file('policy.yaml').rules))"


def lgov(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LGOV, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("text", [ALLOWS, CONFINED])
def test_outside_no_file_that_allows_it_is_loaded(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    for load in (load_policy_file, fresh_policies, ReloadingPolicySet):
        with pytest.raises(PolicyFileError, match=r"policy\.yaml:4: .*only in a box") as raised:
            load(path)
        assert "lgov run --confine" in str(raised.value.hint)
    with pytest.raises(PolicyFileError, match="only in a box"):
        load_policies(yaml.safe_load(text))


@pytest.mark.parametrize("unknown", ["deny", "escalate"])
def test_the_other_values_need_no_box(unknown: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(ALLOWS.replace("unknown: allow", f"unknown: {unknown}"))
    assert len(load_policy_file(tmp_path / "policy.yaml").rules) == 1


def test_a_program_outside_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(CONFINED)
    (tmp_path / "program.py").write_text("open('ran', 'w')")
    done = lgov("run", "--", "python", "program.py", folder=tmp_path)
    assert done.returncode == 78
    assert "only in a box" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_check_accepts_it_in_a_file_with_a_box(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(ALLOWS)
    refused = lgov("policy", "check", "policy.yaml", folder=tmp_path)
    assert refused.returncode == 1
    assert "confine: {preset: workspace}" in refused.stdout + refused.stderr
    path.write_text(CONFINED)
    assert lgov("policy", "check", "policy.yaml", folder=tmp_path).returncode == 0


def test_in_a_box_every_process_may_load_it(workspace: Workspace) -> None:
    (workspace.folder / "policy.yaml").write_text(CONFINED)
    ran = workspace.run(f"import subprocess, sys\n{LOAD}\nsubprocess.run([sys.executable, '-c', {LOAD!r}], check=True)")
    assert (ran.status, ran.output) == (0, "1\n1\n"), ran.errors


def test_nothing_in_a_box_can_remove_its_mark(workspace: Workspace) -> None:
    ran = workspace.run("import os\ntry:\n    os.rename('/.lgov-box', '/other')\nexcept OSError:\n    print('refused')")
    assert ran.output == "refused\n", ran.errors
