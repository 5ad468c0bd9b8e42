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
        return _content(self.package, self.file)

    @cache  # noqa: B019 - the files are constants of modules
    def words(self, table: str, key: str | None = None) -> frozenset[str]:
        """The words of ``table``, or of its entry ``key``; none where it has no such key."""
        entry: Any = self.content[table]
        return frozenset(str(entry if key is None else entry.get(key, "")).split())

    @cache  # noqa: B019 - the files are constants of modules
    def pattern(self, name: str) -> re.Pattern[str]:
        """The regular expression ``name``, among ``expressions`` or at the top of the file."""
        regex: str | list[str] = self.content.get("expressions", self.content).get(name) or self.content[name]
        return re.compile(self.written_out(regex if isinstance(regex, str) else "|".join(regex)))

    def written_out(self, regex: str) -> str:
        """``regex`` with its fragments written out."""
        fragments: Mapping[str, str] = self.content.get("fragments", {})
        return re.sub(r"<<(\w+)>>", lambda name: self.written_out(fragments[name[1]]), regex)


@cache
def _content(package: str, file: str) -> Mapping[str, Any]:
    import yaml

    return yaml.safe_load(files(package).joinpath(file).read_text(encoding="utf-8"))
