"""Judges of the commands that run other commands and shells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import STREAM, Call, Judge, is_option, parse
from lgov_core.policies.shell_environment import check_assignment
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import UNKNOWN

#: Options of the commands that run the rest of their line: those with a value, and those without. No other is let through,
#: because the word behind it would be taken for the command.
_WRAPPERS = {
    "command": ("", "-p"),
    **dict.fromkeys(("builtin", "nohup", "catchsegv", "chronic"), ("", "")),
    "unbuffer": ("", "-p"),
    "setsid": ("", "-c -f -w --ctty --fork --wait"),
    "time": ("-f --format", "-p -v --portability --verbose"),
    "exec": ("", "-c -l"),
    "nice": ("-n --adjustment", "-0 -1 -2 -3 -4 -5 -6 -7 -8 -9"),
    "ionice": ("-c -n --class --classdata", "-t --ignore"),
    **dict.fromkeys(
        ("timeout", "gtimeout"),
        ("-k -s --signal --kill-after", "-f -p -v --foreground --preserve-status --verbose"),
    ),
    "stdbuf": ("-i -o -e --input --output --error", ""),
    "watch": (
        "-n --interval",
        "-b -c -C -d -e -g -p -t -w -x --beep --color --differences --errexit --chgexit --precise --no-title --exec",
    ),
    "caffeinate": ("-t -w", "-d -i -m -s -u"),
    "taskset": ("", "-a -c --all-tasks --cpu-list"),
    "entr": ("", "-a -c -d -n -p -r -s -z"),
    "strace": (
        "-e -s -S -a -b -u -o --output",
        "-f -c -C -t -T -r -i -k -q -v -x -y -Y -d -D -w -Z -z --follow-forks --summary-only",
    ),
    "ltrace": ("-e -s -a -A -n -u -x -o --output", "-f -S -c -C -t -T -r -i -d -b"),
}
_HYPERFINE = (
    "-w -r -m -M -n -p -c -s --warmup --runs --min-runs --max-runs --command-name --prepare --conclude --cleanup --setup"
    " --export-json --export-markdown --export-csv --export-asciidoc --export-orgmode --style --time-unit -u"
)
_FLOCK = "-n -x -s -e -u -o -F --nonblock --exclusive --shared --unlock --close --no-fork --verbose"
_GOING = frozenset({"cd", "pushd", "popd"})
_SHELL_OPTIONS = re.compile(
    r"[-+](?:[eufCvxnolTEBam]+)|pipefail|errexit|nounset|xtrace|noglob|noclobber|verbose|posix|errtrace|--"
)


def _wrapper(call: Call) -> None:
    if call.name == "command" and call.args[:1] in (("-v",), ("-V",), ("-pv",)):
        return
    words = _rest(call, *_WRAPPERS[call.name])
    if call.name in ("strace", "ltrace"):
        _check_output(call, call.args[: len(call.args) - len(words)])
    if call.name in ("timeout", "gtimeout", "taskset") and words:
        words = words[1:]
    if words[:1] and words[0] in _GOING:
        call.refuse("go to another folder with a plain cd.", "shell-unclear")
    if call.name == "watch":
        call.runner.script(call.literal(" ".join(words), "the command"))
    elif words:
        call.runner.run(words, call.given)


def _check_output(call: Call, own: Sequence[str]) -> None:
    """Judges where a tracer writes what it saw."""
    for word in parse(own, _WRAPPERS[call.name][0]).of("-o", "--output"):
        if word.startswith(("|", "!")):
            call.refuse("it hands what it saw to a command.", "shell-unclear")
        call.places.write(word)
        call.runner.writes(word)


def _flock(call: Call) -> None:
    """flock: it makes the file that it locks, and then runs a command."""
    file, *words = _rest(call, "-w -E --timeout --wait --conflict-exit-code", _FLOCK) or [""]
    if words or not file.isdigit():  # a number stands for a file that is open
        call.places.write(file)
    if words[:1] in (["-c"], ["--command"]):
        call.runner.script(call.literal(" ".join(words[1:]), "the command"))
    elif words:
        call.runner.run(words, call.given)


def _hyperfine(call: Call) -> None:
    given = call.parsed(_HYPERFINE)
    known = {*_HYPERFINE.split(), *names("-N -i --ignore-failure --show-output")}
    if not known.issuperset(option for option in given.options if option.startswith("--") or len(option) == 2):
        call.refuse("an option among them is not known to only measure.", "shell-unclear")
    for option, value in given.values:
        if option.startswith("--export"):
            call.places.write(value)
    scripts = given.of("-p", "-c", "-s", "--prepare", "--conclude", "--cleanup", "--setup")
    for word in (*scripts, *given.operands):
        call.runner.script(call.literal(word, "the command"))


def _env(call: Call) -> None:
    words = _rest(call, "-u --unset", "-i -0 -v --ignore-environment --null --debug")
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
    words = _rest(call, "", "-n -H -E -k -v -l --version --help")
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
_XARGS_VALUES = "-I -n -P -L -d -s -a -E --max-args --max-procs --delimiter --max-chars --arg-file"
_XARGS_FLAGS = (
    "-0 -r -t -p -x -i -l -e --null --no-run-if-empty --verbose --interactive --exit --replace --max-lines --eof"
)


def run_by_xargs(args: Sequence[str]) -> list[str]:
    """The command that an xargs with these arguments runs. Raises `Refused` for options that are not known."""
    words, unknown = _behind(args, _XARGS_VALUES, _XARGS_FLAGS)
    if unknown:
        raise Refused("shell-unclear", f"xargs: the option {unknown[:30]} is not known here.")
    return words or ["echo"]


def _xargs(call: Call) -> None:
    words = run_by_xargs(call.args)
    own = len(call.args) - len(words) if call.args[len(call.args) - len(words) :] == tuple(words) else len(call.args)
    given = parse(call.args[:own], _XARGS_VALUES)
    call.reads(given.of("-a", "--arg-file"))
    glued = [option[2:] for option in given.options if re.match(r"-i.", option)]
    marks = [*given.of("-I", "--replace"), *glued] or (["{}"] if given.has("-i", "-I", "--replace") else [])

    if "" in marks:
        call.refuse("write out what stands for a name.", "shell-unclear")

    def filled(name: str) -> list[str]:
        if marks:
            return [word.replace(marks[0], name) for word in words]
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
        call.refuse("go to another folder with a plain cd.", "shell-unclear")
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
            _eval(Call("trap", (word,), call.given, call.runner))


def _alias(call: Call) -> None:
    if any("=" in word for word in call.args):
        call.refuse("giving commands other names is not allowed; write them out.")


def _set(call: Call) -> None:
    if call.name == "set" and call.args and not all(_SHELL_OPTIONS.fullmatch(word) for word in call.args):
        call.refuse("only plain options such as -e, -u, -x and -o pipefail may be set.")
    if call.name == "shopt" and any("hist" in word or "alias" in word for word in call.args):
        call.refuse("the history and aliases stay as they are.")


def _rest(call: Call, values: str, flags: str) -> list[str]:
    """The words behind a command's own options, all of which must be known. Raises `Refused`."""
    words, unknown = _behind(call.args, values, flags)
    if unknown:
        call.refuse(f"the option {unknown[:30]} is not known here.", "shell-unclear")
    return words


def _behind(args: Sequence[str], values: str, flags: str) -> tuple[list[str], str]:
    """The words behind the options with and without values, and an option that is none of them."""
    taking, plain = values.split(), flags.split()
    words = list(args)
    while words and len(words[0]) > 1 and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if option.startswith("--"):
            name, equals, _ = option.partition("=")
            if name in taking and not equals:
                words = words[1:]
            elif name not in taking and name not in plain:
                return words, option
            continue
        for at, letter in enumerate(option[1:], 1):
            if f"-{letter}" in taking:
                words = words if option[at + 1 :] else words[1:]
                break
            if f"-{letter}" not in plain:
                return words, option
            if letter in "iel" and "--replace" in plain:  # of xargs: what stands behind it is its value
                break
    return words, ""


RUNNER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(_WRAPPERS, _wrapper),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "ash"), _shell),
    **dict.fromkeys(("source", "."), _source),
    "env": _env,
    "hyperfine": _hyperfine,
    "flock": _flock,
    "sudo": _sudo,
    "xargs": _xargs,
    "eval": _eval,
    "trap": _trap,
    "alias": _alias,
    "set": _set,
    "shopt": _set,
}
