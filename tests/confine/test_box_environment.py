"""Which variables of the caller's environment go into a box."""

from __future__ import annotations

import pytest

from tests.confine.conftest import POLICY, Workspace

#: Prints which of the variables the program, its child and the files of all processes in the box show.
LOOK = """
import os, subprocess
shown = {*os.environ, *subprocess.run(["env", "-0"], capture_output=True, text=True).stdout.replace("\\0", "\\n").split("\\n")}
for process in filter(str.isdigit, os.listdir("/proc")):
    shown |= {*open(f"/proc/{process}/environ").read().split("\\0")}
print(*sorted({one.partition("=")[0] for one in shown} & {"APP_MODE", "APP_KEY", "DEPLOY_TOKEN", "OPENAI_BASE_URL"}))
"""


@pytest.mark.parametrize(
    ("confine", "goes_in"),
    [
        ("{preset: workspace}", "OPENAI_BASE_URL"),
        ("{preset: workspace, environment: ['*']}", "APP_KEY APP_MODE DEPLOY_TOKEN OPENAI_BASE_URL"),
        ("{preset: workspace, environment: []}", "OPENAI_BASE_URL"),
        ("{preset: workspace, environment: ['APP_*']}", "APP_KEY APP_MODE OPENAI_BASE_URL"),
        ("{preset: no-network, environment: [APP_MODE]}", "APP_MODE OPENAI_BASE_URL"),
        ("{preset: offline-tests}", "OPENAI_BASE_URL"),
    ],
)
def test_the_rules_say_which_variables_go_in(confine: str, goes_in: str, workspace: Workspace) -> None:
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{confine}\n")
    given = {"APP_MODE": "1", "APP_KEY": "2", "DEPLOY_TOKEN": "3", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    ran = workspace.run(LOOK, env=given)
    assert ran.output == f"{goes_in}\n", ran.errors
