"""Built-in policies: no text of up to 200,000 characters takes one of them more than 256 MB, and a second or, on a machine
with no second to spare, six times what plain prose of that length takes it there."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from lgov_core.policies import BUILTIN_POLICIES
from lgov_core.types import Action, Point

SIZE = 200_000
MEGABYTES, SECONDS, TIMES = 256, 1.0, 6
PROSE = ("The quick brown fox paid 10 EUR to a. " * SIZE)[:SIZE]
#: Pieces that a hostile text repeats, and those among them that hold spaces or line ends.
_PIECES = r"""
a 1 ( ' " ` [ { < \ / . , : ; % & | * ? # - _ = @ + ~ $ é 😀
../ %2e%2e/ %25 /./ // C:\ ~a/ a@a.a @a.a 4111-1111-1111-1111 DE89370400440532013000 +49 192.168.0.1 ::1 [:: xn-- http:// //a@
https://a.example/a?a= a. AKIA sk- ghp_ eyJ. -----BEGIN =: &#x41; \x41 \u0041 0x 1e9 a,b a:1, {a: $a$a <( $$ a.a. a[ ::int
${a:- $( $(( {a,b} {1..9} a=$a$a; x=( [[ ;; && || $'\x41 'a'b x'41 E'\ <a/> a- --a 'a'|| [1, {"a":
"""
_LINES = """
ls;
ls |
if a; then
case a in a)
f() {
for i in a b; do
timeout 1
env a=a
cd a;
bash -c '
select
(select
select 1 union
select a from
a and
not
case when
with a as (
in (1,
join a
/*
a between 1 and
cast(a as
; select 1
word
Pay 10 EUR to a.
a b@c.example
123 456 789
<a href='
""".strip()
UNITS = [
    *_PIECES.split(),
    *(f"{line} " for line in _LINES.splitlines()),
    *(
        " ",
        "\n",
        "\t",
        "\u200b",
        "\u202e",
        "\ud83d",
        "<<E\n",
        "cat <<E\na\nE\n",
        "-- a\n",
        "a" * 999 + " ",
        "\n" * 9 + "a",
    ),
]
CHAINS = {
    "values that double": "a0=aaaaaaaaaa;" + "".join(f"a{n + 1}=$a{n}$a{n};" for n in range(40)) + "echo $a40",
    "values in a loop": "a=b; for i in 1 2 3 4 5 6 7 8; do " * 6 + "a=$a$a$a$a; " + "done; " * 6 + "echo $a",
    "values that are appended": "a=aaaa; " + "a+=$a$a$a$a; " * 200 + "echo $a",
    "prefixes that double": "a=aaaa; " + "a=$a$a ls; a=$a$a; " * 60,
    "arguments that double": "f() { set -- $1$1 $1$1; f $1$1; }; f aaaaaaaaaaaaaaa",
    "fields that double": "a='a a a a'; " + 'a="$a $a"; ' * 30 + "echo $a",
    "here-documents that double": "a=aaaaaa; " + "read a <<E\n$a$a$a$a\nE\n" * 30 + "cat $a",
    "printed values": "a=aaaaaa; " + 'a=$(echo "$a$a$a$a"); ' * 30 + "ls $a",
    "input words": "a=aaaaaa; " + 'a=$(xargs echo <<< "$a $a $a $a"); ' * 30 + "ls $a",
    "readings": "for a in " + "a b c d e f g h " * 6 + "; do b=$a$a; c=$b$b; d=$c$c; ls $a$b $c$d; done",
    "braces": "ls " + "{a,b}{c,d}" * 8 + "; " + "x={a,b,c}{a,b,c}; ls $x" * 20,
    "braces of long words": "ls {" + "a" * 9000 + "," * 60 + "}",
    "replaced words": "xargs -I{} echo " + "{}{}{}{}{}{}{}{} " * 500 + "<<< " + "a" * 5000,
    "found files": "find " + "a " * 500 + "-exec echo " + "{} " * 3000 + "\\;",
    "wide values": "a=😀😀😀😀😀😀😀😀; "
    + "a=$a$a; " * 11
    + "".join(f"b{n}=${{a}}{n}; " for n in range(900))
    + "ls $b1",
    "a decoded path": "%" + "25" * 90_000 + "2e",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "allow": {},
    "deny": {},
    "agent_os": {
        "documents": {
            "version": "1",
            "name": "a",
            "rules": [
                {
                    "name": "a",
                    "condition": {"field": "args.command", "operator": "contains", "value": "x"},
                    "action": "deny",
                }
            ],
        }
    },
    "approval": {"tools": ["pay"]},
    "box": {},
    "cost": {"max_cost_usd": 1.0},
    "egress": {"argument": ["command", "text"], "domains": ["*.example.org"], "resolve": False},
    "flow": {"allow": ["user", "fields", "pointed"], "tools": {"t": {"holds": "secret"}}, "discloses": "public"},
    "loop": {"max_repeats": 3},
    "order": {
        "after": {"tool": "get", "same": "command"},
        "never_after": {"tool": "drop"},
        "at_most": 1_000,
        "per": "command",
    },
    "path": {"argument": ["command", "text"], "roots": ["/srv/project"], "cwd": "/srv/project"},
    "pii": {"action": "redact"},
    "pinned": {},
    "provenance": {},
    "rate": {"max_calls": 1_000_000, "per_seconds": 1.0},
    "secrets": {"action": "redact"},
    "shell": {"argument": ["command", "text"], "cwd": "/srv/project"},
    "sql": {"argument": ["command", "text"], "dialect": "postgres"},
    "tool": {
        "allow": ["*"],
        "schemas": {"t": {"type": "object", "properties": {"command": {"pattern": "^[a-z ]*$", "format": "date"}}}},
    },
}


def texts(use: str) -> Iterator[tuple[str, str]]:
    """The hostile texts with their names: pieces repeated to 200,000 characters and, for parsers, to 19,000; and chains."""
    slow = use in ("pii", "secrets", "provenance", "flow")  # a tenth of a second each: every fourth piece
    for unit in UNITS[:: 4 if slow else 1]:
        for size in (SIZE,) if slow else (SIZE, 19_000):
            yield f"{unit!r} to {size}", (unit * size)[:size]
    for name, text in CHAINS.items():
        yield name, text[:SIZE]


def _seconds(policy: Any, action: Action) -> float:
    start = time.process_time()
    policy.judge(action)
    return time.process_time() - start


def measure(use: str) -> list[str]:
    """The texts that take one policy too long or too much memory; in a process of its own, whose peak is its alone."""
    policy = BUILTIN_POLICIES[use](**OPTIONS[use], name="p")
    actions = [
        Action(Point.PRE_TOOL_CALL, "t", arguments={"command": "select 1"}),
        Action(Point.INPUT, "t", text="hello"),
    ]
    for action in actions:  # loads what it needs
        policy.judge(action)
    before = peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong: list[str] = []
    for name, text in texts(use):
        seconds = 0.0
        for action in (replace(actions[0], arguments={"command": text}), replace(actions[1], text=text)):
            took = _seconds(policy, action)
            if took > SECONDS:  # on a busy machine; measured again beside prose, by policies that remember nothing
                took = min(took, _seconds(BUILTIN_POLICIES[use](**OPTIONS[use], name="p"), action))
                prose = replace(action, text=PROSE) if action.text else replace(action, arguments={"command": PROSE})
                took = 0.0 if took <= TIMES * _seconds(BUILTIN_POLICIES[use](**OPTIONS[use], name="p"), prose) else took
            seconds = max(seconds, took)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if seconds > SECONDS or (now > peak and now - before > MEGABYTES * 1024):
            wrong.append(f"{name}: {seconds:.2f} s, {(now - before) // 1024} MB")
        peak = now
    return wrong


def loaded_late(use: str) -> list[str]:
    """The packages and modules of others that a rule imports when it judges; in a process of its own."""
    policy = BUILTIN_POLICIES[use](**OPTIONS[use], name="p")
    import_module("yaml")  # what reads policy files
    before = set(sys.modules)
    for text in (
        "select a from b",
        "ls -l /srv/project/a | grep x",
        "http://a.example/x?a=b &#x41; %41 ada@example.org",
    ):
        for point in (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL, Point.INPUT):
            policy.judge(Action(point, "t", arguments={"command": text, "text": text}, text=text))
    return sorted({name.partition(".")[0] for name in set(sys.modules) - before} - before)


@pytest.mark.parametrize("use", [use for use in BUILTIN_POLICIES if use != "agent_os"])
def test_a_rule_imports_nothing_when_it_judges_since_the_program_could_have_put_it_there(use: str) -> None:
    code = f"from tests.policies.test_policies_bounded import loaded_late; print(loaded_late({use!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("use", BUILTIN_POLICIES)
def test_no_text_takes_much_time_or_memory(use: str) -> None:
    if use == "agent_os" and importlib.util.find_spec("agent_os") is None:
        pytest.skip("agent-os is not installed")
    code = f"import json; from tests.policies.test_policies_bounded import measure; print(json.dumps(measure({use!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
