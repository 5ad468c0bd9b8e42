"""ShellPolicy: Python and JavaScript on a command line may compute, print, and read and write the files that they name."""

from __future__ import annotations

import shlex

import pytest

from lgov_core.policies import ShellPolicy

POLICY = ShellPolicy(cwd="/srv/desk", writable=["/srv/desk"])
PATH = "from pathlib import Path; "
DENIED = [
    # files that stand nowhere in a call of open()
    "print([f.read() for f in map(open, ['/etc/shadow'])])",
    "import itertools; list(itertools.starmap(open, [('/etc/x', 'w')]))",
    "import sys; sys.stdin = open",
    # code
    "import operator; operator.call(print)",
    "import typing\ndef f(x: '__import__(1)'): pass\ntyping.get_type_hints(f)",
    "import functools\ndef f(x): pass\ndef g(x: 'print(1)'): pass\nfunctools.singledispatch(f).register(g)",
    "import string\ndef f(): pass\nlist(map(string.Formatter().get_field('0.__globals__[x].exec', (f,), {})[0], ['1']))",
    "import sys\ntry: 1/0\nexcept Exception: list(map(sys.exc_info()[2].tb_frame.f_builtins['exec'], ['1']))",
    "def f(): pass\nT = type(f)\nmatch f:\n  case T(__globals__=g): print(g)",
    "import sys; sys.path.insert(0, '/tmp/evil'); import evil",
    "import sys; sys.path = ['/tmp/evil']; import evil",
    "import sys; sys.path += ['/tmp/evil']; import evil",
    "import sys; p = sys.path; p.insert(0, '/tmp/evil'); import evil",
    "import json; json.loads = print",
    "from sys import path; path.insert(0, '/tmp/evil'); import evil",
    # more than reading or writing a file
    PATH + "Path('a').replace('b')",
    PATH + "p = Path('a'); q = p; q.rename('b')",
    PATH + "list(map(Path.unlink, [Path('a')]))",
    PATH + "[p.read_text() for p in Path('/etc').iterdir()]",
    PATH + "p = Path('a')\nfor p in [1]: p.read_text()",
    PATH + "p = Path('a')\ndef f(p): return p.write_text('x')\nf(1)",
    PATH + "(p := Path('a')).unlink()",
    PATH + "Path = print",
    "from pathlib import *; Path('a').read_text()",
    "import pathlib; f = pathlib.Path; f('a').unlink()",
    # the wrong files
    PATH + "(Path('/etc') / 'shadow').read_text()",
    PATH + "Path('/etc/cron.d/x').write_text('y')",
    PATH + "Path('.git/hooks/pre-commit').write_text('x')",
    "import pathlib as pl; pl.Path('.env').read_text()",
    "open('.env', 'w').write('x')",
    "open('/etc/x', mode='w').write('x')",
    "open('/usr/share/x', 'r+').write('x')",
    "open('x', opener=print)",
    "open('x', 'w' + 'b')",
]
ALLOWED = [
    PATH + "p = Path('src/a.py'); s = p.read_text(); p.write_text(s.replace('a', 'b'))",
    "import re, pathlib\np = pathlib.Path('a.py')\np.write_text(re.sub(r'foo\\(', 'bar(', p.read_text(encoding='utf-8')))",
    PATH + "print(Path('a.txt').exists(), len((Path('data') / 'x.csv').read_text().splitlines()))",
    "import json\nwith open('a.json') as f: d = json.load(f)\nwith open('a.json', 'w') as f: json.dump(d, f, indent=2)",
    "open('notes.md', 'a', encoding='utf-8').write('more')",
    "print(open('a.txt', mode='r').read())",
    "import sys; print(sys.path, sys.path[0], *sys.path)",
    "import os; print(os.path.join('a', 'b'))",
]


@pytest.mark.parametrize("code", DENIED)
def test_python_that_does_more_is_denied(code: str) -> None:
    assert POLICY.judge_command(f"python3 -c {shlex.quote(code)}").blocks
    assert POLICY.judge_command(f"python3 - <<'PY'\n{code}\nPY").blocks


@pytest.mark.parametrize("code", ALLOWED)
def test_python_that_reads_and_writes_files_of_the_folder_is_allowed(code: str) -> None:
    for command in (f"python3 -c {shlex.quote(code)}", f"python3 - <<'PY'\n{code}\nPY"):
        decision = POLICY.judge_command(command)
        assert not decision.blocks, decision.reason


def test_what_python_writes_is_not_run_in_the_same_text() -> None:
    assert (
        POLICY.judge_command("python -c \"open('x.py', 'w').write('import os')\"; python x.py").rule == "shell-program"
    )
    assert POLICY.judge_command("python -c \"open('Makefile', 'w').write('all:')\"; make").rule == "shell-program"


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("console.log(require('./package.json').version)", True),
        ("JSON.stringify(require('./tsconfig.json').compilerOptions, null, 2)", True),
        ("require('child_process').execSync('id')", False),
        ("require('./evil.js')", False),
        ("require('./x.json' + '')", False),
        ("require('../other/x.json')", False),
        ("require('./credentials.json')", False),
    ],
)
def test_json_files_of_the_folder_may_be_loaded_by_javascript(code: str, allowed: bool) -> None:
    assert POLICY.judge_command(f"node -p {shlex.quote(code)}").blocks is not allowed
