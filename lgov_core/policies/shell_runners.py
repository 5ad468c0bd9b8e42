"""Judges of the commands that run other commands, shells or code."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import NO_INPUT, STREAM, Call, Judge, is_option
from lgov_core.policies.shell_code import check_javascript, check_python
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
#: Environment variables through which a program runs other code, sends data elsewhere or forgets what it did.
_CLOSED_VARIABLES = re.compile(
    r"LD_\w*|DYLD_\w*|BASH_ENV|ENV|BASHOPTS|SHELLOPTS|PROMPT_COMMAND|PS[04]|IFS|HIST\w*|BASH_FUNC\w*|SHELL"
    r"|PYTHON(?:STARTUP|HOME|INSPECT|BREAKPOINT|USERBASE|EXECUTABLE|WARNINGS)|PERL5(?:OPT|LIB|DB)|PERLLIB|RUBY(?:OPT|LIB)|NODE_OPTIONS|NODE_PATH"
    r"|GIT_(?:SSH|SSH_COMMAND|EXTERNAL_DIFF|PROXY_COMMAND|ASKPASS|CONFIG\w*|EXEC_PATH|TEMPLATE_DIR|ALLOW_PROTOCOL)|SSH_ASKPASS|SUDO_ASKPASS"
    r"|PIP_(?:INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|TRUSTED_HOST|CONFIG_FILE)|UV_\w*INDEX\w*|(?i:npm_config_\w*)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS"
    r"|JDK_JAVA_OPTIONS|RUSTC(?:_WRAPPER|_WORKSPACE_WRAPPER)?|CARGO_BUILD_RUSTC\w*|GOFLAGS|GOPROXY|GONOSUMDB|GOINSECURE|(?i:\w*_proxy)|SSLKEYLOGFILE"
    r"|NODE_TLS_REJECT_UNAUTHORIZED|NODE_EXTRA_CA_CERTS|SSL_CERT_\w*|CURL_HOME|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|TERMINFO|OPENSSL_\w*"
    r"|PGPASSFILE|DOCKER_HOST|KUBECONFIG|AWS_\w*|AZURE_\w*|GOOGLE_\w*|BASH_XTRACEFD|FPATH|CDPATH|GLOBIGNORE|HOME|MAKEFLAGS|LESS(?:OPEN|CLOSE)|MANPAGER|SYSTEMD_\w*"
)
#: Variables that name a program: harmless with these values.
_PROGRAMS = re.compile(r"(?:GIT_|)(?:PAGER|EDITOR|SEQUENCE_EDITOR)|VISUAL|BROWSER|MANPAGER|SYSTEMD_PAGER")
_QUIET = ("", "cat", "true", ":", "less", "none")
_SECRET_VARIABLE = re.compile(r"\w*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE_KEY|CREDENTIAL)\w*", re.I)
_SHELL_OPTIONS = re.compile(
    r"[-+](?:[eufCvxnolTEBam]+)|pipefail|errexit|nounset|xtrace|noglob|noclobber|verbose|posix|errtrace|--"
)


def check_assignment(name: str, values: list[str]) -> str | None:
    """Why a variable may not be given one of ``values``, or None."""
    if _PROGRAMS.fullmatch(name):
        return None if all(value in _QUIET for value in values) else f"{name} would make other programs run something"
    if name == "PATH":
        bad = [entry for value in values for entry in value.split(":") if not _is_program_folder(entry)]
        return "PATH may only be given folders of installed programs, before or after $PATH" if bad else None
    if _CLOSED_VARIABLES.fullmatch(name):
        return f"setting {name} changes what other programs run or where they send things"
    return None


def _is_program_folder(entry: str) -> bool:
    if entry == UNKNOWN:
        return True
    if UNKNOWN in entry or not entry.startswith("/") or ".." in entry:
        return False
    return not entry.startswith(("/tmp", "/var/tmp", "/dev", "/proc", "/run"))


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
        why = check_assignment(name, [value])
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
        looking = words[1:2] != [] and words[1] in _GIT_LOOKING and not any(is_option(word) for word in words[2:])
    elif words[0] in ("docker", "podman"):
        looking = words[1:2] != [] and words[1] in (
            "ps",
            "images",
            "logs",
            "inspect",
            "stats",
            "top",
            "info",
            "version",
        )
    elif words[0] == "find":
        looking = not any(re.match(r"-(?:exec|ok|delete|fprint|fls)", word) for word in words)
    elif words[0] == "kubectl":
        looking = words[1:2] != [] and words[1] in ("get", "describe", "logs", "top", "version")
    elif words[0] in ("apt", "apt-get", "apt-cache", "dpkg", "dpkg-query", "dnf", "yum", "rpm", "snap"):
        looking = all(
            not is_option(w) or re.fullmatch(r"-[lLsSay]|-q[ail]?|--(?:installed|upgradable)", w) for w in words
        )
    if not looking:
        call.refuse("with the rights of root only looking is allowed.")
    call.runner.run(words, call.given)


def _xargs(call: Call) -> None:
    values = "-I -n -P -L -d -s -a -E --max-args --max-procs --delimiter --replace --max-lines --arg-file"
    given = call.parsed(values)
    call.reads(given.of("-a", "--arg-file"))
    words = _rest(call.args, values) or ["echo"]
    marks = given.of("-I", "--replace") or (["{}"] if given.has("-i") else [])
    if marks:
        call.runner.run([word.replace(mark, UNKNOWN) for word in words for mark in marks[:1] if mark], STREAM)
    else:
        call.runner.run([*words, UNKNOWN], STREAM)


def _shell(call: Call) -> None:
    args = list(call.args)
    while args and re.fullmatch(r"-[euxvlfn]+|--(?:login|norc|noprofile|posix)|-o|pipefail|\+x", args[0]):
        args.pop(0)
    if args and re.fullmatch(r"-[eulxvif]*c[eulxvif]*", args[0]):
        if len(args) < 2:
            call.refuse("-c needs the command.", "shell-unclear")
        call.runner.script(call.literal(args[1], "the command"))
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


def _python(call: Call) -> None:
    args = list(call.args)
    while args and re.fullmatch(r"-[uBEsSIOqbvx]+|-X|-W|dev|ignore|error|default|importtime|utf8", args[0]):
        args.pop(0)
    first = args[0] if args else ""
    if re.fullmatch(r"-[uBEsSIOqb]*c", first):
        check_python(call.literal(args[1] if len(args) > 1 else "", "the program"), call.places)
    elif first.startswith("-m"):
        words = [first[2:], *args[1:]] if len(first) > 2 else args[1:]
        if words:
            _python_module(call, words)
    elif first in ("-V", "--version", "-h", "--help", "-VV"):
        return
    elif first in ("", "-"):
        if call.given.kind != "text":
            call.refuse("what it would run comes from elsewhere; name a program file.", "shell-unclear")
        check_python(call.given.text, call.places)
    elif is_option(first):
        call.refuse(f"the option {first} is not known here.", "shell-unclear")
    else:
        call.places.script(call.literal(first, "the program"))
        call.reads(args)


_PYTHON_MODULES = frozenset(
    names(
        """
    venv json.tool unittest timeit compileall py_compile this pydoc doctest cProfile trace ast tokenize
    sysconfig site calendar platform zipfile tarfile dis pstats build twine_check virtualenv coverage pip
    """
    )
)


def _python_module(call: Call, words: list[str]) -> None:
    module, rest = words[0], words[1:]
    if module in ("cProfile", "trace", "timeit", "pdb", "runpy", "code", "pty", "webbrowser", "ensurepip"):
        if module == "cProfile":
            rest = [word for word in rest if not is_option(word)]
            return call.places.script(rest[0]) if rest else None
        call.refuse(f"-m {module} is not allowed here.")
    if module == "http.server":
        if not any(word.startswith("127.") or word == "localhost" for word in rest):
            call.refuse("bind it to this machine: --bind 127.0.0.1.", "shell-network")
        return None
    if module in ("json.tool", "zipfile", "tarfile"):
        for word in [word for word in rest if not is_option(word)][1:]:
            call.places.write(word)
    if module in _PYTHON_MODULES and module not in ("pip", "coverage", "build"):
        call.reads(rest)
        return None
    if "." in module or "_" in module or module.islower():
        # What pip and pytest are called directly they are called here; a module of this folder is a program of it.
        known = {
            "pip",
            "pytest",
            "mypy",
            "ruff",
            "black",
            "isort",
            "flake8",
            "pylint",
            "coverage",
            "tox",
            "nox",
            "build",
            "twine",
        }
        known |= {
            "pre_commit",
            "http",
            "flask",
            "uvicorn",
            "gunicorn",
            "django",
            "jupyter",
            "sphinx",
            "mkdocs",
            "uv",
            "poetry",
            "pyright",
        }
        known |= {"bandit", "pipx", "celery", "alembic", "ipython", "streamlit"}
        if module in known:
            return call.runner.run([module.replace("_", "-"), *rest], call.given)
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", module):
            return call.reads(rest)
    call.refuse(f"-m {module[:40]} is not known here.")
    return None


def _interpreter(call: Call) -> None:
    """node, perl, ruby and others: a file of this folder, or next to nothing on the command line."""
    args = list(call.args)
    code = {
        "node": ("-e", "-p", "--eval", "--print", "-pe"),
        "php": ("-r",),
        "ruby": ("-e",),
        "perl": ("-e", "-E"),
        "deno": ("eval",),
    }
    if args[:1] and args[0] in ("-v", "--version", "-h", "--help", "-V", "version"):
        return
    if call.name in ("node", "bun", "deno", "php") and args and args[0] in code.get(call.name, ()):
        check_javascript(call.literal(args[1] if len(args) > 1 else "", "the program")) if call.name == "node" else None
        if call.name != "node":
            call.refuse("code on the command line is not allowed; put it into a file of this folder.", "shell-code")
        return
    if call.name == "perl" and _perl_edit(call, args):
        return
    flags = {
        "node": r"--(?:test|check|watch|trace-warnings|env-file-if-exists=\.env\.example|experimental-[\w-]+)|-c",
        "php": r"-l",
        "ruby": r"-[wc]+",
    }
    while args and re.fullmatch(flags.get(call.name, r"-[wc]+"), args[0]):
        args.pop(0)
    if not args and call.name == "node" and "--test" in call.args:
        return
    if not args or is_option(args[0]):
        call.refuse("code on the command line is not allowed; put it into a file of this folder.", "shell-code")
    call.places.script(args[0])
    call.reads(args)


#: A substitution of plain text: no variables, no code in the pattern, no flag that runs the replacement.
_PLAIN_SUBSTITUTION = re.compile(r"s([/|#!])(?:[\w\s.^*+,:;=<>'\"-]|\\[.wdsbnt/])*\1[\w\s.,:=<>'\"-]*\1[gimsx]*;?")


def _perl_edit(call: Call, args: list[str]) -> bool:
    """Whether perl is only used like sed: ``-pe 's/a/b/'`` or ``-pi -e``; judges its files."""
    match = re.fullmatch(
        r"-(?:pi?e|p -e|pi -e|pi\.[a-z]+ -e|p -i -e)", " ".join(args[:2]) if args[1:2] == ["-e"] else "".join(args[:1])
    )
    at = 2 if args[1:2] == ["-e"] else 1
    if match is None or len(args) <= at or _PLAIN_SUBSTITUTION.fullmatch(args[at]) is None:
        return False
    files = args[at + 1 :]
    if any(is_option(word) for word in files):
        return False
    call.reads(files)
    for word in files if "i" in match.group() else ():
        call.places.write(word)
    return True


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
    **dict.fromkeys(("node", "perl", "ruby", "php"), _interpreter),
    "env": _env,
    "sudo": _sudo,
    "xargs": _xargs,
    "eval": _eval,
    "trap": _trap,
    "alias": _alias,
    "set": _set,
    "shopt": _set,
    "python": _python,
    "pypy": _python,
}
__all__ = ["NO_INPUT", "RUNNER_JUDGES", "check_assignment"]
