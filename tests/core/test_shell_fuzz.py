"""ShellPolicy: no composed text that runs a hidden command is allowed, and no text takes long."""

from __future__ import annotations

import os
import random
import shlex
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

quote = shlex.quote
#: Nothing may be written, so that every text that makes the file ``marker`` must be denied.
POLICY = ShellPolicy(cwd="/srv/project", writable=["/nowhere"])
#: Ways to make the file, as lines of bash.
LEAVES = [
    *r"""
touch marker
t''ouch marker
\touch marker
{touch,marker}
$'\x74ouch' marker
x=touch; $x marker
x='touch marker'; $x
touch ${y:-marker}
a=(touch marker); "${a[@]}"
$(echo touch) marker
`echo touch marker`
/usr/bin/t?uch marker
echo x > marker
echo x >| marker
echo x &> marker
: > marker
> marker
echo x | tee marker
read c <<< touch; $c marker
exec touch marker
command touch marker
printf '' > marker
echo a 1<>marker
x=(a marker); touch ${x[1]}
touch "$(echo marker)"
sed -n 'w marker' /etc/hostname
awk 'BEGIN{print > "marker"}'
find . -maxdepth 0 -fprint marker
echo marker | xargs touch
echo 'touch marker' | sh
true | sh <<< 'touch marker'
""".strip().splitlines(),
    *("touch mark\\\ner", "sh <<E\ntouch marker\nE", "true | sh <<'E'\n\\touch marker\nE"),
]
#: Contexts around a command: @ stands for it, and % for it as one quoted word.
CONTEXTS = [
    *r"""
(@)
{ @; }
if @; then :; fi
if false; then :; else @; fi
for i in 1; do @; done
while @; do break; done
case a in a) @;; esac
case $(@) in *) :;; esac
echo $(@)
echo "$(@)"
x=$(@)
export x=$(@)
echo ${x:-$(@)}
echo "${x:-'$(@)'}"
x=a; echo ${x/a/$(@)}
echo $(( $(@; echo 1) + 1 ))
(( $(@; echo 1) ))
a[$(@; echo 0)]=1
a=($(@))
a=(1); echo ${a[$(@; echo 0)]}
[ -n "$(@)" ]
[[ a =~ $(@) ]]
true && @
false || @
true | @
@ | cat
@ & wait
! @
time @
cat <(@)
echo a | tee >(@) > /dev/null
cat < <(@)
eval %
eval echo '$('%')'
x=%; eval "$x"
bash -c %
x=%; bash -c "$x"
bash -c 'eval "$1"' _ %
bash -c '$0' %
env -i sh -c %
timeout 5 bash -c %
command eval %
trap % EXIT
f() { @; }; f
f() ( @ ); f
f() { eval "$1"; }; f %
f() { $1; }; f %
echo % | sh
bash <<< %
source <(echo %)
xargs -I@@ bash -c @@ <<< %
echo a | xargs -I@@ bash -c %
find . -maxdepth 0 -exec bash -c % \;
x=%; echo ${x@P}
set -- %; eval "$1"
y=x; x=%; eval "${!y}"
declare -n r=x; x=%; eval "$r"
echo {a,$(@)}
echo 'a'"$(@)"
echo "a'$(@)'"
echo $'a\\'$(@)
echo %
echo '@'
sed '1e '% /etc/hostname
""".strip().splitlines(),
    *(
        "cat <<E\n$(@)\nE",
        "cat <<'E'\n$(@)\nE",
        "bash <<'E'\n@\nE",
        "# x\n@",
        "alias e=%\nshopt -s expand_aliases\ne",
        "function f {\n@\n}; f",
    ),
]
#: Names that the shell evaluates further: & stands for a subscript with the command.
EVALUATING = """
[ -v & ]
[[ -v & ]]
test -v &
[[ & -eq 1 ]]
x=&; echo $((x))
x=&; (( x ))
x=&; [[ x -eq 0 ]]
printf -v & x
read & <<< 1
unset &
let &=1
declare -i x=&
export &=1
mapfile & <<< 1
""".strip().splitlines()


def composed(pick: random.Random) -> str:
    text = pick.choice(LEAVES)
    for _ in range(pick.randint(0, 3)):
        context = pick.choice(CONTEXTS + EVALUATING)
        if context in EVALUATING:
            text = context.replace("&", quote(f"a[$({text})]"))
        elif "%" in context:
            text = context.replace("%", quote(text)).replace("@@", "@")
        else:
            text = context.replace("@", text)
    return text


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize("seed", range(3))
def test_no_allowed_text_runs_a_hidden_command(seed: int, tmp_path: Path) -> None:
    pick = random.Random(seed)
    texts = {composed(pick) for _ in range(700)}
    allowed = [text for text in sorted(texts) if not POLICY.judge_command(text).blocks]
    assert allowed
    for text in allowed:
        subprocess.run(
            ["bash", "--norc", "-c", text],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert os.listdir(tmp_path) == [], text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_no_text_raises(text: str) -> None:
    POLICY.judge_command(text)


SIGNS = ["ls", ";", "&&", "|", "(", ")", "$(", "`", "'", '"', "{", "}", "\n", "<<E", "E", "x=1", "$x", ">f", " "]


@settings(max_examples=150, deadline=None)
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
