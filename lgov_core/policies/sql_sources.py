"""The tables that a writing statement works on: the one that it writes to, the others, and what ties them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from lgov_core.policies.sql_parse import TooMuchWork

#: So many comparisons are looked at for one statement; an ordinary one has a handful.
_MOST_QUESTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """A table in FROM, USING or a join: its name, and the names under which conditions know it (in lower case).

    ``query`` is the subquery that stands in a table's place; ``copy`` says that it holds all rows of the written table.
    """

    table: str
    known_as: frozenset[str]
    query: exp.Expr | None = None
    copy: bool = False


def sources_of(statement: exp.Update | exp.Delete) -> tuple[Source, list[Source], list[exp.Expr]] | None:
    """The table that is written to, the other sources, and the conditions of inner joins.

    None when the statement writes to several tables, or to something else than a table.
    """
    named = statement.args.get("tables") or [statement.this]
    if len(named) != 1 or not isinstance(target := named[0], exp.Table):
        return None
    places: list[object] = [] if target is statement.this else [statement.this]
    places.extend(target.args.get("joins") or [])
    from_ = statement.args.get("from_")
    places.append(from_.this if isinstance(from_, exp.From) else from_)
    places.extend(statement.args.get("joins") or [])
    using = statement.args.get("using")
    places.extend(using if isinstance(using, list) else [])
    nodes: list[exp.Expr] = []
    ties: list[exp.Expr] = []
    for place in places:
        _collect(place, nodes, ties)
    name = target.name.lower()
    own = next((node for node in nodes if isinstance(node, exp.Table) and node.alias_or_name.lower() == name), None)
    if own is not None:  # UPDATE s ... FROM staff AS s
        nodes.remove(own)
        written = Source(own.name.lower(), frozenset({name}))
    else:
        written = Source(name, frozenset({name, target.alias_or_name.lower()}))
    return written, [_source(node) for node in nodes], ties


def read_beside(select: exp.Expr, source: exp.Expr) -> tuple[list[Source], list[exp.Expr]]:
    """What ``select`` reads beside ``source``, and the conditions of its inner joins."""
    nodes: list[exp.Expr] = []
    ties: list[exp.Expr] = []
    from_ = select.args.get("from_")
    for place in (from_.this if isinstance(from_, exp.From) else None, *(select.args.get("joins") or [])):
        _collect(place, nodes, ties)
    return [_source(node) for node in nodes if node is not source], ties


def _source(node: exp.Expr) -> Source:
    if isinstance(node, exp.Table):
        return Source(node.name.lower(), _names(node))
    return Source("", _names(node), node)


def _collect(place: object, nodes: list[exp.Expr], ties: list[exp.Expr]) -> None:
    """Adds the tables and subqueries at ``place``, and those that are joined to them."""
    if isinstance(place, exp.Join):
        on = place.args.get("on")
        if isinstance(on, exp.Expr) and str(place.args.get("side") or "").upper() not in ("LEFT", "RIGHT", "FULL"):
            ties.append(on)
        _collect(place.this, nodes, ties)
    elif isinstance(place, exp.Table | exp.Subquery | exp.Lateral | exp.Unnest):
        nodes.append(place)
        for join in place.args.get("joins") or []:
            _collect(join, nodes, ties)
    elif isinstance(place, exp.Paren):
        _collect(place.this, nodes, ties)


def _names(node: exp.Expr) -> frozenset[str]:
    return frozenset({node.alias_or_name.lower()} - {""})


def named_queries(statement: exp.Expr) -> dict[str, exp.Expr]:
    """The WITH queries that ``statement`` can see, by their names in lower case."""
    found: dict[str, exp.Expr] = {}
    for node in _upwards(statement):
        with_ = node.args.get("with_")
        if isinstance(with_, exp.With):
            for query in with_.expressions:
                found.setdefault(query.alias.lower(), query.this)
    return found


def _upwards(node: exp.Expr) -> Iterator[exp.Expr]:
    current: exp.Expr | None = node
    while current is not None:
        yield current
        current = current.parent


class Known:
    """What holds for all of a statement: its dialect, its WITH queries by name, and what was found out about its parts.

    Without the latter, subqueries within subqueries would be asked again at each level, twice as often each time.
    """

    __slots__ = ("_left", "_tables", "dialect", "parts", "queries")

    def __init__(self, dialect: str, queries: dict[str, exp.Expr]) -> None:
        self.dialect, self.queries = dialect, queries
        self.parts: dict[tuple[int, frozenset[str]], bool] = {}
        self._tables: dict[int, list[exp.Table]] = {}
        self._left = _MOST_QUESTIONS

    def count(self) -> None:
        """Counts one comparison. Raises `TooMuchWork`."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWork

    def tables(self, query: exp.Expr) -> list[exp.Table]:
        """The tables in ``query``, at any depth."""
        found = self._tables.get(id(query))
        if found is None:
            found = self._tables[id(query)] = list(query.find_all(exp.Table))
        return found
