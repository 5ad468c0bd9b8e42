"""Judges of the commands of git that talk to other repositories: they fetch, add and push, and force nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from lgov_core.policies.shell_call import Call, Parsed, parse, wild

_REMOTE = re.compile(r"(?:https://|ssh://|git@)[\w.@:/~+\-]+")


def _push(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-o --push-option --repo --receive-pack --exec --recurse-submodules")
    if (
        given.tries()
        and "--no-dry-run" not in given.options
        and not given.has("--receive-pack", "--exec", "--repo")
        and not re.search(r"[:/\\]", "".join(given.operands[:1]))
    ):
        return
    exact = [
        option
        for option in given.options
        if not option.startswith("--force-with-lease") and option != "--force-if-includes"
    ]
    if Parsed(tuple(exact), (), ()).has(
        "--force", "-f", "--mirror", "--delete", "-d", "--prune", "--receive-pack", "--exec", "--repo"
    ):
        call.refuse("forcing or deleting on the remote is not allowed; push without it.")
    for at, word in enumerate(given.operands):
        call.literal(word, "what is pushed")
        if (at == 0 and re.search(r"[:/\\]", word)) or "://" in word or "@" in word.partition(":")[0]:
            call.refuse("push to a remote by its name.", "shell-network")
        if at and (word.startswith(("+", ":")) or wild(word)):
            call.refuse("forcing or deleting on the remote is not allowed; push without it.")


def _submodule(call: Call, rest: tuple[str, ...]) -> None:
    words = [word for word in rest if not word.startswith("-")]
    if words[:1] == ["foreach"]:
        inner = list(rest[rest.index("foreach") + 1 :])
        while inner and inner[0] in ("--recursive", "--quiet", "-q"):
            inner.pop(0)
        call.runner.script(call.literal(" ".join(inner), "the command"))
    elif (words[:1] or ["status"])[0] not in ("status", "update", "init", "summary", "sync") or parse(rest).has(
        "--force", "-f"
    ):
        call.refuse("only status, update, init, sync and foreach are allowed.")


def _remote(call: Call, rest: tuple[str, ...]) -> None:
    words = [word for word in rest if not word.startswith("-")]
    verb = (words or [""])[0]
    if verb == "add" and len(words) > 2 and _REMOTE.fullmatch(words[2]):
        return
    if verb not in ("", "show", "get-url", "update", "prune"):
        call.refuse("remotes stay as they are.")


def _clone(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(
        rest,
        "-b --branch --depth -o --origin -c --config -u --upload-pack --template --reference -j --jobs --filter"
        " --shallow-since --shallow-exclude --server-option --reference-if-able --separate-git-dir --bundle-uri --ref-format",
    )
    if given.has("--config", "-c", "--upload-pack", "-u", "--template"):
        call.refuse("options that change what git runs are not allowed.")
    for word in given.operands[:1]:
        if _REMOTE.fullmatch(word) is None and re.search(r"^[\w+.-]+::|^(?:http|ftp|file|git):|^-|\ue000", word):
            call.refuse("clone from an https:// or ssh address.", "shell-network")
    name = re.sub(r"(?:\.git)?/?$", "", given.operands[0]).rpartition("/")[2] if given.operands else ""
    call.places.write(given.operands[1] if len(given.operands) > 1 else name or ".")


def _fetch(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-o -j --depth --upload-pack")
    if given.has("--upload-pack") or any("::" in word for word in given.operands[:1]):
        call.refuse("options that change what git runs are not allowed.")
    if given.has("--force", "-f") or any(word.startswith("+") for word in given.operands):
        call.refuse("forcing may lose commits.")


def _archive(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-o --output --remote --exec")
    if given.has("--remote", "--exec"):
        call.refuse("remote archives are not allowed.", "shell-network")
    for word in given.of("-o", "--output"):
        call.places.write(word)


REMOTE_COMMANDS: dict[str, Callable[[Call, tuple[str, ...]], None]] = {
    "push": _push,
    "submodule": _submodule,
    "remote": _remote,
    "clone": _clone,
    "fetch": _fetch,
    "pull": _fetch,
    "ls-remote": _fetch,
    "archive": _archive,
}
