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


SEARCHES = {
    "grep -rn KEY .": False,
    "grep -rn KEY": False,
    "grep -rn KEY src": True,
    "grep -rn --include='*.py' KEY .": True,
    "grep -rn --include='*' KEY .": False,
    "grep -rn --exclude=.env KEY .": True,
    "grep -rn --exclude=.env --include='.*' KEY .": False,
    "grep -rn --exclude='*.py' --include='*.md' KEY .": False,
    "grep -rn --exclude-dir=app KEY .": True,
    "rg KEY": True,
    "rg --hidden KEY": False,
    "rg -uu KEY": False,
    "rg -g '*' KEY": False,
    "rg -g '*.py' --hidden KEY": True,
    "rg -g '*.py' -g '!.env' --hidden KEY": True,
    "rg -t py --hidden KEY": True,
    "find . -type f -exec cat {} +": False,
    "find . -name '*.py' -exec cat {} +": True,
    "find . -type f -print0 | xargs -0 grep KEY": False,
    "find src -type f | xargs grep KEY": True,
    "cat app/.??*": False,
    "cat app/*": True,
    "diff -rN app src": False,
    "tar czf x.tgz .": False,
    "tar czf x.tgz src": True,
    "zip -r x.zip app": False,
    "ls src | xargs cat": True,
}


@pytest.mark.parametrize("text", SEARCHES)
def test_a_search_reads_no_secret_below_its_folder(text: str, tmp_path: Path) -> None:
    for name in ("app/.env", "app/main.py", "src/main.py", "src/sub/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("KEY = s3cr3t\n")
    policy = ShellPolicy(cwd=str(tmp_path))
    assert policy.judge_command(text).blocks != SEARCHES[text]
    (tmp_path / "app" / ".env").unlink()
    assert not policy.judge_command(text).blocks or "??" in text or "include='.*'" in text
    program = shutil.which(text.split()[0])
    if program is not None and not SEARCHES[text] and "x." not in text:  # it does show the secret
        (tmp_path / "app" / ".env").write_text("KEY = other\n")
        shown = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, timeout=20, check=False)
        assert b"other" in shown.stdout


def test_a_tree_that_is_too_large_to_look_at_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgov_core.policies.shell.folder.MAX_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"{number}.py").write_text("")
    (tmp_path / "node_modules").mkdir()
    policy = ShellPolicy(cwd=str(tmp_path))
    assert "name a smaller folder" in policy.judge_command("grep -rn KEY .").reason
    assert not policy.judge_command("grep -rn KEY node_modules").blocks
    assert policy.judge_command("mkdir x && mv x node_modules/x").blocks


def test_names_that_are_split_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a")
    policy = ShellPolicy(cwd=str(tmp_path))
    texts = ("grep -rl a src | xargs sed -i s/a/b/", "find src -type f | xargs cat", "cd src && ls | xargs cat")
    assert not any(policy.judge_command(text).blocks for text in texts)
    assert policy.judge_command(f"mkdir -p 'src/x /etc' && touch 'src/x /etc/shadow' && {texts[1]}").blocks
    (tmp_path / "src" / "x .env").write_text("")
    assert all(policy.judge_command(text).blocks for text in texts)
    assert not policy.judge_command("find src -type f -print0 | xargs -0 cat").blocks


def test_an_archive_is_unpacked_by_what_its_project_file_says(tmp_path: Path) -> None:
    policy = ShellPolicy(cwd=str(tmp_path))
    for text, denied in (("[project]\n", False), ("[tool.lgov]\n", True)):
        (tmp_path / "pyproject.toml").write_text(text)
        for name in ("a.tar", "a.tar.gz", "a.zip"):
            kind = {"a.tar": "tar", "a.zip": "zip"}.get(name, "gztar")
            shutil.make_archive(str(tmp_path / "a"), kind, tmp_path, "pyproject.toml")
            unpack = f"unzip {name} -d x" if kind == "zip" else f"tar xf {name} -C x"
            assert policy.judge_command(unpack).blocks == denied, (name, text)


def test_settings_are_not_brought_into_a_folder_by_a_wildcard(tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "evil" / "a.txt").write_text("a")
    policy = ShellPolicy(cwd=str(tmp_path))
    texts = ("cp evil/* src/", "mv evil/* src/", "rsync -r evil/ src/x", "for f in evil/*; do cp $f src/; done")
    assert not any(policy.judge_command(text).blocks for text in texts)
    (tmp_path / "evil" / "lgov.toml").write_text("timeout_s = 9")
    assert all(policy.judge_command(text).blocks for text in texts)


def test_users_of_the_machine_are_no_options_of_ps(tmp_path: Path) -> None:
    policy = ShellPolicy(cwd=str(tmp_path))
    users = Path("/etc/passwd").read_text().splitlines() if Path("/etc/passwd").exists() else ["root:"]
    for name in (line.partition(":")[0] for line in users):
        assert not policy.judge_command(f"ps -e -u {name} | head").blocks, name
    assert policy.judge_command("ps -u eww").blocks  # without such a user it shows the environment
    assert policy.judge_command("ps -auxe").blocks


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
