"""The tables that a writing statement works on: the one that it writes to, the others, and what ties them together."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from lgov_core.policies.sql.parse import TooMuchWork
from lgov_core.policies.sql.tree import nodes_of

#: So many comparisons are looked at for one statement; an ordinary one has a handful.
_MOST_QUESTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """A table in FROM, USING or a join: its name, and the names under which conditions know it (in lower case).

    ``query`` is the subquery, or function, that stands in a table's place; ``copy`` says that it may hold what each row of
    the written table holds.
    """

    table: str
    known_as: frozenset[str]
    query: exp.Expr | None = None
    copy: bool = False
    schema: str = ""

    def may_be(self, table: exp.Table) -> bool:
        """Whether ``table`` may be the same one: it has its name, and no other schema's."""
        other = table.db.lower()
        return table.name.lower() == self.table and (not other or not self.schema or other == self.schema)


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
        written = Source(own.name.lower(), frozenset({name}), schema=own.db.lower())
    else:
        written = Source(name, frozenset({name, target.alias_or_name.lower()}), schema=target.db.lower())
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
    if isinstance(node, exp.Table) and not is_function(node):
        return Source(node.name.lower(), _names(node))
    return Source("", _names(node), node)


def _collect(place: object, nodes: list[exp.Expr], ties: list[exp.Expr]) -> None:
    """Adds the tables and subqueries at ``place``, and those that are joined to them."""
    if isinstance(place, exp.Join):
        on = place.args.get("on")
        if isinstance(on, exp.Expr) and str(place.args.get("side") or "").upper() not in ("LEFT", "RIGHT", "FULL"):
            ties.append(on)
        _collect(place.this, nodes, ties)
    elif isinstance(place, exp.Table | exp.Subquery | exp.Lateral | exp.Unnest | exp.Values | exp.TableFromRows):
        nodes.append(place)
        for join in place.args.get("joins") or []:
            _collect(join, nodes, ties)
    elif isinstance(place, exp.Paren):
        _collect(place.this, nodes, ties)


def is_function(table: exp.Table) -> bool:
    """Whether a function stands in the place of a table: ``json_each(...)``, ``ROWS FROM (...)``."""
    return isinstance(table.this, exp.Func) or bool(table.args.get("rows_from"))


def _names(node: exp.Expr) -> frozenset[str]:
    return frozenset({node.alias_or_name.lower()} - {""})


class Known:
    """What holds for all of a statement: its dialect, its WITH queries by name, and what was found out about its parts.

    ``written`` is the table that it writes to. Without what was found out, subqueries within subqueries would be asked
    again at each level, twice as often each time.
    """

    __slots__ = ("_left", "_nodes", "_queries", "_statement", "_tables", "_written", "columns", "dialect", "parts")

    def __init__(self, dialect: str, statement: exp.Expr, written: str) -> None:
        self.dialect = dialect
        self.parts: dict[tuple[int, frozenset[str]], bool] = {}
        self.columns: dict[int, frozenset[str] | None] = {}  # of queries, by their names; see `sql_scope`
        self._statement, self._written = statement, written
        self._queries: dict[str, exp.Expr] | None = None
        self._nodes: dict[int, list[exp.Expr]] = {}
        self._tables: dict[int, list[exp.Table]] = {}
        self._left = _MOST_QUESTIONS

    @property
    def queries(self) -> dict[str, exp.Expr]:
        """All WITH queries by their names (in lower case). Raises `TooMuchWork` where a name may mean two things."""
        if self._queries is None:
            self._queries = _named_queries(self._statement.root(), self._written)
        return self._queries

    def count(self) -> None:
        """Counts one comparison. Raises `TooMuchWork`."""
        self._left -= 1
        if self._left < 0:
            raise TooMuchWork

    def nodes(self, query: exp.Expr) -> list[exp.Expr]:
        """All nodes of ``query``."""
        found = self._nodes.get(id(query))
        if found is None:
            found = self._nodes[id(query)] = nodes_of(query)
        return found

    def tables(self, query: exp.Expr) -> list[exp.Table]:
        """The tables in ``query``, at any depth."""
        found = self._tables.get(id(query))
        if found is None:
            found = self._tables[id(query)] = [node for node in self.nodes(query) if isinstance(node, exp.Table)]
        return found


def _named_queries(text: exp.Expr, written: str) -> dict[str, exp.Expr]:
    found: dict[str, exp.Expr] = {}
    for query in nodes_of(text):
        if not isinstance(query, exp.CTE):
            continue
        name = query.alias.lower()
        if name in found or (name == written and query.find_ancestor(exp.Query) is not None):
            raise TooMuchWork
        found[name] = query.this
    return found
