"""Judges of the command lines of databases: one reading statement passes."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge, parse

#: Options of sqlite3 and duckdb that say how to show what was read.
_QUIET = frozenset(names("-readonly -header -noheader -csv -json -line -column -table -box -markdown -list -html"))
#: A statement that reads, as far as its first word tells, or a command of a client (``.tables``, ``\\dt``) that does.
_READING = re.compile(
    r"(?is)\s*(?:(?:select|explain|show|describe|with)\b[^;]*|\.(?:tables|schema|indexes|dbinfo|mode|headers)\b[^\n;]*"
    r"|\\[dl]\w*[^\n;\\]*|pragma\s+\w+(?:\(\w+\))?);?\s*"
)
#: Words, anywhere in it, with which it may write, or reach files and programs.
_NOT_READING = re.compile(
    r"(?i)\b(?:delete|insert|update|drop|into|load_extension|writefile|(?:read|load_)file|dblink\w*|(?:query|cursor)_to_\w+|lo_\w+|program"
    # Of what PostgreSQL has: its catalogue and what it counts and measures, without what holds passwords or acts.
    r"|pg_(?!(?:(?:stat|statio)_\w+|class|tables|index(?:es)?|views|matviews|namespace|attribute|attrdef|constraint|type|proc|database|sequences?"
    r"|extension|locks|enum|trigger|description|depend|am|collation|inherits|partitioned_table|available_extensions|catalog|typeof"
    r"|size_pretty|\w+_size|is_in_recovery|postmaster_start_time|get_\w+def|get_expr|get_serial_sequence|encoding_to_char|blocking_pids"
    r"|table_is_visible|current_wal_lsn|backend_pid)\b)\w+|pg_stat_(?:reset|clear|file)\w*|pg_stat_get_\w+)\b"
)
#: Functions with which a query reads from elsewhere.
_FROM_ELSEWHERE = re.compile(r"(?i)\b(?:url|file|s3|remote|executable|hdfs|mysql|postgresql)\w*\s*\(")


def _database(call: Call) -> None:
    args = list(call.args)
    if call.name in _OF_A_FILE:
        args = [word for word in args if word not in _QUIET]
    given = parse(args, _DATABASE_VALUES.get(call.name, _CLIENT_VALUES))
    by_file = call.name in _OF_A_FILE and any(re.match(r"--?(?:init|cmd|A|unsafe)", word) for word in args)
    if by_file or given.has("-f", "--file", "--queries-file", "--init-command"):
        call.refuse("give the statement on the command line.")
    for word in given.of("-o", "--output", "-L", "--log-file", "--tee"):
        call.places.write(word)
    statements = [*given.of("-c", "--command", "-e", "--execute")]
    if call.name in _QUERIES:
        statements += given.of("-q", "--query")
    if call.name in _OF_A_FILE:
        call.reads(given.operands)
        statements += [*given.operands[1:], *given.of("-s")]
    for text in [part for whole in statements for part in _statements(whole)]:
        _check_statement(call, text)
    asking = given.has("--version", "-l", "--list", "-V") or (call.name == "sqlite3" and given.has("-version"))
    if not statements and (call.given.kind != "none" or not asking):
        call.refuse("give one reading statement on the command line.")


def _check_statement(call: Call, text: str) -> None:
    call.literal(text, "the statement")
    call.reads(re.findall(r"'([^']*)'", text) if call.name == "duckdb" else ())
    if call.name in ("mysql", "mariadb") and "\\" in text:
        call.refuse("commands of the client itself are not allowed.")
    if call.name in _QUERIES and _FROM_ELSEWHERE.search(text):
        call.refuse("reading from elsewhere is not allowed.")
    if _READING.fullmatch(text) is None or _NOT_READING.search(text):
        call.refuse("only one reading statement is allowed.")


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


_OF_A_FILE = ("sqlite3", "duckdb")
_CLIENT_VALUES = "-c --command -e --execute -f --file -d -h -p -U -u --eval -q --query -o --output -L --log-file --tee"
_DATABASE_VALUES = {
    **dict.fromkeys(
        ("mysql", "mariadb"), "-e --execute -h -u -D -P -S --tee --init-command --database --host --user --port"
    ),
    "duckdb": "-c -s -f",
}
_QUERIES = ("cqlsh", "clickhouse-client", "snowsql")
DATABASE_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("psql", "mysql", "mariadb", "sqlite3", "duckdb", *_QUERIES), _database),
    **dict.fromkeys(("pg_dump", "mysqldump", "mariadb-dump", "mongodump", "mongoexport", "pg_restore"), _dump),
    **dict.fromkeys(("mongosh", "mongo"), _mongo),
    "redis-cli": _redis,
}
