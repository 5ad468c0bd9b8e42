"""Cases written by another reader, from the documents alone and without a look at the code or at the other case files.

What was right at the first reading, before anything was repaired (malicious; benign):

- paths 88 of 90 and 55 of 63 (with symbolic links that are not repeated here), urls 148 of 150 and 65 of 66,
- shell 201 of 204 and 179 of 184, secrets 123 of 130 and 93 of 93, pii 85 of 91 and 91 of 92,
- provenance 19 of 20 and 18 of 18, tool arguments 48 of 48 and 23 of 23.

The files ending in ``_e`` were written after the first repairs: shell 100 of 104 and 129 of 131, provenance all of 45.

Judged otherwise than their writer wanted, on purpose: wildcards, a backslash, a file URL and a variable in a path, though
they stay inside; a name of three dots; the sharp s of a host, which programs read in two ways; undoing changes by `git
restore`, aliases, a link that leads out; a MAC address as personal data. Numbers in groups that nobody writes them in
(pii-d056, pii-d058) are not found. Not known: names that stand for an address while nothing is looked up (urls-d059,
urls-d060), the words of a wallet, a key in two items of a list, an endless loop that fetches, `openssl s_client` without
input, and commands that must be declared.

Those in `*_f.jsonl` are a fifth reader's, who had read only the documentation before the first runs. Right then were
(malicious; benign): shell 363 of 376 and 188 of 202, urls 119 of 119 and 62 of 63, secrets 128 of 138 and 83 of 85, pii
74 of 81 and 74 of 74, provenance 43 of 47 and 24 of 24. Some 300 of the shell's cases and 37 of provenance's were written
after the code had been read. Still judged otherwise: keys and cards that are spaced, wrapped or cut into a list; AWS's own
example key, which counts as one; programs for interpreters that are piped in, and commands that must be declared.

``shell_g.jsonl`` is a sixth reader's, written from the documentation alone for what coding agents run daily: right at the first
reading were 374 of 386 and 321 of 374; of those from gb375 and gm387 on, written after the repairs, 64 of 64 and 172 of
185. Judged otherwise on purpose: Python on the command line that uses other modules
than the known ones, a program that is written and run in one go or lies in /tmp, code for a shell with names put into it,
a link that leads out; a repository that was cloned into the folder counts as the folder's own (gm072), a file of a
container may be copied out (gm097). Harmless after all: gm210, gm373.

``shell_h.jsonl`` is by two more, of the documentation alone, who took what agents run every day: right at the first reading
were 119 of 120 and 229 of 240. Judged otherwise on purpose: a test that is written and run in one go, other modules of
Python, code for node, changes that are thrown away; a folder of classes is taken for a program.

``shell_i.jsonl`` holds what was found by reading the policy itself: each harmful one of it passed before.

Those in ``*_j.jsonl`` are another's, of the documentation alone, for every kind. Right at the first reading were (malicious;
benign): paths 32 of 32 and 30 of 30, urls 40 of 41 and 30 of 30, shell 82 of 83 and 77 of 78, secrets 34 of 35 and 31 of 31,
pii 32 of 32 and 31 of 32, provenance 39 of 45 and 25 of 27, tool arguments 21 of 21 and 15 of 15, cost, rate, loops and
approvals 15 of 15 and 35 of 35. Not kept, since the policies mean it otherwise: a URL the user named covers its queries and
its other scheme, a name without its folder is another file, a cloned repository counts as the folder's own.
Secrets from j067 on and pii from j065 on were written after a look at the code: right then were 37 of 46 and 29 of 31, 29 of
30 and 36 of 36.

``shell_n.jsonl`` is by somebody who had just changed how words are followed that a text decodes, fetches or computes: 120
harmful and 100 harmless ones, all right at the first reading (100 and 100 before the change).

``shell_m.jsonl`` begins with cases of yet another reader of the documentation alone: right at the first reading were 99 of 100
and 77 of 80 (what changes of files are undone, a link that leads out and a server for the whole network are not kept). Behind
them stands what its one miss led to, after a look at the code: words and programs that nobody sees, since they are decoded,
fetched or printed into a pipe while the command runs. Of these, most harmful ones passed before.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import load_policy_file
from lgov_core.views.policy_cases import read_cases

HERE = Path(__file__).parent
OTHERWISE = {
    *("paths-d119", "paths-d144", "paths-d145", "paths-d146", "paths-d147", "paths-d151"),
    *("urls-d059", "urls-d060", "urls-d214", "pii-d056", "pii-d058", "pii-d118", "secrets-d124", "secrets-d130"),
    *("shell-d281", "shell-d323"),
    *("secrets-f111", "secrets-f112", "secrets-f158", "pii-f024", "pii-f038"),
    *("shell-f623", "shell-f758", "shell-f764", "shell-f765", "shell-f819", "shell-f854", "shell-f867"),
    *("shell-e055", "shell-e070", "shell-e207"),
    *(
        "shell-gb131",
        "shell-gb152",
        "shell-gb217",
        "shell-gb220",
        "shell-gb221",
        "shell-gb222",
        "shell-gb228",
        "shell-gb231",
    ),
    *(
        "shell-gb296",
        "shell-gb552",
        "shell-gb553",
        "shell-gb330",
        "shell-gm072",
        "shell-gm097",
        "shell-gm210",
        "shell-gm373",
    ),
    *(f"shell-hb-b{number}" for number in ("031", "038", "047", "054", "080", "094")),
}
FILES = sorted(path.name for path in HERE.glob("shell_[defghijmn].jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_cases_are_judged_right(name: str) -> None:
    own = HERE / name.replace(".jsonl", ".yaml")
    policies = load_policy_file(own if own.exists() else HERE / f"{name.rpartition('_')[0]}_d.yaml")
    cases = read_cases(HERE / name)
    wrong = {case.case_id for case in cases if policies.judge(case.action).blocks != case.blocked}
    assert wrong <= OTHERWISE


def test_there_are_many_of_both_kinds_and_each_says_why() -> None:
    rows = [json.loads(line) for name in FILES for line in (HERE / name).read_text(encoding="utf-8").splitlines()]
    denied = sum(row["expect"] == "deny" for row in rows)
    assert denied >= 500
    assert len(rows) - denied >= 500
    assert all(row["why"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
