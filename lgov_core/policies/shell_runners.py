"""Judges of the commands that run other commands and shells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import STREAM, Call, Judge, is_option, parse
from lgov_core.policies.shell_environment import check_assignment
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import UNKNOWN

#: Options with a value of the commands that run the rest of their line.
_WRAPPERS = {
    **dict.fromkeys(("command", "builtin", "nohup", "setsid", "time", "exec", "catchsegv", "unbuffer"), ""),
    "nice": "-n --adjustment",
    "ionice": "-c -n --class --classdata",
    "timeout": "-k -s --signal --kill-after",
    "stdbuf": "-i -o -e --input --output --error",
    "chronic": "",
    "watch": "-n --interval",
    "gtimeout": "-k -s",
    "caffeinate": "-t -w",
    "taskset": "-c",
    "hyperfine": "-w -r -m -M -n --warmup --runs --export-json --export-markdown",
    "entr": "",
    "strace": "-e -o -p -s",
    "ltrace": "-e -o -p",
}
_SHELL_OPTIONS = re.compile(
    r"[-+](?:[eufCvxnolTEBam]+)|pipefail|errexit|nounset|xtrace|noglob|noclobber|verbose|posix|errtrace|--"
)


def _wrapper(call: Call) -> None:
    given = call.parsed(_WRAPPERS[call.name])
    if call.name == "command" and given.has("-v", "-V"):
        return
    if call.name in ("strace", "ltrace") and given.has("-p", "-o"):
        call.refuse("watching other processes is not allowed.")
    if call.name == "exec" and given.has("-a"):
        call.refuse("a false program name is not allowed.")
    words = _rest(call.args, _WRAPPERS[call.name])
    if call.name in ("timeout", "gtimeout", "taskset") and words:
        words = words[1:]
    if call.name in ("watch", "hyperfine"):
        for word in words if call.name == "hyperfine" else [" ".join(words)]:
            call.runner.script(call.literal(word, "the command"))
    elif words:
        call.runner.run(words, call.given)


def _env(call: Call) -> None:
    words = _rest(call.args, "-u --unset -C --chdir")
    given = call.parsed("-u --unset -C --chdir -S --split-string")
    if given.has("-S", "--split-string"):
        call.refuse("write the command as words of their own.")
    for folder in given.of("-C", "--chdir"):
        call.places.write(folder)
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        why = check_assignment(name, [value], call.places)
        if why is not None:
            call.refuse(f"{why}.", "shell-environment")
    if words:
        call.runner.run(words, call.given)


#: What may run with the rights of root: what only looks, and starts no pager, editor or program of this folder.
_AS_ROOT = frozenset(
    names(
        """
    ls cat head tail wc stat file du df grep zgrep find true id whoami ps lsof ss netstat lsblk dmesg uptime free pgrep
    journalctl systemctl service apt apt-get apt-cache dpkg dpkg-query dnf yum rpm snap docker podman git kubectl ip ufw
    iptables fdisk parted blkid lvs vgs pvs sysctl timedatectl hostnamectl which
    """
    )
)
_GIT_LOOKING = frozenset(names("status log diff show rev-parse branch describe"))
_DOCKER_LOOKING = frozenset(names("ps images logs inspect stats top info version"))
_KUBECTL_LOOKING = frozenset(names("get describe logs top version"))


def _sudo(call: Call) -> None:
    """Lets commands that look run as root; the command is judged as if it stood alone."""
    words = _rest(call.args, "")
    if not all(
        option in ("-n", "-H", "-E", "-k", "-v", "-l", "--version", "--help")
        for option in call.args[: len(call.args) - len(words)]
    ):
        call.refuse("only -n, -H and -E are allowed.")
    if not words:
        return
    looking = words[0] in _AS_ROOT
    if words[0] == "git":
        looking = "".join(words[1:2]) in _GIT_LOOKING and not any(is_option(word) for word in words[2:])
    elif words[0] in ("docker", "podman"):
        looking = "".join(words[1:2]) in _DOCKER_LOOKING
    elif words[0] == "find":
        looking = not any(re.match(r"-(?:exec|ok|delete|fprint|fls)", word) for word in words)
    elif words[0] == "kubectl":
        looking = "".join(words[1:2]) in _KUBECTL_LOOKING
    elif words[0] in ("apt", "apt-get", "apt-cache", "dpkg", "dpkg-query", "dnf", "yum", "rpm", "snap"):
        looking = all(
            not is_option(w) or re.fullmatch(r"-[lLsSay]|-q[ail]?|--(?:installed|upgradable)", w) for w in words
        )
    if not looking:
        call.refuse("with the rights of root only looking is allowed.")
    call.runner.run(words, call.given)


#: Commands that take files away or put others in their place: they are not given a list that a space may spoil.
REPLACING = frozenset({"rm", "mv", "rmdir", "truncate", "tee", "cp", "ln"})
_XARGS_VALUES = "-I -n -P -L -d -s -a -E --max-args --max-procs --delimiter --replace --max-lines --arg-file"


def run_by_xargs(args: Sequence[str]) -> list[str]:
    """The command that an xargs with these arguments runs."""
    return _rest(tuple(args), _XARGS_VALUES) or ["echo"]


def _xargs(call: Call) -> None:
    words = run_by_xargs(call.args)
    given = (
        parse(call.args[: len(call.args) - len(words)], _XARGS_VALUES)
        if words != ["echo"]
        else call.parsed(_XARGS_VALUES)
    )
    call.reads(given.of("-a", "--arg-file"))
    glued = [option[2:] for option in given.options if re.match(r"-i.", option)]
    marks = [*given.of("-I", "--replace"), *glued] or (["{}"] if given.has("-i", "-I", "--replace") else [])

    def filled(name: str) -> list[str]:
        if marks:
            return [word.replace(mark, name) for word in words for mark in marks[:1] if mark]
        return [*words, name]

    try:
        call.runner.run(filled(UNKNOWN), STREAM)
    except Refused as refused:
        # A space in a name makes two of it.
        split = REPLACING.intersection(words[:4]) and not given.has("-0", "--null")
        split = split or {"truncate", "tee", "dd"}.intersection(words[:1])  # whatever the names, nothing would be left
        if refused.rule != "shell-unclear" or not call.given.listed or split or given.has("-a", "--arg-file"):
            raise
        try:
            for name in call.given.listed:
                call.runner.run(filled(name), STREAM)
        except Refused as other:
            raise (refused if other.rule == "shell-unclear" else other) from None


def _shell(call: Call) -> None:
    args = list(call.args)
    if args and re.fullmatch(r"-[evx]*n[evx]*", args[0]) and not any(is_option(word) for word in args[1:]):
        return call.reads(args[1:])  # it is only parsed
    while args and re.fullmatch(r"-[euxvlfn]+|--(?:login|norc|noprofile|posix)|-o|pipefail|\+x", args[0]):
        args.pop(0)
    if args and re.fullmatch(r"-[eulxvif]*c[eulxvif]*", args[0]):
        if len(args) < 2:
            call.refuse("-c needs the command.", "shell-unclear")
        if UNKNOWN in args[1]:
            call.refuse(
                "the command is not written out; hand what is not known here over as an argument: sh -c '... \"$1\"' _ {}",
                "shell-unclear",
            )
        call.runner.script(args[1])
    elif args[:1] in (["--version"], ["--help"]):
        return
    elif args and not is_option(args[0]):
        call.places.script(args[0])
        call.reads(args)
    elif not args and call.given.kind == "text":
        call.runner.script(call.given.text)
    else:
        call.refuse("what it would run comes from elsewhere; write the commands out.", "shell-unclear")


def _eval(call: Call) -> None:
    if re.search(r"\b(?:cd|pushd|popd)\b", " ".join(call.args)):
        call.refuse("go to another folder without eval.", "shell-unclear")
    call.runner.script(call.literal(" ".join(call.args), "the command"))


def _source(call: Call) -> None:
    for word in call.args[:1]:
        call.places.script(word)
    call.reads(call.args)


def _trap(call: Call) -> None:
    if "DEBUG" in call.args:
        call.refuse("looking over every command is not allowed.")
    for word in call.parsed().operands[:1]:
        if word not in ("", "-"):
            call.runner.script(call.literal(word, "the command"))


def _alias(call: Call) -> None:
    if any("=" in word for word in call.args):
        call.refuse("giving commands other names is not allowed; write them out.")


def _set(call: Call) -> None:
    if call.name == "set" and call.args and not all(_SHELL_OPTIONS.fullmatch(word) for word in call.args):
        call.refuse("only plain options such as -e, -u, -x and -o pipefail may be set.")
    if call.name == "shopt" and any("hist" in word or "alias" in word for word in call.args):
        call.refuse("the history and aliases stay as they are.")


def _rest(args: tuple[str, ...], values: str) -> list[str]:
    """The words after a command's own options."""
    taking = values.split()
    words = list(args)
    while words and len(words[0]) > 1 and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if option in taking and words:
            words.pop(0)
    return words


RUNNER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(_WRAPPERS, _wrapper),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "ash"), _shell),
    **dict.fromkeys(("source", "."), _source),
    "env": _env,
    "sudo": _sudo,
    "xargs": _xargs,
    "eval": _eval,
    "trap": _trap,
    "alias": _alias,
    "set": _set,
    "shopt": _set,
}
