"""The data files of the policies: names and regular expressions in YAML beside the code, read when first used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of ``package``. Its content is read once in a process; may be used from several threads at once.

    A list of words is text, separated by spaces. A regular expression is text, or a list of alternatives; ``<<name>>`` in
    it stands for an entry of ``fragments``.
    """

    package: str
    file: str

    @property
    def content(self) -> Mapping[str, Any]:
        """The whole file."""
        return _content(self)

    def words(self, table: str, key: str | None = None) -> frozenset[str]:
        """The words of ``table``, or of its entry ``key``; none where it has no such key."""
        return _words(self, table, key)

    def pattern(self, name: str) -> re.Pattern[str]:
        """The regular expression ``name``, among ``expressions`` or at the top of the file."""
        return _pattern(self, name)

    def written_out(self, regex: str) -> str:
        """``regex`` with its fragments written out."""
        fragments: Mapping[str, str] = self.content.get("fragments", {})
        return re.sub(r"<<(\w+)>>", lambda name: self.written_out(fragments[name[1]]), regex)


@cache
def _content(data: DataFile) -> Mapping[str, Any]:
    import yaml

    return yaml.safe_load(files(data.package).joinpath(data.file).read_text(encoding="utf-8"))


@cache
def _words(data: DataFile, table: str, key: str | None) -> frozenset[str]:
    found: Any = data.content[table]
    return frozenset(str(found if key is None else found.get(key, "")).split())


@cache
def _pattern(data: DataFile, name: str) -> re.Pattern[str]:
    regex: str | list[str] = data.content.get("expressions", data.content).get(name) or data.content[name]
    return re.compile(data.written_out(regex if isinstance(regex, str) else "|".join(regex)))
