"""The judge of GitHub's command line: it may look, discuss and propose, and neither remove nor merge."""

from __future__ import annotations

from lgov_core.policies.shell_call import Call, Judge, parse
from lgov_core.policies.shell_service_reach import SHOWING_CREDENTIALS


def _gh(call: Call) -> None:
    words = [word for word in call.args if not word.startswith("-")]
    if words[:1] == ["api"]:
        given = parse(call.args, "-X --method -f -F --field --raw-field --input -H --jq -q -t")
        method = "".join(given.of("-X", "--method")[-1:]).upper()
        if method not in ("", "GET") or (
            given.has("-f", "-F", "--field", "--raw-field", "--input") and method != "GET"
        ):
            call.refuse("only reading is allowed.", "shell-network")
        if given.has("--input") or any("=@" in word for word in call.args):
            call.refuse("what is sent must be written out, not taken from a file.", "shell-network")
        return
    allowed = {
        "pr": "list view status diff checks checkout create comment review ready edit",
        "issue": "list view status create comment edit",
        "run": "list view watch download rerun",
        "workflow": "list view",
        "release": "list view download",
        "repo": "list view clone fork sync",
        "auth": "status",
        "search": "repos issues prs code commits",
        "gist": "list view",
        "label": "list",
        "browse": "",
        "status": "",
        "": "",
    }
    group, verb = [*words, "", ""][:2]
    if group not in allowed or (allowed[group] and verb not in allowed[group].split()):
        call.refuse(f"{group[:20]} {verb[:20]} is not allowed here.")
    if any(SHOWING_CREDENTIALS.fullmatch(word) for word in call.args) or (group == "auth" and "-t" in call.args):
        call.refuse("this hands out what somebody can log in with.", "shell-secret")
    call.reads(word for word in call.args if " " not in word)
    given = parse(call.args, "-D --dir -O --output -n --name -p --pattern -R --repo")
    if group in ("run", "release"):
        for word in given.of("-D", "--dir", "-O", "--output"):
            call.places.write(word)
    if (group, verb) == ("repo", "clone"):
        if "--" in call.args or given.has("-u", "--upstream-remote-name"):
            call.refuse("clone without options of git.")
        for word in words[3:4]:
            call.places.write(word)


GITHUB_JUDGES: dict[str, Judge] = {"gh": _gh}
