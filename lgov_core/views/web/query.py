"""Parameters of a request, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lgov_core.store.sql.pages import Filters
from lgov_core.views.web.errors import QueryError

#: Characters of a parameter.
_LONGEST = 500
#: The last place in the order of writing that there can be.
_LAST = 2**63 - 1
_OUTCOMES = ("succeeded", "failed", "blocked", "infrastructure", "timeout", "truncated", "running", "unknown")


class Query:
    """The parameters of a request, by name. Each method raises `WindowError` (400) for a value without meaning."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        """A text, None where it is missing or empty."""
        value = self._given.get(name) or None
        if value is not None and len(value) > _LONGEST:
            raise QueryError(f"{name} is longer than {_LONGEST} characters")
        return value

    def needed(self, name: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if value is None:
            raise QueryError(f"{name} is missing", hint=f"add {name}=")
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number."""
        value = self._given.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdecimal() or not least <= int(value[:20]) <= most:
            raise QueryError(f"{name} is {value[:20]!r}", hint=f"a whole number from {least} to {most}")
        return int(value)

    def choice(self, name: str, known: Sequence[str], default: str | None = None) -> str | None:
        """One of ``known``, or the default where it is missing."""
        value = self._given.get(name) or None
        if value is not None and value not in known:
            raise QueryError(f"{name} is {value[:40]!r}", hint=f"one of {', '.join(known)}")
        return value or default

    def flag(self, name: str) -> bool:
        """Whether ``name=1`` is given."""
        return self.choice(name, ("0", "1")) == "1"

    def cursor(self) -> int | None:
        """The place before which a page begins, None for the first page."""
        return self.whole("cursor", 0, 1, _LAST) or None

    def attempt(self) -> int | None:
        """The attempt that is asked for, None for the last."""
        return self.whole("attempt", 0, 1, 2**31) or None

    def filters(self) -> Filters:
        """The filters of tasks and rollouts."""
        return Filters(
            run=self._given.get("run"),
            task=self._given.get("task"),
            agent=self.text("agent"),
            outcome=self.choice("outcome", _OUTCOMES),
            denied=self.choice("denied", ("0", "1", "would")),
            policy=self.text("policy"),
            rule=self.text("rule"),
            text=self.text("text"),
        )
