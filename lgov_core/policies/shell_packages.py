"""Judges of package managers: packages come from the usual index and stay in the folder; nothing is published."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_builders import check_programs
from lgov_core.policies.shell_call import Call, Judge, parse

#: Options that fetch from elsewhere, put packages elsewhere, or hand something to what builds them.
_PIP_CLOSED = names(
    """
    -i --index-url --extra-index-url -f --find-links --trusted-host --proxy --root --prefix --global-option --install-option
    --config-settings --index --default-index
    """
)

_PIP_VERBS = names(
    """
    install download list show freeze check search index hash debug inspect wheel help venv sync lock tree add init version self
    build env update export config-list about python tool-list cache-dir shell run info outdated test remove compile
    """
)
_PIP_CHANGING = names("install download wheel sync run add remove lock init build update venv compile")
#: Options that name a place to write to.
_PIP_WRITING = names("-t --target --src -d --dest -w --wheel-dir --report --log -o --output-file --out-dir")


def _pip(call: Call) -> None:
    words = [word for word in call.args if not word.startswith("-")]
    verb = (words or [""])[0]
    _check_standing(call)
    if call.name == "uv" and verb == "pip":
        return _pip(Call("pip", tuple(word for word in call.args if word != "pip"), call.given, call.runner))
    if call.name == "uv" and words[:2] == ["tool", "run"]:
        return call.runner.run(["uvx", *call.args[call.args.index("run") + 1 :]], call.given)
    if call.name == "uv" and verb == "run":
        return _uv_run(call, list(call.args[call.args.index("run") + 1 :]))
    if verb and verb not in _PIP_VERBS:
        call.refuse(f"{verb[:40]} is not allowed here.")
    if verb in _PIP_CHANGING:
        call.places.work_in()
    if verb == "run":
        return call.runner.run(call.args[call.args.index("run") + 1 :], call.given)
    given = parse(
        call.args,
        "-i --index-url --extra-index-url -f --find-links -t --target --prefix --root --proxy --cert -r -c -e --src"
        " -d --dest -w --wheel-dir --report --log -o --output-file --out-dir",
    )
    if given.has(*_PIP_CLOSED):
        call.refuse("packages come from the usual index.", "shell-network")
    for word in given.of(*_PIP_WRITING):
        call.places.write(word)
    for word in (*given.operands, *given.of("-r", "--requirement", "-e", "--editable")):
        call.literal(word, "the package")
        if re.search(r"://|^git\+|@ ", word) or word.startswith(("/tmp", "~", "/dev")):
            call.refuse("packages come from the usual index or from this folder.", "shell-network")
        if ".." in word.split("/") or word.startswith("/"):
            call.places.script(word)
    call.reads(given.operands)
    return None


def _check_standing(call: Call) -> None:
    """Judges the interpreter that is asked, and the folder that is worked in, where options name others."""
    given = parse(call.args, "-p --python --directory --project -C -P")
    for word in given.of("-p", "--python", "--directory", "--project", "-C", "-P"):
        if "/" in word and not word.startswith(("/usr/", "/opt/")):
            call.places.script(word)


_UV_VALUES = ("-p", "--python", "--extra", "--group", "--only-group", "--no-group", "--package", "--no-extra")
_UV_FLAGS = re.compile(
    r"--(?:frozen|locked|no-sync|no-dev|dev|all-extras|all-groups|active|isolated|offline|exact|quiet|verbose|no-project|no-progress)"
    r"|-[qv]+|--(?:python|extra|group|only-group|no-group|package|no-extra)=.*"
)


def _uv_run(call: Call, words: list[str]) -> None:
    """What ``uv run`` runs, with all its options; those of uv itself are known or refused."""
    call.places.work_in()
    while words and words[0].startswith("-") and words[0] not in ("--", "-m", "--module"):
        option = words.pop(0)
        if option in _UV_VALUES and words:
            words.pop(0)
        elif _UV_FLAGS.fullmatch(option) is None:
            call.refuse(f"{option[:40]} is not allowed here; install first.")
    if words[:1] == ["--"]:
        words.pop(0)
    program = words[0] if words else "true"
    if "://" in program:
        call.refuse("a program from elsewhere is not run in one go.", "shell-program")
    if program in ("-m", "--module"):
        words = ["python", "-m", *words[1:]]
    elif program.endswith(".py"):
        words = ["python", *words]
    call.runner.run(words or ["true"], call.given)


#: A repository of somebody (``user/name``, ``github:...``), or an address.
_OF_SOMEBODY = re.compile(r"(?!\.{0,2}/|@|[\w.-]+@npm:)[^/]*[:/]")
#: Options that name other settings, programs and places of the package manager.
_NODE_CLOSED = names(
    "--registry -g --global --script-shell --location --userconfig --globalconfig --git --node-options --init-module --shell"
)


def _node_packages(call: Call) -> None:
    words = list(parse(call.args, _NODE_VALUES.get(call.name, "--cwd")).operands)
    verb = (words or [""])[0]
    if verb == "pkg" or (verb in ("config", "cache", "whoami", "publish") and _looks_at_registry(call, words)):
        return _settings(call, words[1:2]) if verb == "pkg" else call.reads(call.args)
    allowed = (
        "install i ci add run test t start stop restart build list ls ll outdated audit view info show why explain "
        "root prefix bin pack version init create fund doctor ping search dedupe exec dlx lint dev format "
        "typecheck workspace workspaces help rebuild x fmt check update up uninstall remove rm prune query sbom"
    )
    if verb and verb not in allowed.split():
        if (
            call.name in ("yarn", "pnpm", "bun")
            and re.fullmatch(r"[a-z][\w:.-]*", verb)
            and verb not in _PACKAGE_CLOSED
        ):
            return _program(call, verb)
        call.refuse(f"{verb[:40]} is not allowed here.")
    if verb not in _LOOKING:
        call.places.work_in()
    given = parse(call.args, "--registry --prefix -C --cwd")
    if call.name == "bun" and given.has("-e", "--eval", "-p", "--print"):
        call.refuse("code on the command line is not allowed; put it into a file of this folder.", "shell-code")
    if (
        given.has(*_NODE_CLOSED)
        or any(":registry" in word for word in call.args)
        or (verb == "audit" and "signatures" not in words and given.has("--force"))
    ):
        call.refuse("packages come from the usual registry and stay in this folder.", "shell-network")
    for folder in given.of("--prefix", "-C", "--cwd"):
        call.places.script(folder)
    if verb in ("exec", "dlx", "x"):
        rest = [word for word in call.args[call.args.index(verb) + 1 :] if word != "--"]
        return _npx(Call(call.name, tuple(rest), call.given, call.runner))
    _check_packages(call, words[1:] if verb in ("install", "i", "add") else [])
    _check_script(call, verb, words)
    if call.name == "bun" and verb == "run" and len(words) > 1:
        return _program(call, words[1])
    return call.reads(call.args)


def _check_packages(call: Call, words: list[str]) -> None:
    """Refuses packages of another registry, of somebody's repository and of another folder."""
    for word in words:
        call.literal(word, "the package")
        if re.search(r"://|^git\+|^/|\.tgz$", word) or _OF_SOMEBODY.match(word):
            call.refuse("packages come from the usual registry.", "shell-network")
        if ".." in word.split("/"):
            call.places.script(word)


def _program(call: Call, verb: str) -> None:
    """A script of the folder by its name, or else a program that is installed, which is judged as it is."""
    from lgov_core.policies.shell_known import JUDGES, plain_name

    call.reads(call.args)
    if plain_name(verb) in JUDGES:
        call.runner.run(call.args[call.args.index(verb) :], call.given)


def _settings(call: Call, verb: list[str]) -> None:
    """``npm pkg``: shows and changes the package.json of the folder."""
    if verb not in (["get"], ["set"], ["delete"], ["fix"]):
        call.refuse("pkg may get, set, delete and fix.")
    call.places.work_in()
    if verb != ["get"]:
        call.runner.writes("package.json")  # run in the same text, it would be run unseen
    call.reads(call.args)


def _check_script(call: Call, verb: str, words: list[str]) -> None:
    if "--" in call.args and verb in ("run", "test", "t", "start"):
        check_programs(Call(call.name, call.args[call.args.index("--") + 1 :], call.given, call.runner))
    if verb == "run" and any(re.match(r"publish|deploy|release|destroy", word) for word in words[1:2]):
        call.refuse("this script reaches beyond this folder.")


_LOOKING = names("view info show search whoami ping help version list ls ll outdated")
#: Options with a value that may stand ahead of what is to be done.
_NODE_VALUES = {
    "npm": "--prefix -C -w --workspace",
    "pnpm": "--prefix -C --dir --filter -F",
}


def _looks_at_registry(call: Call, words: list[str]) -> bool:
    """Whether a command of the package manager's own settings only reads, or only tries."""
    line = " ".join(words)
    if re.fullmatch(r"config (?:list|ls|get [a-z-]+)|cache (?:verify|ls|list|dir)|whoami", line):
        return not re.search(r"auth|token|pass|secret", line, re.I)
    access = r"(?: --access[= ]\w+)?"
    return re.fullmatch(rf"publish{access}(?: \./?[\w./-]*)? --dry-run{access}", " ".join(call.args)) is not None


_PACKAGE_CLOSED = frozenset(
    names(
        """
    publish unpublish deprecate owner token login logout adduser access config set unlink
    link cache dist-tag hook org profile star team upgrade deploy release patch npm tag global policies
    plugin
    """
    )
)


def _npx(call: Call) -> None:
    words = list(call.args)
    while words and words[0] in ("--yes", "-y", "--no-install", "--no", "--bun"):
        words.pop(0)
    if words and _OF_SOMEBODY.match(words[0]):
        call.refuse("packages come from the usual registry.", "shell-network")
    if words:
        call.runner.run(words, call.given)


PACKAGE_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("pip", "uv", "poetry", "pipenv", "pipx"), _pip),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), _node_packages),
    **dict.fromkeys(("npx", "bunx", "uvx"), _npx),
}
