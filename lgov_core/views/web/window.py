"""What a window shows: the sources at a path, and the work on them that is kept between requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lgov_core._util.bounded import BoundedDict
from lgov_core.errors import LgovError, StoreError
from lgov_core.settings import without_password
from lgov_core.views.pages.comparison import ComparedSide, Side, compare, sides_of
from lgov_core.views.pages.diagnosis import Diagnosis
from lgov_core.views.pages.governance.audit_state import AuditState
from lgov_core.views.pages.governance.policy_replay import PolicyReplay
from lgov_core.views.pages.open_source import OpenSource
from lgov_core.views.pages.sources import Source, find_sources
from lgov_core.views.web.errors import NotFoundError

#: Seconds for which the list of sources is taken as it was.
_SAME_S: Final = 2.0
_COMPARISONS: Final = 8


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """What is shown besides the path: files that belong to the first source, and policy files that may be replayed."""

    store: str | None = None
    audit: Path | None = None
    approvals: tuple[Path, ...] = ()
    policies: tuple[Path, ...] = ()
    tokenizer: Path | None = None


class Shown(OpenSource):
    """A source with the checks that run beside the answers."""

    def __init__(self, source: Source, options: WindowOptions) -> None:
        super().__init__(source, tokenizer=options.tokenizer)
        self.audit = AuditState(source.audit)
        self.replay = PolicyReplay(source, options.policies)
        self.diagnosis = Diagnosis(self)


class Window:
    """The sources at ``place``. Callable from any thread. Raises `StoreError` when there is none, unless ``may_be_empty``."""

    def __init__(self, place: str, options: WindowOptions | None = None, *, may_be_empty: bool = False) -> None:
        self.place = place
        self.title = without_password(place)
        self._options = options or WindowOptions()
        self._may_be_empty = may_be_empty
        self._lock = threading.Lock()
        self._open: dict[str, Shown] = {}
        self._looked_at = 0.0
        self._comparisons: BoundedDict[Any, Any] = BoundedDict(_COMPARISONS)
        self.sources()

    def sources(self) -> list[Shown]:
        """All sources, new ones too."""
        with self._lock:
            if time.monotonic() - self._looked_at > _SAME_S or not self._open:
                for number, found in enumerate(self._find()):
                    known = self._open.get(found.source_id)
                    if number == 0:
                        found = replace(
                            found,
                            store=self._options.store or found.store,
                            audit=self._options.audit or found.audit,
                            approvals=tuple(dict.fromkeys((*self._options.approvals, *found.approvals))),
                        )
                    if known is not None and known.source.store is not None and found.store is None:
                        continue  # its store is gone, which it says itself
                    if known is None or known.source != found:
                        self._open[found.source_id] = Shown(found, self._options)
                self._looked_at = time.monotonic()
            return list(self._open.values())

    def _find(self) -> list[Source]:
        try:
            return find_sources(self.place)
        except StoreError:
            if self._may_be_empty or self._open:
                return []
            raise

    def source(self, source_id: str | None) -> Shown:
        """A source by its id, the first one without. Raises `WindowError` (404)."""
        every = self.sources()
        for one in every:
            if source_id in (None, one.source.source_id):
                return one
        raise NotFoundError(f"there is no source {source_id}", hint="api/sources lists them")

    def approval_files(self) -> Sequence[Path]:
        """The files of approval requests that exist."""
        files = (path for one in self.sources() for path in one.source.approvals)
        return [path for path in dict.fromkeys((*self._options.approvals, *files)) if path.is_file()]

    def sides(self) -> list[Side]:
        """What can be compared, over all sources that can be read."""
        found: list[Side] = []
        for one in self.sources():
            try:
                found += sides_of(one.source.source_id, one.store.pages.added_groups())
            except LgovError:  # it has no store, or is shown as unreadable
                continue
        return found

    def comparison(self, first: str, second: str, channel: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The comparison of two sides by their ids; kept until one of their stores grows. Raises `LgovError`."""
        known = {side.id: side for side in self.sides()}
        for missing in {first, second} - known.keys():
            raise NotFoundError(f"there is no side {missing}", hint="api/compare/sides lists them")
        opened = [(known[name], self.source(known[name].source)) for name in (first, second)]
        key = (first, second, channel, *(str(one.store.pages.marks()) for _, one in opened))
        if (found := self._comparisons.get(key)) is None:
            groups = (one.store.pages.added_groups() for _, one in opened)
            compared = [ComparedSide(side, one.store, of) for (side, one), of in zip(opened, groups, strict=True)]
            found = compare(compared[0], compared[1], channel)
            self._comparisons.put(key, found)
        return found

    def close(self) -> None:
        """Closes every store."""
        with self._lock:
            for one in self._open.values():
                one.close()
            self._open.clear()
