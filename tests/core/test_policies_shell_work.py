"""ShellPolicy: what judging takes is bounded, counted in calls and not in time."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from lgov_core.policies import ShellPolicy
from lgov_core.policies.shell import MAX_CHARACTERS
from lgov_core.types import Decision

#: Functions, of Python and of C, that judging one text may call. The longest of plain texts take a third of it.
MOST_CALLS = 3_000_000


def nested(opening: str, closing: str, depth: int, core: str = "ls") -> str:
    return opening * depth + core + closing * depth


def filled(unit: str, most: int = MAX_CHARACTERS - 200) -> str:
    """``unit`` over and over, with a number for each ``@``."""
    return "".join(unit.replace("@", str(at)) for at in range(most // len(unit.replace("@", "0000"))))


FOLDERS = "".join(f"cd d{at}; " for at in range(60))
#: Texts that multiply: levels by words, values by commands, folders by files, stages by stages, searches by names.
HOSTILE = {
    "substitutions": "ls " + nested("$(echo a b c d ", ")", 200),
    "substitutions full of words": nested("echo $(echo " + "a b c d " * 50, " " + "e " * 90 + ")", 20),
    "defaults": "echo " + nested("${a:-", "}", 300, "b"),
    "subshells": nested("( ", " )", 900),
    "a long value": "x='" + "word " * 1800 + "'; " + filled("echo $x; ", 9000),
    "a long value that names a file": "x=" + "a/" * 4500 + "; " + filled('rm "$x"; ', 9000),
    "a program in a value": "x='" + "print(1);" * 400 + "'; " + filled('python3 -c "$x"; ', 15000),
    "a text in a value": "x='" + "ls; " * 1500 + "'; " + filled('bash -c "$x"; ', 10000),
    "values and commands": "for v in " + filled("/tmp/a@ ", 500) + "; do " + filled("cat $v; ", 18000) + " done",
    "values side by side": "for v in " + filled("/tmp/a@ ", 500) + "; do cat " + filled("$v ", 18000) + "; done",
    "folders and files": FOLDERS + "cat " + filled("../w@ ", 18000),
    "folders, moves and removals": FOLDERS + "mv " + filled("a@ ", 9000) + "z; rm " + filled("b@ ", 9000),
    "folders, finds and names": FOLDERS + "cat $(find " + filled("a@ ", 9000) + filled("-name b@ ", 9000) + ")",
    "stages": "find . " + filled("| grep a@ "),
    "listed files": "cat " + filled("w@ ", 6000) + " $(ls " + filled("a@.c ", 12000) + ")",
    "searches that run searches": "find . " + "-exec find . " * 1300 + "-exec cat {} \\;",
    "commands that run commands": "timeout 5 " * 1900 + "ls",
    "braces": "echo " + "a" * 9000 + "{" + "," * 9000 + "}",
    "brackets": "echo " + "[" * 2900,
    "assignments and shells": filled("x@=1; ", 10000) + filled("eval ls; ", 9000),
    "here-documents": "read x; " + filled("cat <<E\na b c\nE\n", 19000),
    "what nothing closes": "ls " + "|a" * 9900 + "|",
}


PLAIN = {
    "lines": filled("echo line @ >> notes.txt\n"),
    "a file": "cat > notes.txt <<'E'\n" + filled("a line @ of it | with (signs) in {it}\n") + "E",
    "files": "cat " + filled("src/module@.py "),
    "substitutions": filled('echo "$(date +%s) $(basename a@)"\n'),
    "a loop": "for name in a b c; do\n" + filled("cp $name/x@ out/y@\n") + "done",
    "changes": filled("mkdir -p d@/x && touch d@/x/y\n"),
}


def judged(text: str) -> tuple[Decision, int]:
    """The verdict, and how many functions were called for it."""
    policy = ShellPolicy(cwd="/srv/desk")
    policy.judge_command("ls")  # so that what is made once is made
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return policy.judge_command(text), calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_more_than_its_steps(text: str) -> None:
    assert len(text) <= MAX_CHARACTERS
    assert judged(text)[1] < MOST_CALLS


@pytest.mark.parametrize("text", PLAIN.values(), ids=PLAIN)
def test_long_and_plain_texts_are_judged_as_short_ones(text: str) -> None:
    decision, calls = judged(text)
    assert not decision.blocks, decision.reason
    assert calls < MOST_CALLS // 2


def test_work_is_linear_in_the_text() -> None:
    for unit in ("ls $(echo @) | grep x\n", "x@=a; cat f@ > g@\n", "if ls d@; then rm -f f@; fi\n"):
        half, whole = (judged(filled(unit, most))[1] for most in (4_000, 8_000))
        assert whole < 2.5 * half


def test_what_takes_too_much_work_says_so() -> None:
    decision, _ = judged(HOSTILE["values and commands"])
    assert (decision.rule, "too much work" in decision.reason) == ("shell-too-deep", True)
    deep, _ = judged(HOSTILE["substitutions"])
    assert (deep.rule, "nested" in deep.reason) == ("shell-too-deep", True)
    assert not judged("ls " + nested("$(echo a ", ")", 12))[0].blocks
