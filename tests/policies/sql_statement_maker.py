"""Random SQL statements from a fixed seed: letter case, quoting, comments, nesting, CTEs, damaged text."""

from __future__ import annotations

import random
from collections.abc import Iterator

SECRET = "salary_answers"


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def table(self) -> str:
        name = self.pick("staff", "orders", SECRET, SECRET)
        if self.random.random() < 0.5:
            name = "".join(c.upper() if self.random.random() < 0.5 else c for c in name)
        quoted = self.pick(name, name, f'"{name}"', f"`{name}`", f"[{name}]", f"'{name}'")
        return self.pick("", "", "", "main.", '"main".', "main . ", "'main'.", "[MAIN] .") + quoted

    def value(self) -> str:
        return self.pick(
            "1", "'x'", "'--'", "'/*'", "'a''b'", '"a""b"', "x'00'", "NULL", "-1", "';'", "'DROP TABLE staff'", "id",
            "name", "count(*)", "max(id)", "lower('A')", f"'{SECRET}'", f'"{SECRET}"', "*", "(SELECT 1)",
            "CASE WHEN 1 THEN 2 END",
        )  # fmt: skip

    def source(self, depth: int) -> str:
        table = self.table()
        if depth <= 0:
            return table
        return self.pick(
            table,
            f"{table} AS s",
            f"{table} s",
            f"({table})",
            f"({self.select(depth - 1)}) q",
            f"staff, {table}",
            f"staff NATURAL JOIN {table}",
            f"staff CROSS JOIN ({table} t)",
            f"staff LEFT JOIN {table} ON 1",
            f"{table} NOT INDEXED",
            "json_each('[1]')",
            f"pragma_table_info('{SECRET}')",
            "sqlite_master",
            "sqlite_schema s",
        )

    def condition(self, depth: int) -> str:
        table = self.table()
        return self.pick(
            "1=1",
            "id = 1",
            f"id IN {table}",
            f"id NOT IN {table}",
            f"id IN (SELECT id FROM {table})",
            f"EXISTS (SELECT 1 FROM {table})",
            f"id = (SELECT max(id) FROM {table})",
            f"id IN ({self.select(depth - 1)})",
            "name LIKE '%a'",
            f"name = '{SECRET}'",
        )

    def select(self, depth: int) -> str:
        if depth <= 0:
            return f"SELECT {self.value()} FROM {self.source(0)}"
        return self.pick(
            f"SELECT {self.value()} FROM {self.source(depth)}",
            f"SELECT {self.value()}, {self.value()} FROM {self.source(depth)} WHERE {self.condition(depth)}",
            f"SELECT {self.value()} UNION ALL SELECT id FROM {self.source(depth)}",
            f"WITH w AS ({self.select(depth - 1)}) SELECT * FROM w",
            f"WITH {SECRET} AS (SELECT 1) SELECT * FROM {self.table()}",
            f"WITH RECURSIVE w(n) AS (SELECT 1 UNION SELECT id FROM {self.table()}) SELECT * FROM w",
            f"SELECT (SELECT {self.value()} FROM {self.source(depth - 1)}) FROM staff",
            f"VALUES (({self.select(depth - 1)}))",
            f"SELECT id FROM staff ORDER BY (SELECT id FROM {self.table()}) LIMIT (SELECT 1 FROM {self.table()})",
            f"SELECT sum(id) FILTER (WHERE {self.condition(depth)}) OVER (PARTITION BY name) FROM {self.source(0)}",
        )

    def statement(self) -> str:
        depth = self.random.randint(0, 2)
        table, select, condition = self.table(), self.select(depth), self.condition(1)
        if self.random.random() < 0.5:
            return self.pick("", "", "", "EXPLAIN ", "EXPLAIN QUERY PLAN ") + select
        return self.pick("", "", "", "EXPLAIN ") + self.pick(
            f"INSERT INTO {table} SELECT * FROM {self.source(1)}",
            f"INSERT INTO {table}(id) VALUES (9)",
            f"INSERT OR REPLACE INTO {table}(id) VALUES (9)",
            f"REPLACE INTO {table}(id) {select}",
            f"INSERT INTO staff(id) VALUES (1) ON CONFLICT(id) DO UPDATE SET name = (SELECT id FROM {table})",
            f"UPDATE {table} SET id = 1 WHERE {condition}",
            f"UPDATE OR IGNORE {table} SET id = 1 WHERE {condition}",
            f"UPDATE staff SET name = 'x' FROM {table} WHERE {condition}",
            f"UPDATE staff SET name = ({select}) WHERE id = 1",
            f"WITH w AS ({select}) DELETE FROM {table} WHERE {condition}",
            f"DELETE FROM {table} WHERE {condition} RETURNING *",
            f"DELETE FROM {table}",
            f"DROP TABLE {table}",
            f"DROP TABLE IF EXISTS {table}",
            f"ALTER TABLE {table} RENAME TO zz",
            f"ALTER TABLE {table} ADD COLUMN zz INT",
            f"CREATE TABLE zz AS {select}",
            f"CREATE TEMP TABLE zz AS {select}",
            f"CREATE VIEW zz AS {select}",
            f"CREATE INDEX zz ON {table}(id)",
            f"CREATE TRIGGER zz AFTER INSERT ON {table} BEGIN DELETE FROM {SECRET}; END",
            f"CREATE TABLE zz(id INT REFERENCES {table}(id))",
            "CREATE VIRTUAL TABLE zz USING fts5(a)",
            "ATTACH ':memory:' AS other",
            "DETACH main",
            "PRAGMA writable_schema = 1",
            "PRAGMA user_version = 5",
            "PRAGMA foreign_keys(0)",
            f"PRAGMA table_info({SECRET})",
            "PRAGMA table_info(staff)",
            "VACUUM",
            f"REINDEX {table}",
            "ANALYZE",
            "BEGIN",
            "COMMIT",
            "SAVEPOINT s",
            "SELECT load_extension('x')",
        )

    def disguise(self, text: str) -> str:
        """Other white space, comments between words, other letter case outside quotes."""
        out: list[str] = []
        inside = ""
        for char in text:
            if inside:
                inside = "" if char == inside else inside
            elif char in "'\"`[":
                inside = "]" if char == "[" else char
            elif char == " ":
                char = self.pick(" ", " ", "\n", "\t", "/**/", "/* ; ' */", "-- ' \n", " \r\n", "/*\n*/ ", "\f")
            elif self.random.random() < 0.3:
                char = char.swapcase()
            out.append(char)
        return "".join(out)

    def damage(self, text: str) -> str:
        """Puts something nasty somewhere."""
        at = self.random.randint(0, len(text))
        nasty = self.pick(
            "'", '"', "`", "[", "]", "--", "/*", "*/", ";", "\\", "\\'", "$a(", "$a(')", "@x", ":y", "?1", "#1", "{#",
            "#}", "{{", "\r", "\v", "\xa0", "\u200b", "(", ")", "''", '""', "/*!", "--\r", "$$", "e'", "x'", "N'", "q'",
            "1_0", "0x1", " AS ", ",", "\ufeff",
        )  # fmt: skip
        return text[:at] + nasty + text[at:]

    def text(self) -> str:
        parts = [self.disguise(self.statement()) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        text = self.pick(";", " ; ", ";\n", ";--x\n", ";;").join(parts) + self.pick("", ";", " -- end", "/**/", ";/*")
        while self.random.random() < 0.3:
            text = self.damage(text)
        return text


def texts(seed: int, count: int) -> Iterator[str]:
    maker = Maker(seed)
    for _ in range(count):
        yield maker.text()
