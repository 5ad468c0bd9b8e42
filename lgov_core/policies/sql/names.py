"""What SQLPolicy knows by name: dialects, statements, functions that do more than compute, and catalogs."""

from __future__ import annotations

import re

from lgov_core._util.suggestions import suggest_name
from lgov_core.errors import PolicyError
from lgov_core.policies.options import names as _split


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(_split(text))


DIALECTS = _split(
    """
    athena bigquery clickhouse databricks doris drill druid duckdb exasol fabric hive materialize mysql oracle postgres presto
    redshift risingwave singlestore snowflake spark sqlite starrocks teradata trino tsql
    """
)
DIALECT_ALIASES = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql", "sqlite3": "sqlite"}

#: Statements that only read, and those that guarded mode lets through after a closer look.
READS = frozenset({"SELECT", "VALUES", "EXPLAIN"})
GUARDED = READS | {"FOR UPDATE", "INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "PRAGMA", "TRANSACTION", "MERGE"}

#: Every kind of statement that ``deny`` may name.
KINDS = GUARDED | words(
    "ALTER ANALYZE ATTACH BACKUP BEGIN CALL COMMENT COMMIT COPY DEALLOCATE DECLARE DESCRIBE DETACH DO"
    " DROP EXEC EXECUTE EXPORT FLUSH GRANT HANDLER IMPORT INSTALL KILL LISTEN LOAD LOCK MERGE NOTIFY"
    " OPTIMIZE PREPARE PURGE REFRESH REINDEX RELEASE RENAME RESET RESTORE REVOKE ROLLBACK SAVEPOINT SET"
    " SHOW SHUTDOWN START TRUNCATE UNDROP UNLOAD USE VACUUM"
)

#: Kinds that can lose data or protection; a denial of one of them is critical.
DESTRUCTIVE = words(
    "ALTER ATTACH CALL COPY DELETE DETACH DO DROP EXEC EXECUTE GRANT INSTALL LOAD MERGE PRAGMA PREPARE"
    " REPLACE RENAME REVOKE SHUTDOWN TRUNCATE UPDATE VACUUM"
)

#: Pragmas that describe one table or the list of tables and change nothing when they are given no value.
DESCRIBING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
)

#: Functions that reach files, the network, other servers or sessions, settings, wait, or run text as SQL. Denied in every
#: mode.
_DANGEROUS = re.compile(
    # SQLite and its shell
    r"load_extension|readfile|writefile|edit|fts3_tokenizer|sqlite_\w+|fsdir|zipfile|sqlar_\w+|unionvtab|swarmvtab|lsmode"
    # PostgreSQL and its relatives
    r"|pg_(?:read|ls|stat|file|sleep|terminate|cancel|reload|rotate|promote|switch|create|drop|logical|replication|advisory"
    r"|try_advisory|log|import|export|backup|start|stop|copy|wal|notify|current_logfile|extension|prewarm|execute)\w*"
    r"|lo_\w+|loread|lowrite|dblink\w*|set_config|current_setting|setval|(?:query|table|schema|database|cursor)_to_xml\w*"
    r"|ts_stat|crosstab\w*|connectby|xpath_table|plan_\w*exec\w*|ts_rewrite|query_export_to_s3|table_import_from_s3"
    r"|schedule_in_database|binary_upgrade_\w+|postgres_fdw_\w+"
    # MySQL
    r"|load_file|sleep|benchmark|(?:get|release)_lock|release_all_locks|sys_(?:eval|exec|get|set)|master_pos_wait"
    r"|source_pos_wait|wait_for_executed_gtid_set|lib_mysqludf\w*"
    # SQL Server
    r"|xp_\w+|sp_\w+|openrowset|openquery|opendatasource|fn_(?:dump_)?dblog|fn_(?:trace|xe|get|my|sys|hadr)_\w+|openxml"
    r"|fn_\w*(?:file|log|trace)\w*|dm_\w+"
    # Oracle
    r"|utl_\w+|dbms_\w+|httpuritype|dburitype|xdburitype|ftpuritype|urifactory|xmltype|sys_context|getxml\w*|bfilename"
    r"|owa_\w+|sys_xmlgen|sys_dburigen"
    # DuckDB, ClickHouse, Spark, Snowflake, BigQuery, Trino
    r"|read_\w+|\w+_scan|\w+_scan_pushdown|scan_\w+|sniff_csv|parquet_\w+|getenv|query|query_table|glob|glob_files|sqlsmith\w*"
    r"|(?:postgres|mysql|sqlite|odbc|bigquery)_(?:query|execute|attach|command)|st_read\w*|load_aws_credentials|which_secret"
    r"|write_log|force_checkpoint|checkpoint|duckdb_\w+|copy_database|from_substrait\w*|get_substrait\w*"
    r"|file|filecluster|url|urlcluster|s3|s3cluster|gcs|hdfs|hdfscluster|remote|remotesecure|mysql|postgresql|mongodb|redis"
    r"|jdbc|odbc|sqlite|executable|input|azureblobstorage\w*|deltalake\w*|iceberg\w*|hudi\w*|cluster|clusterallreplicas"
    r"|dictget\w*|dictionary|dicthas|joinget\w*|catboostevaluate|merge|view|sleepeachrow|getsetting|getserverport|hostname"
    r"|showcertificate|addressto\w+|demangle|filesystem\w+|loop|fuzzquery|mergetree\w+|ytsaurus|arrowflight|evalmlmethod"
    r"|reflect|java_method|try_reflect|identifier|external_query|read_files|http\w*|ai_\w+|xpath_file|cloud_files"
    r"|secret|try_secret|list_secrets|kafka|read_kafka|raise_error"
    r"|system\$\w+|result_scan|get_presigned_url|build_\w*file_url|get_stage_location|infer_schema|to_file|try_to_file"
    r"|understand_text|annotate_image|transcribe|process_document|ml_\w+|generate_(?:text|embedding|table|bool|int|double)"
    r"|validate_pipe_load|external_functions_history|query_history\w*|login_history\w*|copy_history"
)
#: Names above that are harmless elsewhere and common as ordinary names.
_CLICKHOUSE = frozenset({"clickhouse"})
_ONLY_IN: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        words(
            "file filecluster url s3 input remote cluster mysql postgresql mongodb redis jdbc odbc sqlite executable gcs loop"
            " dictionary merge view hostname urlcluster demangle"
        ),
        _CLICKHOUSE,
    ),
    "edit": frozenset({"sqlite"}),
    "glob": frozenset({"duckdb"}),
    "checkpoint": frozenset({"duckdb"}),
    "query": frozenset({"duckdb", "trino", "presto", "athena"}),
    "secret": frozenset({"databricks", "spark"}),
    "kafka": frozenset({"clickhouse", "databricks"}),
    "raise_error": frozenset(),
    "identifier": frozenset({"snowflake", "spark", "databricks"}),
}
#: Schemas and packages whose functions do more than compute, whatever they are called.
_PACKAGES = re.compile(
    r"utl_(?!raw|match|i18n)\w+|dbms_(?!random|lob|crypto)\w+|owa_\w+|apex_\w+|ords\w*|htp|htf|ctx_\w+|sdo_\w*net\w*|cron|aws_s3|aws_lambda|aws_commons|azure_storage"
    r"|azure_ai|google_ml|ai|ml|cortex|ctxsys|msdb|xp_\w+|pgagent|pg_cron|dblink|http|vault"
)

#: Tables and schemas in which a database keeps itself: definitions, statistics, settings, raw pages.
_CATALOG_TABLE = re.compile(
    r"sqlite_\w*|pragma_\w+|dbstat|fsdir|zipfile|bytecode|tables_used|memstat|vfsstat|btreeinfo|pg_\w+|duckdb_\w+|svv_\w+|stv_\w+"
    r"|stl_\w+|svl_\w+|sys_\w+|sys(?:objects|columns|users|comments|databases|logins|processes|configures|servers)"
)
_ORACLE_CATALOG = re.compile(r"g?v\$\w+|(?:all|dba|cdb|user)_\w+")
_CATALOG_SCHEMA = re.compile(
    r"information_schema|pg_catalog|pg_toast|pg_temp\w*|mysql|performance_schema|sys|system|account_usage|dbc|msdb"
    r"|organization_usage|reader_account_usage|crdb_internal|region-\w+"
)
#: Catalogs, the part before the schema, that hold nothing else.
_CATALOGS = frozenset({"information_schema", "system", "jmx", "snowflake"})

#: A quoted name that is a path or an address: some databases open it as a file.
FILE_NAME = re.compile(r"[/\\]|:|\.(?:csv|tsv|json|jsonl|ndjson|parquet|orc|avro|arrow|xlsx?|db|sqlite3?|duckdb|txt)\b")


#: Schemas that Spark takes for the format of a file, which the table then names.
_FILE_FORMATS = words("csv json parquet orc avro text binaryfile delta iceberg xml libsvm image")
_SPARK = frozenset({"spark", "spark2", "databricks"})


def is_file(schema: str, table: str, dialect: str) -> bool:
    """Whether a database may open what a table is called as a file, or fetch it. Names in lower case."""
    if dialect == "snowflake" and table.startswith("@"):  # a stage, of which files are read
        return True
    if dialect == "duckdb":  # which puts the parts of a name together, when there is no such table
        table = f"{schema}.{table}"
    return FILE_NAME.search(table) is not None or (
        dialect in _SPARK and schema.rpartition(".")[2].strip() in _FILE_FORMATS
    )


def is_dangerous(function: str, dialect: str) -> bool:
    """Whether ``function`` (lower case) must not be called in ``dialect``, whatever the mode."""
    only = _ONLY_IN.get(function)
    if only is not None:
        return dialect in only
    return _DANGEROUS.fullmatch(function) is not None


def is_dangerous_package(qualifier: str) -> bool:
    """Whether functions of the schema or package ``qualifier`` (lower case) must not be called."""
    return _PACKAGES.fullmatch(qualifier) is not None


def is_catalog(schema: str, table: str, dialect: str) -> bool:
    """Whether the table belongs to the database's own catalog.

    Names in lower case; ``schema`` may be several, from the outermost in, with dots between.
    """
    if dialect == "oracle" and _ORACLE_CATALOG.fullmatch(table):
        return True
    if _CATALOG_TABLE.fullmatch(table) or schema.partition(".")[0] in _CATALOGS:
        return True
    return bool(schema) and any(_CATALOG_SCHEMA.fullmatch(part) for part in schema.split("."))


def known_dialect(dialect: object) -> str:
    """The dialect's own name. Raises `PolicyError` with a suggestion."""
    known = (*DIALECTS, *DIALECT_ALIASES)
    if not isinstance(dialect, str) or dialect not in known:
        hint = suggest_name(str(dialect).lower(), known, f"write one of {', '.join(DIALECTS)}")
        raise PolicyError(f"the SQL dialect {dialect!r} is unknown", hint=hint)
    return DIALECT_ALIASES.get(dialect, dialect)


def known_kind(policy: str, kind: str) -> str:
    """The kind of statement in upper case. Raises `PolicyError` with a suggestion."""
    upper = kind.strip().upper()
    if upper not in KINDS:
        hint = suggest_name(upper, sorted(KINDS), "write a kind of statement such as DROP, or table:NAME")
        raise PolicyError(f"{policy}: deny has {kind!r}, which is no kind of statement", hint=hint)
    return upper
