"""ShellPolicy: what words become (quotes, variables, substitutions, control flow) is read as bash reads it."""

from __future__ import annotations

import pytest

from lgov_core.policies import ShellPolicy

POLICY = ShellPolicy(cwd="/srv/project", writable=["/srv/project", "/tmp"])

ALLOWED = {
    "a wildcard that is no option": "sed p ./*.txt; sort -- *; cat *; wc -l *.py; grep x *; mv *.md docs; cp ./* build",
    "a variable": "D=out; mkdir -p $D && echo x > $D/log",
    "a default": 'echo "${USER:-nobody}"',
    "a loop": 'for f in src/*.py; do wc -l "$f"; done',
    "a list of files": 'for f in $(find . -name "*.md"); do wc -w "$f"; done',
    "lines of a list": 'ls *.py | while read -r f; do head -5 "$f"; done',
    "a new folder": 'd=$(mktemp -d) && ls "$d" && rm -rf "$d"',
    "arithmetic": "i=0; while [ $i -lt 3 ]; do i=$((i+1)); done",
    "a suffix": 'for f in src/*.js; do mv "$f" "${f%.js}.ts"; done',
    "a here-document": "cat > notes.md <<'E'\nNever run rm -rf / or `id` or $(id).\nE",
    "a message": "echo \"$(cat <<'E'\nFix it\nE\n)\"",
    "another folder": "(cd a && ls) && (cd b && wc -l x)",
    "a here-document that begins with empty lines": "cat >> a.py <<'E'\n\n\ndef f(): pass\nE\nls",
    "a condition that is not": "if ! grep -q a b; then echo c; fi",
    "quoted text": "echo 'rm -rf / $(id) `id`'",
    "a comment": "ls # rm -rf /",
    "braces": "touch src/{a,b}.py",
}
DENIED = {
    "a wildcard that may be an option": "tar cf /tmp/x.tar *",
    "a wildcard that may be a script": "sed p *.txt",
    "a wildcard that may be a folder": "cp * build",
    "a loop's wildcard": 'for f in *; do sort "$f"; done',
    "an escaped name": "r\\m -rf /",
    "a name in quotes": "r''m -rf /",
    "a name in escapes": "$'\\x72\\x6d' -rf /",
    "a name from a variable": "x=rm; $x -rf /",
    "a name from a substitution": "$(echo rm) -rf /",
    "an unknown name": "$CMD",
    "braces as a command": "{rm,-rf,/}",
    "a value": "A=/etc/sha; cat ${A}dow",
    "a loop's value": "for p in /etc/shadow; do cat $p; done",
    "a wildcard": "cat /etc/sh*w",
    "a wildcard for all": "cat /*/*",
    "a value that is read": "read f; rm $f",
    "a branch that may not run": 'if true; then D=out; fi; rm -rf "$D"/*',
    "a value after another": "x=a; for i in 1 2; do cat $x; x=/etc/shadow; done",
    "a decoded name": "cat $(echo L2V0Yy9zaGFkb3cK | base64 -d)",
    "a cut name": "cat $(echo /etc/shadowX | head -c 11)",
    "an argument of a function": "f() { cat $1; }; f /etc/shadow",
    "shifted arguments": "f() { shift; cat $1; }; f a /etc/shadow",
    "a function that hides a command": "ls() { rm -rf /; }; ls",
    "a function that may not be there": "false && f() { :; }; f",
    "a function that calls itself": "f() { f; }; f",
    "a prefix for another shell": "x=a; x=/etc/shadow bash -c 'cat $x'",
    "a variable that is not exported": "d=build; bash -c 'rm -rf $d/*'",
    "a trap": "trap 'rm -rf /' EXIT",
    "a trap with later values": "x=a; trap 'rm -rf $x' EXIT; x=/",
    "another separator": "IFS=,; x=a,/etc/hosts; rm $x",
    "indirection": "y=GITHUB_TOKEN; echo ${!y}",
    "a subscript that is evaluated": "[ -v 'a[$(id)]' ]",
    "a value that is evaluated": "x='a[$(id)]'; echo $((x))",
    "arithmetic on what is not known": "echo $((x))",
    "quotes inside of a quoted expansion": "echo \"${x:-'$(id)'}\"",
    "a shell that reads lines": "cat <<E | sh\nrm -rf /\nE",
    "a shell with options that reads lines": "bash -e <<< 'rm -rf /'",
    "a here-document for the last command": "true | sh <<E\nrm -rf /\nE",
    "a shell that reads its arguments": "bash -s x <<< 'rm -rf /'",
    "several lines of a list": "rm -rf target/$(ls)",
    "quotes that xargs undoes": "echo \"'a b'\" | xargs -I@ bash -c @",
    "joined arguments": 'f() { bash -c "$*"; }; f echo ";rm -rf ~"',
    "an element of an array": "a=(/etc/shadow); a[1]=ok; cat $a",
    "a folder that was left": "pushd /tmp; popd; rm -rf x",
    "the home folder": "cd; rm -f notes.txt",
    "a folder that may not be there": "cd build; rm -rf src",
    "invisible letters": "ca\u200bt notes",
    "a continuation in a word": "r\\\nm -rf /",
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_is_allowed(text: str) -> None:
    decision = POLICY.judge_command(text)
    assert not decision.blocks, decision.reason


@pytest.mark.parametrize("text", DENIED.values(), ids=DENIED)
def test_is_denied(text: str) -> None:
    assert POLICY.judge_command(text).blocks


@pytest.mark.parametrize("text", [DENIED["a name in quotes"], "cat ~/.ssh/id_rsa", "curl -d x https://a.example"])
@pytest.mark.parametrize(
    "company",
    [
        "ls && {}",
        "ls; {}",
        "({})",
        "if true; then {}; fi",
        "{} | cat",
        "echo $({})",
        "f() {{ {}; }}; f",
        "bash -c '{}'",
    ],
)
def test_company_does_not_hide_a_command(text: str, company: str) -> None:
    assert POLICY.judge_command(company.format(text.replace("'", ""))).blocks


@pytest.mark.parametrize("word", ["$PPID", "$(pgrep agent)"])
def test_a_word_whose_value_nobody_knows_is_not_called_a_wildcard(word: str) -> None:
    assert "'$…'" in POLICY.judge_command(f"kill -9 {word}").reason
    assert "'*'" in POLICY.judge_command("kill -9 '*'").reason
