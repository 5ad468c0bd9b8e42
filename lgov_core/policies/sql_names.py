"""What SQLPolicy knows by name: dialects, statements, functions and catalogs."""

from __future__ import annotations

import difflib
import re

from lgov_core.errors import PolicyError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DIALECTS = (
    "athena",
    "bigquery",
    "clickhouse",
    "databricks",
    "doris",
    "drill",
    "druid",
    "duckdb",
    "exasol",
    "fabric",
    "hive",
    "materialize",
    "mysql",
    "oracle",
    "postgres",
    "presto",
    "redshift",
    "risingwave",
    "singlestore",
    "snowflake",
    "spark",
    "sqlite",
    "starrocks",
    "teradata",
    "trino",
    "tsql",
)
DIALECT_ALIASES = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql", "sqlite3": "sqlite"}

#: Statements that only read, and those that guarded mode lets through after a closer look.
READS = frozenset({"SELECT", "VALUES", "EXPLAIN"})
GUARDED = READS | {"FOR UPDATE", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "PRAGMA", "TRANSACTION"}

#: Every kind of statement that ``deny`` may name.
KINDS = GUARDED | _words(
    "ALTER ANALYZE ATTACH BACKUP BEGIN CALL COMMENT COMMIT COPY DEALLOCATE DECLARE DESCRIBE DETACH DO"
    " DROP EXEC EXECUTE EXPORT FLUSH GRANT HANDLER IMPORT INSTALL KILL LISTEN LOAD LOCK MERGE NOTIFY"
    " OPTIMIZE PREPARE PURGE REFRESH REINDEX RELEASE RENAME RESET RESTORE REVOKE ROLLBACK SAVEPOINT SET"
    " SHOW SHUTDOWN START TRUNCATE UNDROP UNLOAD USE VACUUM"
)

#: Kinds that can lose data or protection; a denial of one of them is critical.
DESTRUCTIVE = _words(
    "ALTER ATTACH CALL COPY DELETE DETACH DO DROP EXEC EXECUTE GRANT INSTALL LOAD MERGE PRAGMA PREPARE"
    " REPLACE RENAME REVOKE SHUTDOWN TRUNCATE UPDATE VACUUM"
)

#: Pragmas that describe one table or the list of tables and change nothing when they are given no value.
DESCRIBING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)

#: Functions that reach files, the network, other servers or sessions, wait, or run text as SQL. Denied in every mode.
_DANGEROUS = re.compile(
    # SQLite and its shell
    r"load_extension|readfile|writefile|edit|fts3_tokenizer|sqlite_\w+|fsdir|zipfile|sqlar_\w+|unionvtab|swarmvtab"
    # PostgreSQL
    r"|pg_(?:read|ls|stat|file|sleep|terminate|cancel|reload|rotate|promote|switch|create|drop|logical|replication|advisory"
    r"|try_advisory|log|import|export|backup|start|stop|copy|wal|notify)\w*"
    r"|lo_\w+|loread|lowrite|dblink\w*|set_config|setval|(?:query|table|schema|database|cursor)_to_xml\w*|ts_stat"
    r"|crosstab\w*|connectby|xpath_table|plan_\w*exec\w*"
    # MySQL
    r"|load_file|sleep|benchmark|get_lock|release_lock|release_all_locks|sys_eval|sys_exec|master_pos_wait|source_pos_wait"
    # SQL Server
    r"|xp_\w+|sp_\w+|openrowset|openquery|opendatasource|fn_(?:dump_)?dblog|fn_(?:trace|xe|get)_\w+"
    # Oracle
    r"|utl_\w+|dbms_\w+|httpuritype|xmltype|sys_context|getxml\w*"
    # DuckDB, ClickHouse, Spark, Snowflake, BigQuery, Trino
    r"|read_\w+|\w+_scan|scan_\w+|sniff_csv|parquet_\w+|getenv|query|query_table|glob_files|sqlsmith\w*"
    r"|file|url|s3|s3cluster|hdfs|remote|remotesecure|mysql|postgresql|mongodb|jdbc|odbc|executable|input|azureblobstorage"
    r"|gcs|deltalake|iceberg|hudi|cluster|clusterallreplicas|dictget\w*"
    r"|reflect|java_method|try_reflect|identifier|external_query|read_files|http_get|http_post|ai_query"
    r"|system\$\w+|result_scan|sleepeachrow|ai_\w+|generate_(?:text|embedding|table|bool|int|double)"
    r"|understand_text|annotate_image|transcribe|process_document|ml_\w+"
)
#: Packages whose functions do such things, where they stand before a call: ``UTL_HTTP.REQUEST(...)``.
_DANGEROUS_PACKAGE = re.compile(
    r"utl_(?!raw|match|i18n)\w+|dbms_(?!random|lob|crypto)\w+|owa_\w+|apex_\w+|ai|cortex|ctxsys"
)
#: Names above that are harmless elsewhere and common as ordinary names.
_ONLY_IN = {
    "file": {"clickhouse"},
    "url": {"clickhouse"},
    "s3": {"clickhouse"},
    "input": {"clickhouse"},
    "remote": {"clickhouse"},
    "cluster": {"clickhouse"},
    "mysql": {"clickhouse"},
    "postgresql": {"clickhouse"},
    "mongodb": {"clickhouse"},
    "jdbc": {"clickhouse"},
    "odbc": {"clickhouse"},
    "executable": {"clickhouse"},
    "iceberg": {"clickhouse"},
    "edit": {"sqlite"},
    "query": {"duckdb", "trino"},
}

#: Tables and schemas in which a database keeps itself: definitions, statistics, settings, raw pages.
_CATALOG_TABLE = re.compile(
    r"sqlite_\w*|pragma_\w+|dbstat|fsdir|zipfile|bytecode|tables_used|memstat|vfsstat|btreeinfo|pg_\w+|duckdb_\w+|svv_\w+|stv_\w+"
    r"|stl_\w+|sys(?:objects|columns|users|comments|databases|logins|processes)"
)
_ORACLE_CATALOG = re.compile(r"g?v\$\w+|(?:all|dba|cdb|user)_\w+")
_CATALOG_SCHEMA = re.compile(
    r"information_schema|pg_catalog|pg_toast|mysql|performance_schema|sys|system|account_usage|organization_usage|dbc"
)
#: Catalogs, the part before the schema, that hold nothing else.
_CATALOG = frozenset({"information_schema", "system", "jmx", "snowflake"})

#: A quoted name that is a path or an address: some databases open it as a file.
FILE_NAME = re.compile(r"[/\\]|:|\.(?:csv|tsv|json|jsonl|ndjson|parquet|orc|avro|arrow|xlsx?|db|sqlite3?|duckdb|txt)\b")


def is_dangerous(function: str, dialect: str) -> bool:
    """Whether ``function`` (lower case) must not be called in ``dialect``, whatever the mode."""
    only = _ONLY_IN.get(function)
    if only is not None:
        return dialect in only
    return _DANGEROUS.fullmatch(function) is not None


def is_dangerous_package(package: str) -> bool:
    """Whether nothing of the package or schema (lower case) must be called, in any dialect."""
    return _DANGEROUS_PACKAGE.fullmatch(package) is not None


def is_catalog(schema: str, table: str, dialect: str, catalog: str = "") -> bool:
    """Whether the table (all names in lower case) belongs to the database's own catalog."""
    if catalog in _CATALOG:
        return True
    if dialect == "oracle" and _ORACLE_CATALOG.fullmatch(table):
        return True
    return bool(_CATALOG_SCHEMA.fullmatch(schema) or _CATALOG_TABLE.fullmatch(table))


def known_dialect(dialect: object) -> str:
    """The dialect's own name. Raises `PolicyError` with a suggestion."""
    known = (*DIALECTS, *DIALECT_ALIASES)
    if not isinstance(dialect, str) or dialect not in known:
        near = difflib.get_close_matches(str(dialect).lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(DIALECTS)}"
        raise PolicyError(f"the SQL dialect {dialect!r} is unknown", hint=hint)
    return DIALECT_ALIASES.get(dialect, dialect)


def known_kind(policy: str, kind: str) -> str:
    """The kind of statement in upper case. Raises `PolicyError` with a suggestion."""
    upper = kind.strip().upper()
    if upper not in KINDS:
        near = difflib.get_close_matches(upper, sorted(KINDS), n=1)
        hint = f"did you mean {near[0]}?" if near else "write a kind of statement such as DROP, or table:NAME"
        raise PolicyError(f"{policy}: deny has {kind!r}, which is no kind of statement", hint=hint)
    return upper
