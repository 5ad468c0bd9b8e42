"""Whether the condition of an UPDATE, DELETE or MERGE limits what it touches.

The question is asked the safe way round: a condition limits only if it has a part that is recognised as limiting (a
column of the table that is written, compared with something that does not hold that column). Whatever is not
recognised, constants and tautologies among it, does not limit. In an OR every side must limit, and open ranges and
negations do not count there: two of them together may cover every row.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from lgov_core.policies.sql.conditions import conjuncts, removes_doubles
from lgov_core.policies.sql.sources import Known, Source, sources_of
from lgov_core.policies.sql.target import Target


def limits(statement: exp.Update | exp.Delete, dialect: str = "") -> bool:
    """Whether the statement has a WHERE that is recognised as limiting the rows of the table that it writes to.

    With several tables the WHERE may limit another one, if an inner join ties the written one to it.
    """
    where = statement.args.get("where")
    if not isinstance(where, exp.Where):
        return False
    found = sources_of(statement)
    if found is None:
        return False
    target, others, ties = found
    known = Known(dialect, statement, target.table)
    others = [replace(other, copy=_is_copy(other, target, known)) for other in others]

    def asked(source: Source) -> Target:
        return Target(source, tuple(o for o in (target, *others) if o is not source), known)

    if not others:
        return asked(target).limited_by(where.this)
    if removes_doubles([part for one in (where.this, *ties) for part in conjuncts(one)], target, others):
        return True
    if not any(asked(source).limited_by(where.this) for source in (target, *others)):
        return False
    return any(asked(target).limited_by(condition) for condition in (where.this, *ties))


def ties(merge: exp.Merge, dialect: str = "") -> bool:
    """Whether a MERGE compares a column of its table with what it merges, so that it touches those rows only."""
    target, using = merge.this, merge.args.get("using")
    if not isinstance(target, exp.Table) or not isinstance(using, exp.Expr):
        return False
    one = Source(target.name.lower(), frozenset({target.alias_or_name.lower()}), schema=target.db.lower())
    other = Source("", frozenset({using.alias_or_name.lower()}))
    asked = Target(one, (other,), Known(dialect, merge, one.table))
    return not asked.is_read_by(using) and asked.limited_by(merge.args.get("on"))


def upserts_itself(insert: exp.Insert, dialect: str = "") -> bool:
    """Whether an INSERT that may change rows takes as many as there are from the table that it changes, or counts up."""
    target, query = insert.this, insert.expression
    target = target.this if isinstance(target, exp.Schema) else target
    if not isinstance(target, exp.Table) or not isinstance(query, exp.Expr):
        return not isinstance(target, exp.Table)
    source = Source(target.name.lower(), frozenset({target.name.lower()}), schema=target.db.lower())
    asked = Target(source, (), Known(dialect, insert, source.table))
    return asked.counts_up(query) or not asked.is_left_out_by(query)


def _is_copy(source: Source, target: Source, known: Known) -> bool:
    """Whether ``source`` is a query, or function, of all of ``target``, of the very row that is written, or of any number."""
    query = known.queries.get(source.table) if source.query is None else source.query
    asked = Target(target, (), known)
    return query is not None and (asked.hands_back(query) or asked.counts_up(query) or not asked.is_left_out_by(query))
