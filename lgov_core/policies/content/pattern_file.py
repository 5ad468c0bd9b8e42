"""Reads the tables of patterns ``pii_formats.yaml`` and ``secret_formats.yaml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from lgov_core.policies.content.findings import Check, Pattern
from lgov_core.policies.data import DataFile

#: A value given to a name: ``name = value``, ``"name": "value"``, ``--name value``, ``name: value``. The name is found by its
#: last word; what follows it is anchored there, so nothing is tried twice.
_NAMED_VALUE: Final = (
    r"(?i)(?:%s)s?(?:_(?:prod|dev|staging|stage|live|test|main|\d{1,2})|\d{1,2})?"
    r"(?:\s{0,4}[\"'\]`]){0,2}(?:\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?:[bru]{0,2}[\"'`])?|>)([^\s\"'`<]{6,160})"
)
_BODY: Final = r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])"


@cache
def load_patterns(file: str, check_of: Callable[[Mapping[str, Any]], Check | None]) -> tuple[Pattern, ...]:
    """The patterns of a file beside this module, read once; ``check_of`` gives the check of a row."""
    data = DataFile("lgov_core.policies.content", file)
    patterns: list[Pattern] = []
    for row in data.content["patterns"]:
        if "regex" in row:
            regex = data.written_out(row["regex"])
        else:
            body = data.written_out(row.get("body") or row["names"])
            regex = (_BODY if "body" in row else _NAMED_VALUE) % body
        patterns.append(Pattern(row["kind"], re.compile(regex), tuple(row.get("hints", ())), check_of(row)))
    return tuple(patterns)
