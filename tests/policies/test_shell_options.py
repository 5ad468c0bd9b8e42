"""ShellPolicy: what it is made with, its rules and reasons, and calls it judges."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import yaml

from lgov_core.errors import PolicyError
from lgov_core.policies import ShellPolicy, load_policies
from lgov_core.policies.confinement import made_for_box
from lgov_core.policies.shell import MAX_CHARACTERS
from lgov_core.policies.shell.kinds import default_table
from lgov_core.policies.shell.table import PATH, data
from lgov_core.types import Action, Effect, Point, Severity

PROJECT = {"cwd": "/srv/project", "writable": ["/srv/project", "/tmp"]}


def call(**arguments: object) -> Action:
    return Action(Point.PRE_TOOL_CALL, "bash", arguments=arguments)


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("frobnicate", "shell-unknown"),
        ("ls --frobnicate", "shell-unknown"),
        ("git frobnicate", "shell-code"),
        ("python -c 'import os; os.system(1)'", "shell-code"),
        ("sqlite3 a.db 'drop table t'", "shell-sql"),
        ("ls 'x", "shell-unparsable"),
        ("$1 x", "shell-unclear"),
        ("cat ~/.ssh/id_rsa", "shell-secret"),
        ("echo $GITHUB_TOKEN", "shell-secret"),
        ("echo x > /etc/x", "shell-write"),
        ("rm -rf src", "shell-delete"),
        ("curl -d x https://a.example", "shell-sends"),
        ("LD_PRELOAD=x ls", "shell-environment"),
        ("/tmp/x.sh", "shell-code"),
        ("kill 1", "shell-dangerous"),
        ("(" * 5000 + "ls" + ")" * 5000, "shell-too-deep"),
        ("echo " + "a" * MAX_CHARACTERS, "shell-too-long"),
    ],
)
def test_each_denial_has_its_rule(command: str, rule: str) -> None:
    assert ShellPolicy(**PROJECT).judge_command(command).rule == rule


def test_severity_follows_the_rule() -> None:
    policy = ShellPolicy(**PROJECT)
    assert policy.judge_command("rm -rf /").severity is Severity.CRITICAL
    assert policy.judge_command("echo x > /etc/x").severity is Severity.HIGH
    assert policy.judge_command("frobnicate").severity is Severity.MEDIUM


def test_unknown_says_what_happens_to_the_unknown() -> None:
    texts = ["frobnicate --all", "ls --frobnicate", "python -c 'import os; os.getcwd()'"]
    for unknown, effect in (("deny", Effect.DENY), ("escalate", Effect.ESCALATE), ("allow", Effect.ALLOW)):
        policy = ShellPolicy(unknown=unknown, **PROJECT)  # type: ignore[arg-type]
        assert [policy.judge_command(text).effect for text in texts] == [effect] * 3


@pytest.mark.parametrize("command", ["frobnicate ~/.ssh/id_rsa", "frobnicate; rm -rf /", "cat .env"])
def test_allowing_the_unknown_allows_nothing_else(command: str) -> None:
    assert ShellPolicy(unknown="allow", **PROJECT).judge_command(command).effect is Effect.DENY


def test_a_box_decides_on_what_is_unknown_unless_the_policy_says_otherwise() -> None:
    with made_for_box():
        boxed = ShellPolicy(**PROJECT)
        strict = ShellPolicy(unknown="deny", **PROJECT)
    for text in ("frobnicate --all", "pytest -q", "curl https://a.example", "f() { ls; }; f", "FOO_OPTS=x make"):
        assert not boxed.judge_command(text).blocks, text
        assert strict.judge_command(text).blocks, text
        assert ShellPolicy(**PROJECT).judge_command(text).blocks, text
    assert boxed.judge_command("FOO_OPTS=x make; cat .env").rule == "shell-secret"  # what follows is still judged


def test_commands_as_a_list_take_any_harmless_arguments() -> None:
    policy = ShellPolicy(commands=["frobnicate"], **PROJECT)
    assert not policy.judge_command("frobnicate --all x.txt").blocks
    assert policy.judge_command("frobnicate ~/.ssh/id_rsa").blocks
    for word in (
        "--out=/etc/x",
        "@/etc/shadow",
        "a,/etc/shadow",
        "a:../../x",
        "/library/x",
        "/usr/../etc/shadow",
        "a/../../x",
    ):
        assert policy.judge_command(f"frobnicate {word}").rule == "shell-write", word
    assert not policy.judge_command("frobnicate /usr/lib/x https://a.example/x a:b").blocks


def test_commands_as_entries_are_read_as_the_table() -> None:
    entry = {"flags": "-v", "values": {"-o --out": "write"}, "args": "read*", "sub": {"run": {"args": "command!"}}}
    policy = ShellPolicy(commands={"frob": entry, "frob2": "frob"}, **PROJECT)
    for text in ("frob run ls", "frob -v --out out.txt run ls", "frob2 run ls"):
        assert not policy.judge_command(text).blocks, text
    for text in ("frob --what run ls", "frob --out /etc/x run ls", "frob run rm -rf /", "frob walk ls"):
        assert policy.judge_command(text).blocks, text


@pytest.mark.parametrize(
    "options",
    [
        {"cwd": ""},
        {"writable": "/tmp"},
        {"writable": ["$HOME"]},
        {"commands": ["a b"]},
        {"commands": {"a/b": {}}},
        {"commands": {"frob": {"flag": "-v"}}},
        {"commands": {"frob": {"args": "no-such-kind"}}},
        {"commands": {"frob": 3}},
        {"unknown": "perhaps"},
        {"code": {"deny": ["make"]}},
        {"code": ["make"]},
        {"egress": {}},
        {"egress": {"domain": ["a.example"]}},
        {"sql": {"mode": "any"}},
        {"sql": {"modes": "guarded"}},
        {"argument": []},
    ],
)
def test_invalid_settings_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        ShellPolicy(**options)  # type: ignore[arg-type]


def test_a_policy_file_gives_every_option(tmp_path: Path) -> None:
    options = {
        "argument": "command",
        "cwd": str(tmp_path),
        "writable": [str(tmp_path)],
        "commands": {"frob": {"args": "write"}},
        "unknown": "escalate",
    }
    made = load_policies({"version": 1, "rules": [{"use": "shell", "with": options}]})
    assert not made.judge(call(command="touch a && frob b")).blocks
    assert made.judge(call(command="frob /etc/x")).effect is Effect.DENY
    assert made.judge(call(command="other")).effect is Effect.ESCALATE


def test_a_list_of_words_is_one_command() -> None:
    policy = ShellPolicy(**PROJECT)
    assert not policy.judge(call(command=["ls", "-la"])).blocks  # type: ignore[union-attr]
    assert not policy.judge(call(command=["echo", "a; rm -rf /"])).blocks  # type: ignore[union-attr]
    assert policy.judge(call(command=["bash", "-c", "rm -rf /"])).blocks  # type: ignore[union-attr]
    for value in (None, 3, [], ["ls", 3], {"a": "b"}):
        assert policy.judge(call(command=value)).rule == "shell-missing"  # type: ignore[union-attr]
    assert policy.judge(call(script="ls")).rule == "shell-missing"  # type: ignore[union-attr]


def test_every_named_argument_is_judged() -> None:
    policy = ShellPolicy(argument=["before", "after"], cwd="/srv")
    assert policy.judge(call(before="ls", after="rm -rf /")).blocks  # type: ignore[union-attr]
    assert not policy.judge(call(before="ls")).blocks  # type: ignore[union-attr]


def test_it_judges_from_many_threads_at_once() -> None:
    policy = ShellPolicy(**PROJECT)
    wrong: list[str] = []

    def work(number: int) -> None:
        for at in range(20):
            harmless, harmful = f"ls file{number}-{at}", f"rm -rf /x{number}-{at}"
            if policy.judge_command(harmless).blocks or not policy.judge_command(harmful).blocks:
                wrong.append(f"{number}-{at}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_every_entry_of_the_table_is_valid() -> None:
    table = default_table()
    waiting = [table.entry(name) for name in table.commands]
    while waiting:
        entry = waiting.pop()
        waiting.extend(sub for name in entry.sub if (sub := table.sub(entry, name)) is not None)
    assert len(table.commands) > 180


def test_the_table_reads_alike_without_the_library_in_c() -> None:
    assert yaml.load(PATH.read_bytes(), yaml.SafeLoader) == data()
