"""The judge of the command lines of services and of the machine's own: looking passes, changing does not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, wild
from lgov_core.policies.shell_service_lines import SPECIAL, TRYING
from lgov_core.policies.shell_service_reach import check_reach
from lgov_core.policies.shell_service_words import HARMFUL, LOOKED_AT, LOOKING, SERVICES

_ABOUT_ITSELF = frozenset({"--version", "--help", "-h", "-V", "-v", "--list", "--show"})

#: Tools that run what stands behind ``--`` after this word.
_RUNNING = {"kubectl": "exec", "oc": "exec", "doppler": "run", "op": "run", "aws-vault": "exec"}
#: What may be run in a container of a cluster, where no folder of this machine is meant.
_ELSEWHERE = frozenset(
    names(
        """
    ls cat head tail grep wc ps df du date whoami id uptime stat hostname uname free psql mysql redis-cli
    mongosh curl nc pg_isready nslookup dig ping netstat ss
    """
    )
)
#: Options, of any tool, behind which stands a program to run.
_RUNS_MORE = re.compile(
    r"^--?[\w-]*(?:-command(?!-)|-cmd|rsh|post-renderer|-hook|-exec|from-command|remote-path|pipe|setopt)(?:=|$)|^--option$|\.command="
)
_FLAGS = frozenset(
    names(
        "--delete --all --recursive --force --install -y --yes -v --verbose --quiet -q --progress -A --wait --list -P"
    )
)
#: Tools of which nothing but these lines is let through.
_WHOLE = frozenset({"mysqladmin", "bq", "xmlstarlet", "service", "ip", "iptables", "ip6tables", "sysctl"})


def _service(call: Call) -> None:
    """Lets looking through: the first word that says what to do must be a looking one."""
    extra = frozenset(SERVICES[call.name].split())
    call.reads(call.args)
    if any(_RUNS_MORE.search(word) for word in call.args) or (
        call.name.startswith("apt") and any(re.match(r"-[oc]|--option|--config", word) for word in call.args)
    ):
        call.refuse("an option among them runs a program.")
    if call.name.startswith("ansible"):
        _check_ansible(call)
    if call.name in ("systemctl", "timedatectl", "hostnamectl", "loginctl") and any(
        re.match(r"-[a-zA-Z]*H|--host(?:=|$)", word) for word in call.args
    ):
        call.refuse("another machine is not asked.", "shell-network")
    check_reach(call)
    if _inner_command(call) or _only_tries(call):
        return
    if call.name in SPECIAL and SPECIAL[call.name].fullmatch(" ".join(call.args)):
        return
    if call.name in _WHOLE:
        call.refuse("only looking is allowed, in its plainest form.")
    if any(
        word.startswith("-")
        and not (
            _harmless_option(word) or word in extra or (word == "-w" and call.name in ("kubectl", "oc", "etcdctl"))
        )
        for word in call.args
    ):
        call.refuse("an option among them changes or removes something.")
    words = [word for word in call.args if not word.startswith("-")]
    if not words:
        if any(word not in extra and word not in _ABOUT_ITSELF for word in call.args):
            call.refuse("only options that look at something are allowed.")
        return
    given = [word for word in call.args if word.startswith("-")]
    if any(word in extra for word in given):
        if any(word not in extra and not word.startswith("--") for word in given):
            call.refuse("an option among them is not known to only look.", "shell-unknown-command")
        return
    _check_heads(call, extra)


def _check_ansible(call: Call) -> None:
    """Playbooks, inventories and password files may be programs: they must be of this folder."""
    for word in call.args:
        value = word.partition("=")[2] if word.startswith("--") else re.sub(r"^-[A-Za-z](?=[/~.])", "", word)
        if value.startswith(("/", "~", ".")) or "/" in value or re.search(r"\.(?:ya?ml|ini|sh|py|cfg)$", value):
            call.places.script(value.removeprefix("@"))


def _inner_command(call: Call) -> bool:
    """Judges the command behind ``--`` that runs elsewhere or with more variables (``kubectl exec pod -- ls``)."""
    if call.name not in _RUNNING or "--" not in call.args:
        return False
    at = call.args.index("--")
    ahead, inner = call.args[:at], call.args[at + 1 :]
    words = [word for word in ahead if not word.startswith("-")]
    if _RUNNING[call.name] not in words or not inner or any(wild(word) for word in ahead):
        return False
    if not all(_harmless_option(word) for word in ahead if word.startswith("-")):
        return False
    if call.name in ("kubectl", "oc") and inner[0] not in _ELSEWHERE:
        call.refuse("in a container of a cluster only looking is allowed.")
    call.runner.run(inner, call.given)
    return True


def _only_tries(call: Call) -> bool:
    """Whether an option of a tool that knows it keeps the command from doing anything."""
    marks, verbs = (text.split() for text in TRYING.get(call.name, ("", "")))
    if not marks or (verbs and "".join(_verbs(call.args)[:1]) not in verbs):
        return False
    found = False
    for at, word in enumerate(call.args):
        name = word.partition("=")[0]
        if word == "--" or re.fullmatch(
            r"--no-dry-?run|--dry-?run=(?:none|false|0|no)|--apply|--approve|--commit", word
        ):
            return False
        if word in marks or (name in marks and re.search(r"=(?:client|server|true|unchanged|1)$", word)):
            before = call.args[at - 1] if at else ""
            # Behind another option the word may be that option's value.
            found = found or not before.startswith("-") or "=" in before or before in _FLAGS
    return found


def _check_heads(call: Call, extra: frozenset[str]) -> None:
    heads = _verbs(call.args)
    for word in heads:
        if word in extra:
            continue
        if _looks(word):
            return
        if HARMFUL.fullmatch(word):
            call.refuse(f"{' '.join(heads)[:60]!r} changes or removes something.")
    named = heads[1:] if call.name == "aws" else heads  # ahead of what is done stands a service
    if any(word in extra or re.split(r"[-_:]", word)[0] in LOOKED_AT for word in named):
        return
    call.refuse(f"{' '.join(heads)[:60]!r} is not known to only look at something.", "shell-unknown-command")


def _verbs(args: Sequence[str]) -> list[str]:
    """The words, up to four, that may say what to do: options ahead of them and their values left out."""
    heads: list[str] = []
    value = False
    for word in args:
        if word.startswith("-"):
            if heads:
                break
            value = "=" not in word
        elif value and not (_looks(word) or word in LOOKED_AT or HARMFUL.fullmatch(word)):
            value = False
        else:
            value = False
            heads.append(word)
            if len(heads) == 4 or wild(word):
                break
    return heads


def _looks(word: str) -> bool:
    return re.split(r"[-_:]", word)[0] in LOOKING


def _harmless_option(word: str) -> bool:
    name = word.partition("=")[0].lstrip("-")
    return (
        re.match(
            r"(?:delete|remove|purge|force|vacuum|rotate|flush|alter|unset|destroy|prune|erase|reset|write|w$|overwrite|migrate)",
            name,
        )
        is None
    )


SERVICE_JUDGES: dict[str, Judge] = dict.fromkeys(SERVICES, _service)
