"""Programs that load code or configuration from the folder run it, and are never allowed outside of a box.

Each text is shown to run what the folder holds where its program is installed; the policy judges it everywhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
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


def made(folder: Path, **links: str) -> ShellPolicy:
    """A project with a note outside of it, and with links."""
    (folder / "outside").mkdir()
    (folder / "outside" / "note.txt").write_text("a note")
    (folder / "project" / "sub" / "deep").mkdir(parents=True)
    for name, target in links.items():
        (folder / "project" / "sub" / name).symlink_to(target)
    return ShellPolicy(cwd=str(folder / "project"), writable=[str(folder / "project")])


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("cat sub/top/../outside/note.txt", False),
        ("cd sub/top && echo x > ../outside/note.txt", False),
        ("find sub/top/.. -name note.txt -exec cat {} +", False),
        ("cd sub/deep && cat ../../README.md", True),
        ("cat sub/deep/../a.txt", True),
        ("find sub -name 'n*' -exec cat {} +", False),
        ("find sub -name 'n*' | xargs cat", False),
        ("find sub -name 'n*' -exec tee {} + < README.md", False),
        ("for f in $(find sub -name 'n*'); do cat $f; done", False),
        ("find sub -name '*.log' -delete", True),
        ("find sub -name '*.md' -exec cat {} +", True),
    ],
)
def test_a_path_leads_where_the_kernel_goes_behind_a_link(text: str, allowed: bool, tmp_path: Path) -> None:
    policy = made(tmp_path, **{"top": "../..", "note": "../../outside/note.txt", "x.log": "../../outside/note.txt"})
    assert policy.judge_command(text).blocks is not allowed


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p a/b && cd a/b && ln -s ../../outside q && cd ../.. && mv a/b d && cat d/q/note.txt",
        "mkdir -p a/b && cd a/b && ln -s ../../outside q && cd ../.. && cp -r a/b d && echo x > d/q/note.txt",
        "mkdir -p a/b && cd a/b && ln -s ../../outside q && mv q ../../q",
        "mkdir -p a/b/c && ln -s $PWD/sub a/b/c/q && cat a/b/c/q/../../outside/note.txt",
        "cp -r sub a && cat a/up/../../outside/note.txt",
        "ln -s sub s && cat s/note.txt",
        "ln -s $PWD/sub s && ln -s s t && head t/note.txt",
        "ln -s note.txt sub/q && cat sub/q",
        "ln -s sub s && echo x > s/note.txt",
    ],
)
def test_a_link_that_a_text_makes_is_not_carried_elsewhere(text: str, tmp_path: Path) -> None:
    policy = made(tmp_path, up=".", note="../../outside/note.txt", **{"note.txt": "../../outside/note.txt"})
    assert policy.judge_command(text).blocks
    assert not policy.judge_command("mkdir -p a && ln -s $PWD/sub/a.txt a/q && cat a/q && mv sub/b.txt c.txt").blocks


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize(
    ("members", "allowed"),
    [
        ({"lib.so": "lib.so.1", "lib.so.1": None}, True),
        ({"a/lib.so": "../b/lib.so.1", "b/lib.so.1": None}, True),
        ({"out": "../../outside"}, False),
        ({"out": "/etc"}, False),
        ({"env": ".env"}, False),
        ({"a": "b/../../c"}, False),
        ({"a": "b", "a/x": None}, False),
        ({"-r": None}, False),
    ],
)
def test_an_archive_brings_only_links_that_stay_in_its_folder(
    members: dict[str, str | None], allowed: bool, kind: str, tmp_path: Path
) -> None:
    policy = made(tmp_path)
    folder = tmp_path / "project"
    if kind == "tar":
        with tarfile.open(folder / "a.tar", "w") as tar:
            for name, target in members.items():
                member = tarfile.TarInfo(name)
                member.type, member.linkname = (tarfile.REGTYPE, "") if target is None else (tarfile.SYMTYPE, target)
                tar.addfile(member)
    else:
        with zipfile.ZipFile(folder / "a.zip", "w") as packed:
            for name, target in members.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = (stat.S_IFREG if target is None else stat.S_IFLNK) << 16
                packed.writestr(entry, target or "")
    text = f"mkdir n && {'tar xf a.tar -C n' if kind == 'tar' else 'unzip -q a.zip -d n'}"
    assert policy.judge_command(text).blocks is not allowed
    climbs = policy.judge_command(f"{text} && cat n/up/../../outside/note.txt")
    assert climbs.blocks, "what it brings may be a link"


def test_what_a_text_unpacks_is_moved_only_where_it_holds_no_links(tmp_path: Path) -> None:
    policy = made(tmp_path)
    for links, blocks in ((True, True), (False, False)):
        with tarfile.open(tmp_path / "project" / "a.tar", "w") as tar:
            member = tarfile.TarInfo("a/l")
            member.type, member.linkname = (tarfile.SYMTYPE, "../outside") if links else (tarfile.REGTYPE, "")
            tar.addfile(member)
        assert not policy.judge_command("mkdir n && tar xf a.tar -C n").blocks
        assert policy.judge_command("mkdir n && tar xf a.tar -C n && mv n/a/l l").blocks is blocks


def header(name: bytes, kind: bytes, magic: bytes, prefix: bytes = b"") -> bytes:
    """A member of a tar archive, which is empty or a link to a folder outside."""
    fields = (name.ljust(100, b"\0"), b"0000644\0" * 3, b"0" * 11 + b"\0", b"0" * 11 + b"\0")
    before = b"".join(fields)
    after = kind + b"../../outside".ljust(100, b"\0") + magic.ljust(88, b"\0") + prefix.ljust(167, b"\0")
    total = sum(before + b" " * 8 + after)
    return before + b"%06o\0 " % total + after


@pytest.mark.parametrize(
    ("member", "blocks"),
    [
        (header(b"a", b"0", b"ustar\x0000"), False),
        (header(b"a", b"0", b"ustar  \0"), False),
        (header(b"a", b"0", b"ustar  \0", b"b"), True),
        (header(b"a", b"0", b""), True),
        (header(b"a", b"\0", b"ustar\x0000"), True),
        (header(b"a/", b"0", b"ustar\x0000"), True),
    ],
    ids=["posix", "gnu", "gnu with a prefix", "old", "old type", "a file like a folder"],
)
def test_an_archive_is_of_a_form_that_every_program_reads_alike(member: bytes, blocks: bool, tmp_path: Path) -> None:
    policy = made(tmp_path)
    assert len(member) == 512
    (tmp_path / "project" / "a.tar").write_bytes(member + b"\0" * 1024)
    assert policy.judge_command("mkdir n && tar xf a.tar -C n").blocks is blocks


def test_an_archive_is_not_changed_under_another_of_its_names(tmp_path: Path) -> None:
    policy = made(tmp_path)
    (tmp_path / "project" / "a.tar").write_bytes(header(b"a", b"0", b"ustar\x0000") + b"\0" * 1024)
    (tmp_path / "project" / "h").hardlink_to(tmp_path / "project" / "a.tar")
    assert policy.judge_command("cp b.tar h && mkdir n && tar xf a.tar -C n").blocks
    assert not policy.judge_command("cp b.tar g && mkdir n && tar xf a.tar -C n").blocks


def test_an_archive_is_what_its_program_unpacks(tmp_path: Path) -> None:
    policy = made(tmp_path)
    folder = tmp_path / "project"
    with zipfile.ZipFile(folder / "a.zip", "w") as packed:
        packed.writestr("a", "")
    assert not policy.judge_command("mkdir n && unzip -q a.zip -d n").blocks
    for text in ("tar xf a.zip -C n", "tar xzf a.zip -C n", "tar --zstd -xf a.zip -C n"):
        assert policy.judge_command(f"mkdir n && {text}").blocks
    with zipfile.ZipFile(folder / "a.zip", "w") as packed:
        entry = zipfile.ZipInfo("a")
        entry.extra = b"up\x06\0\x01\0\0\0\0l"
        packed.writestr(entry, "")
    assert policy.judge_command("mkdir n && unzip -q a.zip -d n").blocks, "it has a second name"


def test_a_hard_link_in_an_archive_names_no_secret(tmp_path: Path) -> None:
    policy = made(tmp_path)
    for name, blocks in (("a.txt", False), (".env", True)):
        with tarfile.open(tmp_path / "project" / "a.tar", "w") as tar:
            member = tarfile.TarInfo("x")
            member.type, member.linkname = tarfile.LNKTYPE, name
            tar.addfile(member)
        assert policy.judge_command("mkdir n && tar xf a.tar -C n").blocks is blocks


def test_a_folder_whose_name_makes_its_files_secret_keeps_it(tmp_path: Path) -> None:
    policy = made(tmp_path)
    folder = tmp_path / "project"
    for name in (".gradle/gradle.properties", "app/gradle.properties"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert policy.judge_command("mv .gradle g").blocks
    assert policy.judge_command("cp -r .gradle g").blocks
    assert not policy.judge_command("mv app g").blocks


@pytest.mark.parametrize(
    "text",
    [
        "cat .en[[:alpha:]]",
        "cat .en[]v]",
        'cat .en["v]"]',
        "echo x > policy.yam[[=l=]]",
        "find . -name '[[:punct:]]env' -exec cat {} +",
        "find . -name '\\.e\\nv' -exec cat {} +",
        "PATH=//srv/project/bin:/usr/bin; ls",
        "PATH=/./srv/project/bin:/usr/bin; ls",
        "echo .env > x && strings @x",
        "nm @x",
        "gunzip policy.yaml-gz",
        "IFS=x read -r f <<< '.envx'; cat $f",
        "mkdir e && diff e .",
        "tar cf - -C .ssh id_rsa",
        "find . -name config -exec grep -r K {} +",
        "echo v | xargs -I@ -I_ cat .en_",
        "echo .env | xargs -I{} -L1 cat",
        "cat store.p$((10 + 2))",
        "cat id_ed2{5519..5519}",
        "x=1; : $((x++)); cat store.p$x",
        "cat sub/$(basename .env)",
        "mv sub s && grep -r K s",
        "ln sub/up m && echo x > m/y",
        "ln -s ../outside z? && cat z?",
        "gzip -k a.tar && tar xf a.tar.gz -C n",
        "sed -i 3d pyproject.toml",
        "mkdir -p ~/../x",
        "git grep --untracked KEY",
    ],
)
def test_what_names_a_secret_or_what_governs_in_another_way_is_denied(text: str, tmp_path: Path) -> None:
    policy = made(tmp_path, up="..")
    for name in (".env", "config/credentials.json", "sub/.env", "pyproject.toml", "a.tar"):
        (tmp_path / "project" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "project" / name).write_text("[tool]\n")
    assert policy.judge_command(text).blocks


def test_numbers_and_separators_are_read_as_before(tmp_path: Path) -> None:
    made(tmp_path)
    policy = ShellPolicy(cwd=str(tmp_path / "project"))
    for text in (
        "head -n $((2 + 3)) README.md",
        "for i in {1..3}; do echo $i > out_$i.txt; done",
        "while IFS=: read -r name rest; do echo $name; done < README.md",
        "[ $(wc -l < README.md) -gt 3 ] && sed -n 1,5p README.md",
        "diff <(sort a.txt) <(sort b.txt)",
        "d=$(mktemp -d) && cp sub/a.txt $d/ && ls $d && rm -rf $d",
        "cp -r sub copied && cat copied/a.txt && rm copied/a.txt",
        "seq 3 | xargs -I{} touch part_{}.txt",
    ):
        assert not policy.judge_command(text).blocks, text


def test_a_wildcard_does_not_become_an_option(tmp_path: Path) -> None:
    policy = made(tmp_path)
    assert not policy.judge_command("grep x *").blocks
    assert policy.judge_command("touch -- -r").blocks
    (tmp_path / "project" / "-r").touch()
    assert policy.judge_command("grep x *").blocks
    assert not policy.judge_command("grep x ./*").blocks
    assert not policy.judge_command("grep -- x *").blocks


def test_a_program_of_the_owner_is_not_given_what_governs(tmp_path: Path) -> None:
    folder = str(tmp_path)
    policy = ShellPolicy(cwd=folder, writable=[folder], code={"allow": ["pytest"]}, commands=["mytool"])
    for word in ("policy.yaml", "--out=lgov.toml", "-olgov.toml", ".lgov/audit.db", "--out=.git/hooks/x", "*"):
        assert policy.judge_command(f"mytool {word}").blocks
        assert policy.judge_command(f"pytest {word}").blocks
    assert not policy.judge_command("mytool --out=report.xml -c pyproject.toml src/*.py").blocks
    assert not policy.judge_command("pytest -q tests/test_a.py -k 'a and not b'").blocks


def test_a_repository_whose_hook_git_status_runs_is_not_read(tmp_path: Path) -> None:
    policy = ShellPolicy(cwd=str(tmp_path))
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "config").write_text("[core]\n\tbare = false\n")
    assert not policy.judge_command("git status").blocks
    (tmp_path / ".git" / "hooks" / "post-index-change").touch()
    assert policy.judge_command("git status").blocks


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
