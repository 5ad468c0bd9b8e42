"""ShellPolicy: no composed text that runs a hidden command is allowed, and no text takes long."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.policies import ShellPolicy
from lgov_core.policies.shell import MAX_CHARACTERS
from tests.policies.shell_texts import Composer, makes_the_file
from tests.slow import examples

#: Nothing may be written, so that every text that makes a file must be denied.
POLICY = ShellPolicy(cwd="/srv/project", writable=["/nowhere"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize("seed", range(3))
def test_no_allowed_text_runs_a_hidden_command(seed: int, tmp_path: Path) -> None:
    composer = Composer(seed)
    texts = {*composer.each(), *(composer.text() for _ in range(1000))}
    allowed = [text for text in sorted(texts) if not POLICY.judge_command(text).blocks]
    assert allowed
    assert [text for text in allowed if makes_the_file(text, tmp_path)] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_the_composed_texts_run_their_command(tmp_path: Path) -> None:
    texts = Composer(0).each()[::5]
    assert sum(makes_the_file(text, tmp_path) for text in texts) > 0.7 * len(texts)


@settings(max_examples=examples(150), deadline=None)
@given(st.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    POLICY.judge_command(text)


SIGNS = ["ls", ";", "&&", "|", "(", ")", "$(", "`", "'", '"', "{", "}", "\n", "<<E", "E", "x=1", "$x", ">f", " "]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(SIGNS)))
def test_nothing_behind_a_destructive_command_allows_it(parts: list[str]) -> None:
    assert POLICY.judge_command("rm -rf /srv\n" + " ".join(parts)).blocks


def test_no_letter_behind_a_brace_ends_the_process() -> None:
    """In a process of its own: tree-sitter-bash reads outside of its memory at such a letter."""
    code = """
from lgov_core.policies import ShellPolicy
policy = ShellPolicy(cwd="/srv")
for text in ("a{%c,b}", "{1%c", "{1..%c}", "{1..2%c", "{%c{%c"):
    for number in range(0x10000, 0x110000, 4099):
        policy.judge_command("echo " + text.replace("%c", chr(number)))
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


FOLDERS = "".join(f"cd d{at}; " for at in range(60))
HOSTILE = {
    "substitutions": "$(" * 300 + "ls" + ")" * 300,
    "defaults": "echo " + "${a:-" * 300 + "b" + "}" * 300,
    "subshells": "(" * 900 + "ls" + ")" * 900,
    "a long value": "x='" + "word " * 1800 + "'; " + "echo $x; " * 900,
    "a value that doubles": "x=a; " + "x=$x$x; " * 60 + "echo $x",
    "a text in a value": "x='" + "ls; " * 1500 + "'; " + 'bash -c "$x"; ' * 700,
    "values and commands": "for v in " + "/tmp/a " * 60 + "; do " + "cat $v; " * 2000 + " done",
    "values side by side": "for v in " + "".join(f"a{at} " for at in range(60)) + "; do cat " + "$v " * 4000 + "; done",
    "folders and files": FOLDERS + "cat " + "../w " * 3600,
    "loops in loops": "for i in a b c d; do " * 8 + "cd $i" + "; done" * 8,
    "functions that multiply": "f0() { :; }; " + "".join(f"f{n + 1}() {{ f{n}; f{n}; }}; " for n in range(20)) + "f20",
    "stages": "find . " + "| grep a " * 2000,
    "commands that run commands": "timeout 5 " * 1900 + "ls",
    "braces": "echo " + "a" * 9000 + "{" + "," * 9000 + "}",
    "braces side by side": "echo " + "{a,b}" * 30,
    "brackets": "echo " + "[" * 2900,
    "here-documents": "cat <<E\na b c\nE\n" * 1200,
    "branches": "case a in " + "a) cd b;; " * 1500 + "esac",
    "a sed script": "sed '" + "; ! " * 400 + "x/' a",
    "an awk program": "awk '" + "> 1 " * 4000 + "' a",
    "sed brackets": "sed 's/" + "[a" * 900 + "/b/' a",
    "awk ternaries": "awk '{x = " + "1?" * 900 + "1}' a",
    "awk loops": "awk '{" + "for(x in a)" * 150 + "}' a",
    "awk operands": "awk '{x = " + "a " * 900 + "}' a",
    "jq brackets": "jq '" + "[" * 1900 + "' a",
    "jq interpolations": "jq '" + '"\\(' * 600 + "' a",
    "jq bindings": "jq '" + ". as $x | " * 190 + ".' a",
    "Python": "python -c '" + "(" * 5000 + "'",
    "what nothing closes": "ls " + "|a" * 9900 + "|",
    "wildcards": "rm " + "*" * 15000,
    "a path": "cat " + "a/b/../" * 2700,
    "an address": "curl http://" + "a." * 9000,
    "SQL": "psql -c 'select " + "; " * 5000 + "x'",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_long(text: str) -> None:
    assert len(text) <= MAX_CHARACTERS
    POLICY.judge_command("ls")  # loads the table
    start = time.process_time()
    POLICY.judge_command(text)
    assert time.process_time() - start < 2  # a third of it on a quiet machine


def test_a_long_and_plain_text_is_allowed() -> None:
    policy = ShellPolicy(cwd="/srv/project")
    for text in (
        "echo a line >> notes.txt\n" * 700,
        'echo "$(date +%s)"\n' * 400,
        "cat > a.txt <<'E'\n" + "a (line)\n" * 1900 + "E",
    ):
        decision = policy.judge_command(text)
        assert not decision.blocks, decision.reason
