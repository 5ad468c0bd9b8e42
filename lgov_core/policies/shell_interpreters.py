"""Judges of interpreters: a program of this folder, or next to nothing on the command line."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, is_option
from lgov_core.policies.shell_code import check_javascript, check_python


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
    written = {"json.tool": 1, "zipfile": 1, "tarfile": 1, "venv": 0, "virtualenv": 0, "compileall": 0}
    for word in [word for word in rest if not is_option(word)][written.get(module, len(rest)) :]:
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


INTERPRETER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("python", "pypy"), _python),
    **dict.fromkeys(("node", "perl", "ruby", "php"), _interpreter),
}
