"""Programs that load code or configuration from the folder run it, and are never allowed outside of a box.

Each text is shown to run what the folder holds where its program is installed; the policy judges it everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lgov_core.policies import ShellPolicy

RUN = "touch marker"
BARE = {
    "HEAD": "ref: refs/heads/main\n",
    "objects/x": "",
    "refs/x": "",
    "config": f'[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "{RUN};false"\n',
}
#: By text: the files of the folder.
TEXTS: dict[str, dict[str, str]] = {
    "git status": BARE,
    "git --no-pager diff": BARE,
    "git ls-files -m": BARE,
    "make --help; make": {"Makefile": f"all:\n\t{RUN}\n"},
    "make VAR='$(shell touch marker)'": {"Makefile": "all: ; @echo $(VAR)\n"},
    "make -n": {"Makefile": f"X := $(shell {RUN})\nall:\n"},
    "python3 -m pytest --help": {"conftest.py": "open('marker', 'w')\n"},
    "python3 -m pytest --version": {
        "conftest.py": "open('marker', 'w')\n",
        "pytest.ini": "[pytest]\naddopts = -p conftest\n",
    },
    "python3 -c 'import json'": {"json.py": "open('marker', 'w')\n"},
    "python3 -m json.tool x": {"json.py": "open('marker', 'w')\n"},
    "awk -f x.awk": {"x.awk": 'BEGIN { system("touch marker") }'},
    "sed -f x.sed x.sed": {"x.sed": "w marker\n"},
    "bash x.sh": {"x.sh": RUN},
    "bash < x.sh": {"x.sh": RUN},
    ". ./x.sh": {"x.sh": RUN},
    "./x.sh": {"x.sh": f"#!/bin/sh\n{RUN}\n"},
    "find . -name x.sh -exec sh {} \\;": {"x.sh": RUN},
    "echo x.sh | xargs bash": {"x.sh": RUN},
    "PATH=.:$PATH ls": {"ls": f"#!/bin/sh\n{RUN}\n"},
    "PATH=$PWD:$PATH ls": {"ls": f"#!/bin/sh\n{RUN}\n"},
    "sqlite3 a.db < x.sql": {"x.sql": f".shell {RUN}\n"},
    "sqlite3 -init x.sql a.db .tables": {"x.sql": f".shell {RUN}\n"},
    "node x.js": {"x.js": "require('fs').writeFileSync('marker', '')"},
    "node -p 'require(\"./x.js\")'": {"x.js": "require('fs').writeFileSync('marker', '')"},
    "perl x.pl": {"x.pl": "open(F, '>marker')"},
    "jq -n -L . 'import \"m\" as m; m::f'": {"m.jq": "def f: 1;"},
    "eslint .": {".eslintrc.js": "require('fs').writeFileSync('marker', '')"},
    "cmake .": {"CMakeLists.txt": f"execute_process(COMMAND {RUN})\n"},
    "celery --app x inspect ping": {"x.py": "open('marker', 'w')\n"},
    "tox --showconfig": {"tox.ini": "[tox]\n"},
    "npm test": {"package.json": f'{{"scripts": {{"test": "{RUN}"}}}}'},
    "npx eslint": {"node_modules/.bin/eslint": f"#!/bin/sh\n{RUN}\n"},
    "vim x": {".vimrc": f"!{RUN}\n"},
}
#: Texts of which nothing shows an effect here: the program is not there, or it only reads further code.
UNSEEN = ("jq", "eslint", "cmake", "celery", "tox", "npm", "npx", "vim", "perl", "python3 -m pytest --version")


@pytest.mark.parametrize("text", TEXTS)
def test_what_runs_the_folders_code_is_never_allowed_outside_of_a_box(text: str, tmp_path: Path) -> None:
    for name, content in TEXTS[text].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    policy = ShellPolicy(cwd=str(tmp_path))
    assert policy.judge_command(text).blocks
    assert policy.judge_command(f"cd {tmp_path} && ls && {text}").blocks
    if not text.startswith(UNSEEN) and shutil.which(text.split()[0].partition("=")[0]) is not None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        subprocess.run(
            ["bash", "--norc", "-c", text],
            cwd=tmp_path,
            env={"PATH": path, "HOME": str(tmp_path / "home")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (tmp_path / "marker").exists()


def test_a_link_to_what_other_programs_run_is_not_made(tmp_path: Path) -> None:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    policy = ShellPolicy(cwd=str(tmp_path))
    for text in (
        "ln -s .git/hooks h",
        "ln -s .git h",
        "ln -s $PWD/.git h",
        "ln -s . h",
        "ln .git/config h",
    ):
        assert policy.judge_command(text).blocks, text
    (tmp_path / "h").symlink_to(".git/hooks")
    for text in ("cp a h/pre-commit", "echo x > h/pre-commit", "mv a h", "tar xf a.tar -C h"):
        assert policy.judge_command(text).blocks, text
