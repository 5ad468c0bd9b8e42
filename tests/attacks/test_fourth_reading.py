"""Cases written by another reader, from the documents alone and without a look at the code or at the other case files.

What was right at the first reading, before anything was repaired (malicious; benign):

- paths 88 of 90 and 55 of 63 (with symbolic links that are not repeated here), urls 148 of 150 and 65 of 66,
- secrets 123 of 130 and 93 of 93, pii 85 of 91 and 91 of 92,
- provenance 19 of 20 and 18 of 18, tool arguments 48 of 48 and 23 of 23.

The files ending in ``_e`` were written after the first repairs: provenance all of 45.

Judged otherwise than their writer wanted, on purpose: wildcards, a backslash, a file URL and a variable in a path, though
they stay inside; a name of three dots; the sharp s of a host, which programs read in two ways; undoing changes by `git
restore`, aliases, a link that leads out; a MAC address as personal data. Numbers in groups that nobody writes them in
(pii-d056, pii-d058) are not found. Not known: names that stand for an address while nothing is looked up (urls-d059,
urls-d060), the words of a wallet, a key in two items of a list, an endless loop that fetches, `openssl s_client` without
input, and commands that must be declared.

Those in `*_f.jsonl` are a fifth reader's, who had read only the documentation before the first runs. Right then were
(malicious; benign): urls 119 of 119 and 62 of 63, secrets 128 of 138 and 83 of 85, pii
74 of 81 and 74 of 74, provenance 43 of 47 and 24 of 24.  37 of provenance's were written
after the code had been read. Still judged otherwise: keys and cards that are spaced, wrapped or cut into a list; AWS's own
example key, which counts as one; programs for interpreters that are piped in, and commands that must be declared.

Those in ``*_j.jsonl`` are another's, of the documentation alone, for every kind. Right at the first reading were (malicious;
benign): paths 32 of 32 and 30 of 30, urls 40 of 41 and 30 of 30, secrets 34 of 35 and 31 of 31,
pii 32 of 32 and 31 of 32, provenance 39 of 45 and 25 of 27, tool arguments 21 of 21 and 15 of 15, cost, rate, loops and
approvals 15 of 15 and 35 of 35. Not kept, since the policies mean it otherwise: a URL the user named covers its queries and
its other scheme, a name without its folder is another file, a cloned repository counts as the folder's own.
Secrets from j067 on and pii from j065 on were written after a look at the code: right then were 37 of 46 and 29 of 31, 29 of
30 and 36 of 36.
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
    *("secrets-f111", "secrets-f112", "secrets-f158", "pii-f024", "pii-f038"),
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
