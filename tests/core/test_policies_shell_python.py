"""ShellPolicy: Python and JavaScript on a command line may compute, print, and read and write the files that they name."""

from __future__ import annotations

import shlex

import pytest

from lgov_core.policies import ShellPolicy

POLICY = ShellPolicy(cwd="/srv/desk", writable=["/srv/desk"])
PATH = "from pathlib import Path; "
DENIED = [
    # variables that are, or may be, given something else too
    "p = '/etc/shadow'; print(open(p).read())",
    "p = 'a'; p += '/../../etc/x'; open(p, 'w')",
    "p = 'a'\nfor p in ['/etc/x']: open(p, 'w')",
    "p = 'a'\ndef f(p): open(p, 'w')\nf('/etc/x')",
    "p = 'a'; (p := '/etc/x'); open(p, 'w')",
    "p = 'a'\nwith open('b') as p: pass\nopen(p)",
    "p = q = '/etc/x'; open(p, 'w')",
    "p = 'a'; [p for p in ['/etc/x']]; open(p, 'w')",
    "p, = ['/etc/x']; p = 'a'; open(p, 'w')",
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
    "p = 'src/a.py'; s = open(p).read(); s = s.replace('a', 'b'); open(p, 'w').write(s)",
    "p = 'a'; print(open(p).read()); p = 'b'; print(open(p).read())",
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


#: pandas, numpy and others, and files that a search finds.
DATA_DENIED = [
    "import pandas as pd; print(pd.read_csv('/etc/shadow'))",
    "import pandas as pd; print(pd.read_csv('http://evil.io/x'))",
    "import pandas as pd; pd.read_pickle('x')",
    "import pandas as pd; pd.DataFrame().query('@pd.io.common.os.system(1)')",
    "import pandas as pd; pd.eval('1')",
    "import pandas as pd; pd.io.common.os.system('id')",
    "import pandas as pd; pd.DataFrame().to_csv('/etc/x')",
    "import pandas as pd; pd.DataFrame().to_csv(path_or_buf='/etc/x')",
    "import pandas as pd; pd.DataFrame().apply('to_csv', args=('/etc/x',))",
    "import pandas as pd; n='to_csv'; pd.DataFrame().agg(n, path_or_buf='/etc/x')",
    "import pandas as pd; list(map(pd.read_csv, ['/etc/shadow']))",
    "import pandas as pd; f = pd.read_csv; print(f('/etc/shadow'))",
    "import numpy as np; np.load('x.npy', allow_pickle=True)",
    "import numpy as np; np.testing.runstring('x', {})",
    "import numpy as np; np.ctypeslib.load_library('x', '.')",
    "import torch; torch.load('x')",
    "import torch; torch.hub.load('evil/x', 'y')",
    "import torch; torch.ops.load_library('x')",
    "import torch; torch.utils.cpp_extension.load_inline('x')",
    "import pandas as pd; x = pd; x.read_pickle('y')",
    "import pandas as pd; [pd][0].read_pickle('y')",
    "import pandas as pd; pd.read_csv(*['/etc/shadow'])",
    "import pandas as pd; pd.read_csv(filepath_or_buffer='/etc/shadow')",
    "import pandas as pd; pd.read_csv('a.csv', **{'filepath_or_buffer': 'x'})",
    "import pandas as json; json.read_pickle('x')",
    "import subprocess as pd; pd.run('id')",
    "import pandas as pd, subprocess; subprocess.run('id')",
    "import pandas as pd; pd.options.io",
    "import numpy as np; np.savetxt('/etc/x', np.ones(3))",
    "import matplotlib.pyplot as plt; plt.figure().savefig('/home/x/.bashrc')",
    "import pandas as pd; print(pd.read_csv('.env'))",
    "import requests; print(requests.get('http://x').text)",
    "import pandas as pd; from pandas import read_pickle; read_pickle('x')",
    "import pandas as pd; print(pd.read_csv('a.csv').pivot_table(index='a', aggfunc='to_csv'))",
    "import pandas as pd; print(pd.read_csv('a.csv').groupby('a').apply(print))",
    "import pandas as pd; pd.DataFrame().to_string('/etc/x')",
    "import pandas as pd, pandas.io.common as c; pd.NA; print(c.get_handle('/etc/shadow', 'r'))",
    "import matplotlib.pyplot as plt, matplotlib; plt.plot([1]); matplotlib.sys.exit()",
    "import subprocess as x\ndef f():\n    import json as x\nx.run('id')",
    "import subprocess as json\nimport json\ndef f(): pass\njson.run('id')",
    "import glob\nfor n in glob.glob('/home/*/.bashrc'):\n    open(n, 'a').write('x')",
    "from pathlib import Path\nfor p in Path('/etc').rglob('*.conf'):\n    print(p.read_text())",
    "from pathlib import Path\nfor p in Path('.').rglob('*'):\n    print(p.read_text())",
    "from pathlib import Path\nfor p in Path('/').rglob('shadow'):\n    print(p.read_text())",
    "from pathlib import Path\nfor p in Path('src').rglob('*.py'):\n    p.unlink()",
    "from pathlib import Path\nfor p in Path('src').rglob('../../*.py'):\n    p.write_text('')",
    "from pathlib import Path\nfor p in Path('src').glob('*.md'):\n    print(p.name, len(p.read_text().splitlines()))\np = '/etc/passwd'\nprint(open(p).read())",  # noqa: E501
    "import glob\nn = '/etc/passwd'\nfor n in glob.glob('src/*.py'):\n    pass\nn = '/etc/x'\nopen(n, 'w')",
    "import glob\nglob.os.system('id')",
    "import glob\nfor n in glob.glob('/etc/*.conf'): print(open(n).read())",
    "from pathlib import Path\np = Path('/etc/cron.d/x')\nopen(p, 'w').write('x')",
    "from pathlib import Path\np = Path('.env')\nprint(open(p).read())",
    "from pathlib import Path\np = Path('src/x.py')\nq = p\nq.unlink()",
    "from pathlib import Path\np = Path('src/x.py')\nprint(p)\np.rename('/etc/x')",
    "print = exec\nfrom pathlib import Path\np = Path('x.py')\nprint(p)",
    "import yaml; yaml.load(open('a.yml'), Loader=yaml.UnsafeLoader)",
    "import yaml; yaml.unsafe_load('!!python/object/apply:os.system [id]')",
    "import yaml; print(yaml.safe_load(open('/home/x/.kube/config')))",
    "import numpy as np; np.load(file='/etc/x')",
]
DATA_ALLOWED = [
    "import pandas as pd; d = pd.read_csv('d.csv'); d.groupby(d['x'].dt.to_period('M'))['y'].agg(['sum']).to_csv('m.csv')",
    "import pandas as pd; print(pd.read_csv('data/a.csv').head())",
    "import pandas as pd; df = pd.read_csv('a.csv'); print(df.groupby('x')['y'].sum().sort_values(ascending=False).head()); df.to_parquet('b.parquet')",  # noqa: E501
    "import pandas as pd; df = pd.read_csv('a.csv', nrows=5); print(df.describe(), df.shape, df.isna().sum())",
    "import numpy as np; a = np.random.rand(3, 3); print(np.linalg.inv(a) @ a, a.mean(axis=0))",
    "import torch; print(torch.__version__, torch.cuda.is_available())",
    "import torch; print(torch.cuda.get_device_name(0))",
    "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt; plt.plot([1,2,3]); plt.savefig('out/plot.png')",
    "import pandas as pd; print(pd.read_csv('a.csv').groupby('c').agg({'x': 'sum', 'y': ['mean', 'max']}))",
    "import pandas as pd; d = pd.read_csv('a.csv'); d['z'] = d['x'].apply(lambda v: v * 2); d.to_csv('b.csv', index=False)",
    "import numpy as np; np.savetxt('x.txt', np.ones(3))",
    "import pandas as pd; df=pd.read_csv('a.csv'); print(df['a'].str.lower().value_counts().to_string())",
    "import pandas as pd; print(pd.read_csv('a.csv').pivot_table(index='a', values='b', aggfunc='sum'))",
    "import json, pandas as pd; print(json.dumps(pd.read_csv('a.csv').to_dict()))",
    "import os, pandas as pd; print(os.path.getsize('a.csv'))",
    "import json, sys, os.path\nprint(json.dumps(sys.argv))",
    "from pathlib import Path\nfor p in Path('src').rglob('*.py'):\n    s = p.read_text()\n    p.write_text(s.replace('a', 'b'))",  # noqa: E501
    "import glob\nfor n in sorted(glob.glob('src/**/*.py', recursive=True)):\n    t = open(n).read()\n    open(n, 'w').write(t.replace('a', 'b'))",  # noqa: E501
    "import glob\nprint(len(glob.glob('src/*.py')))",
    "from glob import glob\nfor f in glob('data/*.csv'): print(f, sum(1 for _ in open(f)))",
    "from pathlib import Path\nprint(sorted(p.name for p in Path('src').glob('*.py')))",
    "from pathlib import Path\nroot = Path('src')\nfor p in root.rglob('*.py'):\n    print(p.read_text())",
    "from pathlib import Path\nfor p in Path('src').rglob('*.py'):\n    with open(p) as f:\n        print(p, f'{p}: {len(f.read())}')",  # noqa: E501
    "import yaml; d = yaml.safe_load(open('a.yml')); print(d['jobs'].keys())",
    "import numpy as np; np.load('x.npy')",
    "import numpy as np; f = np.ones(3); f.load('x')",
]


@pytest.mark.parametrize("code", DATA_DENIED)
def test_of_data_nothing_else_is_reached(code: str) -> None:
    assert POLICY.judge_command(f"python3 -c {shlex.quote(code)}").blocks


@pytest.mark.parametrize("code", DATA_ALLOWED)
def test_data_may_be_read_computed_with_and_written_by_name(code: str) -> None:
    decision = POLICY.judge_command(f"python3 -c {shlex.quote(code)}")
    assert not decision.blocks, decision.reason
