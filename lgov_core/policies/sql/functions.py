"""Which functions only compute: what read_only lets through although the parser has no class for it."""

from __future__ import annotations

from lgov_core.policies.sql.function_names import EVERYWHERE, HARMLESS, HARMLESS_FORMS

_FAMILIES = {
    "redshift": ("postgres", "redshift"),
    "materialize": ("postgres",),
    "risingwave": ("postgres",),
    "doris": ("mysql", "doris"),
    "starrocks": ("mysql", "doris"),
    "singlestore": ("mysql",),
    "databricks": ("spark", "databricks"),
    "hive": ("spark",),
    "presto": ("trino",),
    "athena": ("trino",),
    "fabric": ("tsql",),
    "exasol": ("oracle",),
}


def is_harmless(function: str, dialect: str) -> bool:
    """Whether ``function`` (lower case), unknown to the parser, is known to only compute."""
    if function in EVERYWHERE:
        return True
    for family in _FAMILIES.get(dialect, (dialect,)):
        if function in HARMLESS.get(family, ()):
            return True
        forms = HARMLESS_FORMS.get(family)
        if forms is not None and forms.fullmatch(function):
            return True
    return False
