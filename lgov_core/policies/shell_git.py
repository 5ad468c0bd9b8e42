"""The judge of git: what reads or adds passes, what discards, rewrites or runs something does not."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, parse, wild
from lgov_core.policies.shell_git_remotes import REMOTE_COMMANDS

_READING = frozenset(
    names(
        """
    status diff log show blame annotate shortlog describe rev-parse rev-list ls-files ls-tree cat-file
    whatchanged name-rev merge-base for-each-ref show-ref var version help count-objects fsck cherry
    range-diff diff-tree diff-index diff-files check-ignore check-attr check-ref-format show-branch
    verify-commit verify-tag get-tar-commit-id request-pull column merge-tree stripspace interpret-trailers
    mergetool--help write-tree commit-tree mktree pack-refs unpack-file verify-pack patch-id
    """
    )
)
_ADDING = frozenset(
    names(
        """
    add commit merge cherry-pick revert mv init apply am format-patch notes rerere hash-object
    """
    )
)
#: Commands that change the folder they stand in, whatever else they are given.
_CHANGING = _ADDING | frozenset(
    names("pull checkout switch restore stash rebase bisect reset rm clean submodule gc worktree")
) - {"notes"}
_GLOBAL_VALUES = "-C -c --git-dir --work-tree --namespace --exec-path --config-env --super-prefix"
_HARMLESS_KEYS = re.compile(
    r"user\.(?:name|email|signingkey)|color\.[\w.]+|core\.(?:quotepath|autocrlf|ignorecase|eol|filemode|longpaths|abbrev)"
    r"|init\.defaultbranch|pull\.(?:rebase|ff)|push\.(?:default|autosetupremote|followtags)|fetch\.prune|merge\.(?:ff|conflictstyle)"
    r"|branch\.[\w./-]+\.(?:remote|merge|rebase|description)|rebase\.(?:autosquash|autostash)|commit\.(?:gpgsign|verbose)"
    r"|advice\.\w+|log\.\w+|diff\.(?:algorithm|renames|colormoved)|status\.\w+|rerere\.enabled|feature\.\w+|safe\.directory|column\.ui",
    re.I,
)


#: The end of a name that is one of a file and hardly one of a branch.
_A_FILE = re.compile(r"\.(?:[A-Za-z][A-Za-z]\w{0,3}|[chm])$")


def judge_git(call: Call) -> None:
    """Judges one git command."""
    args, stands = _own_options(call)
    if not args:
        return
    command, rest = call.literal(args[0], "the git command"), tuple(args[1:])
    if command not in ("check-ignore", "ls-files"):  # they show no more than names
        call.reads(word for word in rest if " " not in word)
    judge = _COMMANDS.get(command)
    if judge is None and command not in _READING | _ADDING:
        call.refuse(f"git {command[:40]} is not allowed here.")
    if command in _CHANGING:
        call.places.work_in(stands)
    _common(call, rest)
    if judge is not None:
        judge(call, rest)
    elif command == "format-patch":
        for word in parse(rest, "-o").of("-o"):
            call.places.write(word)


def _own_options(call: Call) -> tuple[list[str], str]:
    """What stands behind git's own options, which are judged, and the folder in which they make it work."""
    args = list(call.args)
    stands = "."
    while args and args[0].startswith("-"):
        option = args.pop(0)
        name, equals, value = option.partition("=")
        if name in ("--version", "--help", "-v", "-h", "--html-path", "--man-path", "--info-path"):
            return [], stands
        if name in _GLOBAL_VALUES.split() and not equals:
            value = args.pop(0) if args else ""
        if name in ("--exec-path", "--config-env") and value:
            call.refuse(f"{name} changes what git runs.")
        if name == "-c":
            _check_key(call, *value.split("=", 1))
        if name in ("-C", "--git-dir", "--work-tree"):
            call.literal(value, "the folder")
            stands = posixpath.join(stands, value)
    return args, stands


#: Options of any command that run a program or copy its files in.
_RUNNING = names("--ext-diff --open-files-in-pager --upload-pack --receive-pack --template --unsafe-paths")


def _common(call: Call, rest: tuple[str, ...]) -> None:
    """Options of many commands that run something or write elsewhere."""
    given = parse(rest, "-o --output -m --message -F --file --output-directory --separate-git-dir")
    if given.has(*_RUNNING):
        call.refuse("options that run programs or write outside are not allowed.")
    for word in given.of("--output", "--output-directory", "--separate-git-dir"):
        call.places.write(word)
    for word in given.operands if given.has("--no-index") else ():
        call.places.read_tree(word)


def _no(*options: str, why: str) -> Callable[[Call, tuple[str, ...]], None]:
    """A judge that refuses the named options (short ones within a cluster too)."""

    def judge(call: Call, rest: tuple[str, ...]) -> None:
        if parse(rest).has(*options):
            call.refuse(why)

    return judge


def _only(*verbs: str) -> Callable[[Call, tuple[str, ...]], None]:
    """A judge that lets only the named sub-commands through ("" for none)."""

    def judge(call: Call, rest: tuple[str, ...]) -> None:
        verb = next((word for word in rest if not word.startswith("-")), "")
        if verb not in verbs:
            call.refuse(f"{verb[:40]!r} loses or rewrites something.")

    return judge


def _checkout(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-b -B -c -C --orphan --conflict")
    if given.has(
        "--pathspec-from-file",
        "-f",
        "--force",
        "-B",
        "--discard-changes",
        "-C",
        "--ours",
        "--theirs",
        "-p",
        "--patch",
        "--force-create",
    ):
        call.refuse("this discards changes; commit or stash them first.")
    at = rest.index("--") if "--" in rest else len(rest)
    if rest[at + 1 :] or any(word in (".", "./", ":/", "*") or wild(word) for word in given.operands):
        call.refuse("checking out files discards their changes; commit or stash them first.")
    if any(_A_FILE.search(word) for word in given.operands[:1]) and not given.has("-b", "-c", "--orphan"):
        call.refuse("checking out a file discards its changes; commit or stash them first.")
    if len(given.operands) > (2 if given.has("-b", "-c", "--orphan", "-t", "--track") else 1):
        call.refuse("checking out files discards their changes; commit or stash them first.")


def _restore(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-s --source")
    if not given.has("--staged", "-S") or given.has("--worktree", "-W"):
        call.refuse("restoring files discards their changes; only --staged is allowed.")


def _clean(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-e --exclude")
    if not given.tries():
        call.refuse("this removes files for good; look with --dry-run and remove single files.")


def _stash(call: Call, rest: tuple[str, ...]) -> None:
    if {"drop", "clear"} & set(rest[:1]):
        call.refuse("this throws stashed work away.")


def _branch(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-u --set-upstream-to --sort --format --contains --merged --no-merged --points-at")
    if given.has("-D", "-M", "-C", "-f", "--force"):
        call.refuse("forcing may lose commits; use -d, -m or -c.")


def _tag(call: Call, rest: tuple[str, ...]) -> None:
    if parse(rest, "-m --message -F --file -u --sort --format -n").has("-d", "--delete", "-f", "--force"):
        call.refuse("tags stay where they are.")


def _rebase(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-x --exec --onto -s -X --strategy")
    for text in given.of("-x", "--exec"):
        call.runner.script(call.literal(text, "the command"))


def _bisect(call: Call, rest: tuple[str, ...]) -> None:
    if rest[:1] == ("run",):
        call.runner.run(rest[1:], call.given)


def _config(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "-f --file --blob --type --default")
    reading = given.has("--get", "--get-all", "--list", "-l", "--get-regexp", "--show-origin", "--get-urlmatch")
    words = given.operands[1:] if given.operands[:1] in (("get",), ("list",), ("set",)) else given.operands
    reading = (
        reading
        or given.operands[:1] in (("get",), ("list",))
        or (len(words) < 2 and not given.has("--unset", "-e", "--edit"))
    )
    if reading and not given.has(
        "--unset", "--unset-all", "--edit", "-e", "--add", "--replace-all", "--remove-section"
    ):
        return
    if given.has("--system", "--edit", "-e", "--remove-section", "--rename-section", "-f", "--file") or not words:
        call.refuse("the configuration stays as it is.")
    _check_key(call, *words[:2])
    if words[0].lower() == "safe.directory" and any(wild(word) or "*" in word for word in words[1:]):
        call.refuse("name the folder that is safe; * turns the protection off.")


def _check_key(call: Call, key: str, value: str = "") -> None:
    elsewhere = key.lower().endswith(".remote") and re.fullmatch(r"[\w.-]*", value) is None
    if _HARMLESS_KEYS.fullmatch(key) is None or elsewhere:
        call.refuse(f"setting {key[:60]!r} may change what git runs or where it sends things.")


def _remove(call: Call, rest: tuple[str, ...]) -> None:
    given = parse(rest, "--pathspec-from-file")
    if given.has("--cached") or given.tries():
        return
    if given.has("-f", "--force", "-r") or any(wild(word) or word == "." for word in given.operands):
        call.refuse("remove single files, without -r and -f.")


def _replace(call: Call, rest: tuple[str, ...]) -> None:
    if any(word not in ("-l", "--list") for word in rest):
        call.refuse("only listing is allowed.")


def _reflog(call: Call, rest: tuple[str, ...]) -> None:
    words = parse(rest, "-n --max-count --since --until --grep --format --date").operands
    if words[:1] and words[0] in ("expire", "delete", "drop", "write"):
        call.refuse(f"{words[0]!r} loses or rewrites something.")


def _worktree(call: Call, rest: tuple[str, ...]) -> None:
    words = parse(rest, "-b -B --reason").operands
    if words[:1] == ("add",):
        for word in words[1:2]:
            call.places.write(word)
    if words[:1] == ("remove",) and parse(rest).has("-f", "--force"):
        call.refuse("forcing throws changes away.")
    _only("list", "add", "lock", "unlock", "remove", "prune")(call, rest)


def _init(call: Call, rest: tuple[str, ...]) -> None:
    for word in parse(rest, "-b --initial-branch --object-format --ref-format").operands:
        call.places.write(word)


def _grep(call: Call, rest: tuple[str, ...]) -> None:
    if any(re.match(r"-[a-zA-Z]*O|--open", word) for word in rest):
        call.refuse("opening a pager is not allowed.")


def _gc(call: Call, rest: tuple[str, ...]) -> None:
    if any(word.startswith("--prune") or word in ("--aggressive", "--force") for word in rest):
        call.refuse("this removes what could still be recovered.")


_COMMANDS: dict[str, Callable[[Call, tuple[str, ...]], None]] = {
    **REMOTE_COMMANDS,
    "init": _init,
    "checkout": _checkout,
    "switch": _checkout,
    "restore": _restore,
    "clean": _clean,
    "stash": _stash,
    "branch": _branch,
    "tag": _tag,
    "rebase": _rebase,
    "bisect": _bisect,
    "config": _config,
    "rm": _remove,
    "replace": _replace,
    "grep": _grep,
    "gc": _gc,
    "reset": _no("--hard", "--merge", "--keep", why="this discards changes; commit or stash them first."),
    "reflog": _reflog,
    "worktree": _worktree,
    "maintenance": _only("run"),
    "lfs": _only("", "pull", "fetch", "ls-files", "track", "status", "env", "version", "install"),
    "symbolic-ref": _only("HEAD"),
    "bundle": _only("verify", "list-heads"),
    "sparse-checkout": _only("list", "init", "set", "add"),
    "flow": _only("", "init", "feature", "version"),
}
GIT_JUDGES: dict[str, Judge] = {"git": judge_git}
