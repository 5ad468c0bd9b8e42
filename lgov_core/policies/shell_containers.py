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
        if _makes_plain(verb, rest):
            return None
        if (rest or ("",))[0] not in looking:
            call.refuse(f"{verb} {rest[0][:20]} is not allowed here.")
        return None
    if verb in ("run", "create", "exec"):
        return _container(call, rest, verb)
    looking = (
        "ps images logs inspect stats top version info search port diff history build pull start stop restart "
        "events tag wait"
    )
    if verb in ("cp", "save"):
        return _copied(call, rest) if verb == "cp" else _saved(call, rest)
    if verb and verb not in looking.split():
        call.refuse(f"{verb[:20]} is not allowed here.")
    if verb == "build" and any("://" in word or word.startswith("git@") for word in rest if not word.startswith("-")):
        call.refuse("build from a folder.", "shell-network")
    call.reads(rest)
    return None


def _makes_plain(verb: str, rest: tuple[str, ...]) -> bool:
    """Whether a network or volume is made, without a driver or options that reach into the machine."""
    return (
        verb in ("network", "volume")
        and rest[:1] == ("create",)
        and not parse(rest).has("-o", "--opt", "-d", "--driver")
    )


def _saved(call: Call, rest: tuple[str, ...]) -> None:
    for word in parse(rest, "-o --output --platform").of("-o", "--output"):
        call.places.write(word)


def _copied(call: Call, rest: tuple[str, ...]) -> None:
    """``docker cp``: out of a container, to where the text may write."""
    operands = parse(rest).operands
    if len(operands) != 2 or not re.match(r"[\w.-]+:", operands[0]) or ":" in operands[1]:
        call.refuse("copy out of a container into this folder.")
    call.reads(operands)
    call.places.write(operands[1])


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
    args = list(call.args)
    if call.name in ("sqlite3", "duckdb"):
        quiet = (
            "-readonly",
            "-header",
            "-noheader",
            "-csv",
            "-json",
            "-line",
            "-column",
            "-table",
            "-box",
            "-markdown",
            "-list",
            "-html",
        )
        args = [word for word in args if word not in quiet]
    given = parse(args, "-c --command -e --execute -f --file -d -h -p -U -u --eval -q --query")
    if given.has("-f", "--file", "--queries-file", "--init-command"):
        call.refuse("give the statement on the command line.")
    statements = [*given.of("-c", "--command", "-e", "--execute")]
    if call.name in _QUERIES:
        statements += given.of("-q", "--query")
    if call.name == "sqlite3":
        call.reads(given.operands)
        statements += given.operands[1:]
    for text in [part for whole in statements for part in _statements(whole)]:
        call.literal(text, "the statement")
        plain = re.fullmatch(
            r"(?is)\s*(?:(?:select|explain|show|describe|with)\b[^;]*|\.(?:tables|schema|indexes|dbinfo|mode|headers)\b[^\n;]*|\\[dl]\w*[^\n;\\]*|pragma\s+\w+(?:\(\w+\))?);?\s*",
            text,
        )
        if call.name in ("mysql", "mariadb") and "\\" in text:
            call.refuse("commands of the client itself are not allowed.")
        if call.name in _QUERIES and re.search(
            r"(?i)\b(?:url|file|s3|remote|executable|hdfs|mysql|postgresql)\w*\s*\(", text
        ):
            call.refuse("reading from elsewhere is not allowed.")
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


def _statements(text: str) -> list[str]:
    """Statements apart from one another, where no quote may hold a semicolon; otherwise the text as it is."""
    if "'" in text or '"' in text or "$" in text or text.lstrip().startswith("."):
        return [text]
    return [part for part in text.split(";") if part.strip()] or [text]


def _dump(call: Call) -> None:
    """Programs that write a database out: to where the text may write, from a database of this machine or a named one."""
    given = parse(
        call.args,
        "-f --file -o --out --result-file -r -h --host -p --port -U -u --user -d --db --dbname -n -t -T -c --collection "
        "-F --uri",
    )
    if call.name == "pg_restore" and not given.has("-l", "--list"):
        call.refuse("only looking into a dump (--list) is allowed.")
    if given.has("--tab", "-T") and call.name == "mysqldump":
        call.refuse("write to one file.")
    if given.has("--flush-logs", "--delete-master-logs", "--delete-source-logs", "--init-command", "--plugin-dir"):
        call.refuse("options that remove logs are not allowed.")
    for word in (*given.of("-f", "--file", "-o", "--out", "--result-file", "-r"),):
        call.places.write(word)
    if call.name in ("mongodump",) and not given.has("-o", "--out", "--archive"):
        call.places.write("dump")
    call.reads(call.args)


_MONGO = re.compile(
    r"(?:print(?:json)?\()?(?:db(?:\.[A-Za-z_]\w*)*\.(?:find|findOne|countDocuments|estimatedDocumentCount|count|distinct|getIndexes|stats"
    r"|getCollectionNames|version|serverStatus|hostInfo|explain)|rs\.status)\([\w\s\"',:.{}$@-]*\)(?:\.(?:limit|sort|skip|count|pretty|toArray)"
    r"\([\w\s\"',:.{}-]*\))*\)?;?|show (?:dbs|collections|users|databases)"
)


def _mongo(call: Call) -> None:
    given = parse(call.args, "--eval --host --port -u --username -p --password --authenticationDatabase -f --file")
    codes = given.of("--eval")
    if given.has("-f", "--file") or any(word.endswith(".js") for word in given.operands) or not codes:
        call.refuse("give one reading expression with --eval.")
    for code in codes:
        if _MONGO.fullmatch(call.literal(code, "the expression").strip()) is None or re.search(
            r"\$(?:where|function|accumulator|out|merge)", code
        ):
            call.refuse("only one reading expression is allowed.")
    call.reads(given.operands)


_REDIS_READING = frozenset(
    names(
        """
    get mget getrange strlen keys scan sscan hscan zscan info ping echo ttl pttl type exists llen lrange lindex smembers
    scard sismember hget hmget hgetall hkeys hlen hexists zrange zrevrange zcard zscore zcount xlen xrange xrevrange dbsize
    memory time lastsave role command randomkey bitcount pfcount geopos
    """
    )
)
#: Commands of redis that read only with one of these words behind them.
_REDIS_PAIRS = {
    "client": "list info id getname",
    "config": "get",
    "slowlog": "get len",
    "object": "encoding idletime freq refcount",
    "xinfo": "stream groups consumers",
    "cluster": "info nodes slots shards",
    "latency": "latest history doctor",
    "acl": "whoami list",
}


def _redis(call: Call) -> None:
    given = parse(call.args, "-h -p -a -n -u --pattern --user --pass -i --intrinsic-latency -d -D -r")
    words = [word.lower() for word in given.operands]
    if given.has("--eval", "--pipe", "--rdb", "--functions-rdb", "--cluster", "-x", "-X"):
        call.refuse("only reading commands are allowed.")
    if not words and call.given.kind != "none":
        call.refuse("give one reading command on the command line.")
    if words and words[0] in _REDIS_PAIRS and "".join(words[1:2]) in _REDIS_PAIRS[words[0]].split():
        return
    if words and words[0] not in _REDIS_READING:
        call.refuse("only reading commands are allowed.")


_QUERIES = ("cqlsh", "clickhouse-client", "snowsql")
CONTAINER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), _docker),
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3", "duckdb", *_QUERIES), _database),
    **dict.fromkeys(("pg_dump", "mysqldump", "mariadb-dump", "mongodump", "mongoexport", "pg_restore"), _dump),
    **dict.fromkeys(("mongosh", "mongo"), _mongo),
    "docker-compose": lambda call: _compose(call, list(call.args)),
    "redis-cli": _redis,
    "gh": _gh,
}
