"""What a SQL text touches: its tables and the kinds of its statements."""

from __future__ import annotations

from lgov_core.policies.sql import names as sql_names
from lgov_core.policies.sql import tree as sql_tree
from lgov_core.policies.sql.kinds import kinds
from lgov_core.policies.sql.parse import TooMuchWork, make_parser
from lgov_core.policies.sql.refusal import Refusal
from lgov_core.policies.sql.rules import stored_name
from lgov_core.policies.sql.text import Lexicon


class SQLTouches:
    """Reads texts of one dialect. Immutable; loads the parser when it is made."""

    def __init__(self, dialect: str) -> None:
        self.dialect = sql_names.known_dialect(dialect)
        self._lexicon = Lexicon(self.dialect)
        self._parse, _ = make_parser(self.dialect)

    def read(self, text: str) -> tuple[frozenset[str], frozenset[str]]:
        """The tables (``schema.table`` where the text says so, lower case) and the kinds of statement in ``text``.

        Statements that cannot be parsed add nothing: it describes, and judges nothing.
        """
        tables: set[str] = set()
        found: set[str] = set()
        try:
            for statement in self._lexicon.statements(text):
                tree, _ = self._parse(statement.text)
                for node in () if tree is None else tree.walk():
                    found.update(kinds(node))
                    for schema, table in sql_tree.table_names(node):
                        if table and not sql_tree.is_from_query(node, table):
                            tables.add(".".join(filter(None, stored_name(schema, table, self.dialect))))
        except (Refusal, TooMuchWork, RecursionError):
            pass
        return frozenset(tables), frozenset(found)
