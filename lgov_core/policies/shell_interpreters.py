"""Judges of interpreters: a program of this folder, or next to nothing on the command line."""

from __future__ import annotations

import re
import sys

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, is_option, parse
from lgov_core.policies.shell_code import check_javascript, check_python
from lgov_core.policies.shell_perl import judge_perl


def _python(call: Call) -> None:
    args = list(call.args)
    while args and re.fullmatch(r"-[uBEsSIOqbvx]+|-X|-W|dev|ignore|error|default|importtime|utf8", args[0]):
        args.pop(0)
    first = args[0] if args else ""
    if re.fullmatch(r"-[uBEsSIOqb]*c", first):
        check_python(call.literal(args[1] if len(args) > 1 else "", "the program"), call.places, call.runner.writes)
    elif first.startswith("-m"):
        words = [first[2:], *args[1:]] if len(first) > 2 else args[1:]
        if words:
            _python_module(call, words)
    elif first in ("-V", "--version", "-h", "--help", "-VV"):
        return
    elif first in ("", "-"):
        if call.given.kind != "text":
            call.refuse("what it would run comes from elsewhere; name a program file.", "shell-unclear")
        check_python(call.given.text, call.places, call.runner.writes)
    elif is_option(first):
        call.refuse(f"the option {first} is not known here.", "shell-unclear")
    else:
        call.places.script(call.literal(first, "the program"))
        call.reads(args)


#: What may be part of the library of the Python that a command names, whichever runs lgov: also what 3.12 and 3.13 dropped.
_PYTHON_LIBRARY = sys.stdlib_module_names | frozenset(
    names(
        """
    2to3 aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib
    ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib
    """
    )
)
#: Modules that work on the files they are given, or on none.
_PYTHON_MODULES = frozenset(
    names(
        """
    venv json.tool unittest compileall py_compile this pydoc doctest ast tokenize sysconfig site calendar platform zipfile
    tarfile dis pstats twine_check virtualenv
    """
    )
)
#: Modules that run whatever they are given, or reach beyond the folder.
_CLOSED_PYTHON_MODULES = frozenset(names("trace pdb runpy code pty webbrowser ensurepip"))
#: Further ones of the library that show something.
_PLAIN_PYTHON_MODULES = frozenset(
    names(
        "http timeit cProfile base64 inspect locale mimetypes pickletools random uuid quopri tabnanny pyclbr filecmp symtable"
    )
)
#: Modules that write files, and how many of their words name what is only read.
_WRITING_PYTHON_MODULES = {"json.tool": 1, "zipfile": 1, "tarfile": 1, "venv": 0, "virtualenv": 0, "compileall": 0}
#: Modules that are commands too, and are judged as those.
_PYTHON_COMMANDS = frozenset(
    names(
        """
    pip pytest mypy ruff black isort flake8 pylint coverage tox nox build twine pre_commit http flask uvicorn gunicorn django
    jupyter sphinx mkdocs uv poetry pyright bandit pipx celery alembic ipython streamlit
    """
    )
)


def _python_module(call: Call, words: list[str]) -> None:
    """Judges ``python -m``: a module of the library that is known, a command by its other name, or one of this folder."""
    module, rest = words[0], words[1:]
    operands = [word for word in rest if not is_option(word)]
    library = module.partition(".")[0]
    known = {library, module} & {*_PYTHON_MODULES, *_WRITING_PYTHON_MODULES, *_PYTHON_COMMANDS, *_PLAIN_PYTHON_MODULES}
    judges = library.startswith("lgov")  # what answers approvals and erases from the record is not for who is judged
    if judges or module in _CLOSED_PYTHON_MODULES or (library in _PYTHON_LIBRARY and not known):
        call.refuse(f"-m {module} is not allowed here.")
    if rest in (["--help"], ["-h"]):
        return
    if module in ("timeit", "cProfile"):
        return _measured(call, module, rest)
    if module == "http.server":
        return _served(call, rest)
    for word in rest if module in ("unittest", "doctest", "pydoc") else ():  # they run what they find there
        if "/" in word or word.endswith(".."):
            call.places.script(word.partition("=")[2] or word)
    packing = module in ("zipfile", "tarfile") and parse(rest).has("-c", "--create")
    for word in operands[:1] if packing else operands[_WRITING_PYTHON_MODULES.get(module, len(operands)) :]:
        call.places.write(word)
    for word in operands[1:] if packing else ():
        call.places.read_tree(word)
    if module in _PYTHON_COMMANDS:
        command = "django-admin" if module == "django" else module.replace("_", "-")
        call.runner.run([command, *rest], call.given)
    elif module in _PYTHON_MODULES or _is_module_name(module):
        call.reads(rest)
    else:
        call.refuse(f"-m {module[:40]} is not known here.")


def _served(call: Call, words: list[str]) -> None:
    given = parse(words, "-b --bind -d --directory -p --protocol")
    bound = given.of("-b", "--bind")
    if not bound or not all(word.startswith("127.") or word == "localhost" for word in bound):
        call.refuse("bind it to this machine: --bind 127.0.0.1.", "shell-network")
    for word in given.of("-d", "--directory"):
        call.places.read_tree(word)


def _measured(call: Call, module: str, words: list[str]) -> None:
    """Judges what is run to be measured: a program of this folder, or statements as one program."""
    if module == "cProfile":
        given = parse(words, "-o --outfile -s --sort")
        for word in given.of("-o", "--outfile"):
            call.places.write(word)
        if "-m" in words:
            return _python_module(call, words[words.index("-m") + 1 :] or [""])
        for word in given.operands[:1]:
            call.places.script(word)
        return
    flags = r"-[vpc]|-[nru]\d*|-s|--(?:verbose|process|setup|repeat|number|unit)|[mnu]?sec|--(?:repeat|number|unit)=\w+"
    statements = [word.removeprefix("--setup=") for word in words if re.fullmatch(flags, word) is None]
    check_python(call.literal("\n".join(statements), "the program"), call.places, call.runner.writes)


def _is_module_name(text: str) -> bool:
    """Whether a module of this folder may be called so."""
    plain = "." in text or "_" in text or text.islower()
    return plain and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", text) is not None


#: Options of node behind which code stands.
_NODE_CODE = names("-e -p --eval --print -pe")
#: Options that change nothing about what is run.
_INTERPRETER_FLAGS = {
    "node": r"--test-(?:reporter|concurrency|timeout|shard)=[\w/-]+|--test-(?:name-pattern=.*|only|force-exit)"
    r"|--enable-source-maps|--no-warnings|--max-old-space-size=\d+|--(?:import|require)=(?:@?[a-z][\w-]*)(?:/[\w-]+)*"
    r"|--(?:test|check|watch|trace-warnings|env-file-if-exists=\.env\.example|experimental-(?![\w-]*loader|default-type|policy|config|sea-config)[\w-]+)|-c",
    "php": r"-l",
    "Rscript": r"--(?:vanilla|verbose|no-(?:save|restore|environ|site-file|init-file|echo))",
    "julia": r"--project(?:=[@.]?)?|-t\d+|--threads=\d+|-O[0-3]|--(?:check-bounds|startup-file|color)=\w+",
}


def _interpreter(call: Call) -> None:
    """node, perl, ruby, R and others: a file of this folder, or next to nothing on the command line."""
    args = list(call.args)
    if args[:1] and args[0] in ("-v", "--version", "-h", "--help", "-V", "version"):
        return
    if call.name == "node" and args and args[0] in _NODE_CODE:
        return check_javascript(call.literal(args[1] if len(args) > 1 else "", "the program"), call.places)
    if call.name == "perl" and judge_perl(call):
        return
    while args and re.fullmatch(_INTERPRETER_FLAGS.get(call.name, r"-[wc]+"), args[0]):
        args.pop(0)
    if not args and call.name == "node" and "--test" in call.args:
        return
    if not args or is_option(args[0]):
        call.refuse("code on the command line is not allowed; put it into a file of this folder.", "shell-code")
    for word in args if "--test" in call.args else args[:1]:
        call.places.script(word)
    call.reads(args)


_LAUNCHER_VALUES = (
    "--nproc_per_node --nproc-per-node --nnodes --node_rank --node-rank --master_addr --master-addr --master_port"
    " --master-port --rdzv_backend --rdzv-backend --rdzv_endpoint --rdzv-endpoint --rdzv_id --rdzv-id --max_restarts"
    " --max-restarts --role --log_dir --log-dir -t --tee -r --redirects --local_addr --local-addr --monitor_interval"
    " --monitor-interval --start_method --start-method --rdzv_conf --rdzv-conf --local-ranks-filter --logs-specs"
)


def _torchrun(call: Call) -> None:
    """torchrun: a program of this folder, in several processes."""
    given = call.parsed(_LAUNCHER_VALUES)
    if not given.operands or given.has("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"):
        call.refuse("name a program file of this folder.", "shell-program")
    for word in given.of("--log_dir", "--log-dir"):
        call.places.write(word)
    call.places.script(given.operands[0])
    call.reads(call.args)


INTERPRETER_JUDGES: dict[str, Judge] = {
    "torchrun": _torchrun,
    **dict.fromkeys(("python", "pypy"), _python),
    **dict.fromkeys(("node", "perl", "ruby", "php", "Rscript", "julia", "lua"), _interpreter),
}
