"""Judges of containers, databases and GitHub's command line."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, parse, wild

_COMPOSE_VERBS = (
    "",
    *names("up down ps logs build pull config start stop restart exec run top events images port version ls"),
)


def _docker(call: Call) -> None:
    words = list(call.args)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-H", "--host", "--config", "--context", "-c"):
            call.refuse("another daemon is not allowed.")
        if option in ("-f", "--file", "-p", "--project-name", "--profile") and words:
            words.pop(0)
    if words[:1] == ["compose"]:
        words = words[1:]
        return _compose(call, words)
    verb = (words or [""])[0]
    rest = tuple(words[1:])
    if verb in ("container", "image", "network", "volume", "context", "system", "builder", "buildx"):
        looking = {
            "ls",
            "list",
            "inspect",
            "logs",
            "df",
            "info",
            "events",
            "show",
            "history",
            "top",
            "stats",
            "ps",
            "version",
            "build",
            "",
        }
        if (rest or ("",))[0] not in looking:
            call.refuse(f"{verb} {rest[0][:20]} is not allowed here.")
        return None
    if verb in ("run", "create", "exec"):
        return _container(call, rest, verb)
    looking = (
        "ps images logs inspect stats top version info search port diff history build pull start stop restart "
        "events tag wait"
    )
    if verb and verb not in looking.split():
        call.refuse(f"{verb[:20]} is not allowed here.")
    if verb == "build" and any("://" in word or word.startswith("git@") for word in rest if not word.startswith("-")):
        call.refuse("build from a folder.", "shell-network")
    call.reads(rest)
    return None


def _container(call: Call, rest: tuple[str, ...], verb: str) -> None:
    values = (
        "-v --volume --mount -p --publish -e --env --name --network --net -w --workdir -u --user --entrypoint "
        "--pid --ipc --uts --userns --cap-add --device --security-opt --env-file -l --label -m --memory --cpus "
        "--restart --platform --add-host --volumes-from --gpus -h"
    )
    own: list[str] = list(rest)
    ahead: list[str] = []
    while own and own[0].startswith("-"):
        word = own.pop(0)
        ahead.append(word)
        if (
            "=" not in word
            and (word in values.split() or (len(word) > 2 and word[1] != "-" and f"-{word[-1]}" in values.split()))
            and own
        ):
            ahead.append(own.pop(0))
    given = parse(ahead, values)
    closed = (
        "--privileged",
        "--cap-add",
        "--device",
        "--security-opt",
        "--volumes-from",
        "--userns",
        "--env-file",
        "--cgroup-parent",
    )
    if given.has(*closed) or any(
        "host" in value for value in given.of("--pid", "--net", "--network", "--ipc", "--uts")
    ):
        call.refuse("the container may not reach into this machine.")
    for mount in (*given.of("-v", "--volume"), *given.of("--mount")):
        source = re.sub(r".*(?:source|src)=", "", mount).partition(",")[0] if "=" in mount else mount.partition(":")[0]
        call.places.read(source)
        if "docker.sock" in source or wild(source):
            call.refuse("this mount reaches into the machine.")
        if re.match(r"[/.]", source):
            call.places.write(source)
    if verb == "exec" and own[1:]:
        call.runner.run(own[1:], call.given)


def _compose(call: Call, words: list[str]) -> None:
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-f", "--file", "-p", "--project-name", "--profile", "--env-file") and words:
            words.pop(0)
    verb = (words or [""])[0]
    if verb not in _COMPOSE_VERBS:
        call.refuse(f"compose {verb[:20]} is not allowed here.")
    given = parse(words)
    if verb == "down" and given.has("-v", "--volumes", "--rmi"):
        call.refuse("this throws the volumes away.")
    if verb in ("exec", "run"):
        inner = [word for word in words[1:] if not word.startswith("-")][1:]
        if inner:
            call.runner.run(inner, call.given)


def _gh(call: Call) -> None:
    words = [word for word in call.args if not word.startswith("-")]
    if words[:1] == ["api"]:
        given = parse(call.args, "-X --method -f -F --field --raw-field --input -H --jq -q -t")
        method = "".join(given.of("-X", "--method")[-1:]).upper()
        if method not in ("", "GET") or (
            given.has("-f", "-F", "--field", "--raw-field", "--input") and method != "GET"
        ):
            call.refuse("only reading is allowed.", "shell-network")
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
    call.reads(word for word in call.args if " " not in word)


def _database(call: Call) -> None:
    given = parse(call.args, "-c --command -e --execute -f --file -d -h -p -U -u --eval")
    if given.has("-f", "--file"):
        call.refuse("give the statement on the command line.")
    statements = [*given.of("-c", "--command", "-e", "--execute")]
    if call.name == "sqlite3":
        call.reads(given.operands)
        statements += given.operands[1:]
    for text in statements:
        call.literal(text, "the statement")
        plain = re.fullmatch(
            r"(?is)\s*(?:(?:select|explain|show|describe|with)\b[^;]*|\.(?:tables|schema|indexes|dbinfo|mode|headers)\b[^\n;]*|\\[dl]\w*[^\n;\\]*|pragma\s+\w+(?:\(\w+\))?);?\s*",
            text,
        )
        if plain is None or re.search(
            r"(?i)\b(?:delete|insert|update|drop|into|load_extension|writefile|(?:read|load_)file|pg_\w+|lo_\w+|program)\b",
            text,
        ):
            call.refuse("only one reading statement is allowed.")
    if (
        not statements
        and not (call.name == "sqlite3" and given.has("-version", "--version"))
        and not given.has("--version", "-l", "--list", "-V")
    ):
        call.refuse("give one reading statement on the command line.")


def _redis(call: Call) -> None:
    words = parse(call.args, "-h -p -a -n -u").operands
    looking = (
        "get mget keys scan info ping ttl type exists llen lrange smembers hget hgetall zrange dbsize client memory ''"
    )
    if words and words[0].lower() not in looking.split():
        call.refuse("only reading commands are allowed.")


CONTAINER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3", "duckdb"), _database),
    "docker-compose": lambda call: _compose(call, list(call.args)),
    "redis-cli": _redis,
    "gh": _gh,
}
