"""The runs, stores and audit records at a path, and each of them opened, with what is worked out of it and kept."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lgov_core._util.sqlite_file import BESIDE, application_id, file_identity
from lgov_core.audit import AuditLog
from lgov_core.errors import LgovError, SettingsError, StoreError
from lgov_core.settings import without_password
from lgov_core.store import RolloutQueue, open_store, store_of
from lgov_core.store.pages import StorePages
from lgov_core.views.attempt_builder import NotRecorded
from lgov_core.views.governance import RecordAlone
from lgov_core.views.timeline import text_of
from lgov_core.views.training import TokenTexts, TrainedBatches, find_tokenizer

#: The application ids of lgov's files.
_STORE: Final = b"lgvS"
_AUDIT: Final = b"lgvA"
_APPROVALS: Final = b"lgvP"
_SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
#: How deep runs are looked for, and how many files of a folder are looked at.
_DEPTH: Final = 3
_NAME_ONE: Final = "name a store (lgov run --store traces.sqlite makes one) or the folder of a training"
_MOST_FILES: Final = 500
#: What only the folder of a training has.
_OF_A_TRAINING: Final = ("metrics.jsonl", "server.json", "run.json", "transitions", "open")


@dataclass(frozen=True, slots=True)
class Source:
    """A run's folder, or a store or an audit record alone. ``store`` is a path or an address; what there is not is None."""

    source_id: str
    folder: Path | None
    store: str | None
    audit: Path | None = None
    approvals: tuple[Path, ...] = ()

    @property
    def metrics(self) -> Path | None:
        """The ``metrics.jsonl`` of a run, if it has one."""
        path = None if self.folder is None else self.folder / "metrics.jsonl"
        return path if path is not None and path.is_file() else None

    @property
    def is_training(self) -> bool:
        """True for the folder of a training, also before its first update."""
        return self.folder is not None and any((self.folder / name).exists() for name in _OF_A_TRAINING)

    @property
    def place(self) -> str:
        """The path or address, without a password."""
        if self.folder is None and self.store is not None:
            return without_password(self.store)
        return str(self.folder or self.audit)


def find_sources(place: str) -> list[Source]:
    """The sources at ``place``: a store (path or address), an audit record, the folder of a run, or a folder with such.

    Raises `StoreError` when there is none.
    """
    if "://" in place:
        return [Source(without_password(place).partition("?")[0].rpartition("/")[2] or "store", None, place)]
    path = Path(place).absolute()
    if path.is_file():
        if application_id(path) == _AUDIT:
            return [Source(path.stem, None, None, path)]
        if (path.parent / "metrics.jsonl").is_file():
            return [_of_folder(path.parent, path.parent.name, str(path))]
        return [Source(path.stem if path.stem != "store" else path.parent.name, None, str(path))]
    if not path.is_dir():
        raise StoreError(f"there is no file or folder {place}", hint="name a store, or the folder of a run")
    sources = sorted(_in_folder(path, path, _DEPTH), key=lambda source: source.source_id)
    if not sources and (store := store_of(path)) != str(path):
        return find_sources(store)
    if not sources:
        raise StoreError(f"there is no store and no run in {place}", hint=_NAME_ONE)
    return sources


def _in_folder(folder: Path, top: Path, depth: int) -> Iterator[Source]:
    """The sources in a folder; what is below a run belongs to it."""
    stores = [str(path) for path in _databases(folder) if application_id(path) == _STORE]
    if (folder / "server.json").is_file() and (store := store_of(folder)) != str(folder):
        stores = list(dict.fromkeys((store, *stores)))
    if stores or (folder / "metrics.jsonl").is_file():
        name = folder.relative_to(top).as_posix()
        yield _of_folder(folder, top.name if name == "." else name, stores[0] if stores else None)
        for path in stores[1:]:
            yield Source(Path(path).relative_to(top).with_suffix("").as_posix(), None, path)
        return
    if depth > 0:
        try:
            below = sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.is_symlink())
        except OSError:
            return
        for inner in below:
            yield from _in_folder(inner, top, depth - 1)


def _of_folder(folder: Path, name: str, store: str | None) -> Source:
    kinds = {path: application_id(path) for path in _databases(folder)}
    audit = next((path for path, kind in kinds.items() if kind == _AUDIT), None)
    approvals = tuple(path for path, kind in kinds.items() if kind == _APPROVALS)
    return Source(name, folder, store, audit, approvals)


def _databases(folder: Path) -> list[Path]:
    """The files that may be databases, ``store`` first."""
    try:
        files = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file()]
    except OSError:
        return []
    return sorted(files, key=lambda path: (path.stem != "store", path.name))[:_MOST_FILES]


def kept_below(folder: Path, depth: int = _DEPTH) -> Iterator[tuple[str, str]]:
    """The audit records, approvals and stores in a folder and below, each with its kind, and the other files of folders."""
    kinds = {_STORE: "store", _AUDIT: "record", _APPROVALS: "approvals"}
    with contextlib.suppress(SettingsError):
        if "://" in (store := store_of(folder)) or Path(store).is_file():
            yield "store", store if "://" in store else str(Path(store).resolve())
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.is_symlink() or (path.name.startswith(".") and path.name != ".lgov"):
            continue
        if path.is_dir() and depth > 0:
            yield from kept_below(path, depth - 1)
        elif path.is_file() and not path.name.endswith(BESIDE):
            yield kinds.get(application_id(path) if path.suffix in _SUFFIXES else b"", "file"), str(path)


#: How long a page waits for a store that another process holds, and how long the others are told so without waiting.
_BUSY_S: Final = 0.5
#: A source in which something is open counts as stalled after so many seconds without a write; else it has ended.
STALLED_S: Final = 60.0
_MOST_RUNS: Final = 200


class OpenSource:
    """One source. Callable from any thread.

    The store is opened when it is first needed, and again when its file was replaced. For an audit record alone it is one in
    memory, with the record's decisions.
    """

    def __init__(self, source: Source, *, tokenizer: Path | None = None) -> None:
        self.source = source
        self.batches = TrainedBatches(None if source.folder is None else source.folder / "transitions")
        alone = source.audit if source.store is None and source.folder is None else None
        self._record = None if alone is None else RecordAlone(alone)
        self._tokenizer = tokenizer
        self._texts: TokenTexts | None = None
        self._lock = threading.Lock()
        self._store: RolloutQueue | None = None
        self._identity: tuple[int, int] | None = None
        self._refused: tuple[float, StoreError] | None = None
        self._counted: tuple[Any, dict[str, Any]] = (None, {})
        self._activity: tuple[Any, float | None, bool] = (None, None, False)

    @property
    def store(self) -> RolloutQueue:
        """The store. Raises `NotRecorded` when there is none, `StoreError` when it cannot be opened."""
        address = self.source.store
        if self._record is not None:
            self._record.read()
            return self._record.store
        if address is None:
            raise NotRecorded(f"{self.source.place} has no store", hint="its figures are all that there is")
        with self._lock:
            identity = None if "://" in address else _identity(address)
            if self._store is not None and identity != self._identity:
                self._store.close()
                self._store = None
            if self._store is None:
                if self._refused is not None and time.monotonic() - self._refused[0] < _BUSY_S:
                    raise self._refused[1]
                began = time.monotonic()
                try:
                    self._store, self._identity = open_store(address, make=False, busy_timeout_s=_BUSY_S), identity
                except StoreError as error:
                    if (ended := time.monotonic()) - began >= _BUSY_S:
                        self._refused = (ended, error)
                    raise
            return self._store

    @property
    def texts(self) -> TokenTexts | None:
        """Texts of tokens, None where no tokenizer is known. Raises `ModelError` for one that was named and cannot be read."""
        if self._texts is None:
            path = self._tokenizer or find_tokenizer(self.source.folder)
            if path is None:
                return None
            try:
                self._texts = TokenTexts(path)
            except LgovError:
                if self._tokenizer is not None:
                    raise
                return None
        return self._texts

    def rewrites(self, rollout_id: str) -> Mapping[str, Mapping[str, Any]]:
        """Texts that transforms replaced on a rollout, by decision id, where the audit record has both texts."""
        if self.source.audit is None:
            return {}
        rewrites: dict[str, Mapping[str, Any]] = {}
        with contextlib.suppress(LgovError), AuditLog(self.source.audit, signer=None) as log:
            for entry in log.entries(rollout_id):
                content: dict[str, Any] = json.loads(entry.content or "{}")
                for before, after in ((content.get("text"), "new_text"), (entry.arguments, "new_arguments")):
                    if content.get(after) is not None:
                        rewrites[entry.entry_id] = {"before": text_of(before), "after": text_of(content[after])}
        return rewrites

    def describe(self) -> dict[str, Any]:
        """The source in the list of sources: its state, counts and parts. Never raises for what cannot be read."""
        source = self.source
        about: dict[str, Any] = {
            "id": source.source_id,
            "name": source.source_id,
            "kind": "record" if self._record is not None else "store" if source.metrics is None else "run",
            "place": source.place,
            "runs": [],
            "counts": {"rollouts": 0, "open_attempts": 0, "calls": 0},
            "has": {
                "metrics": source.metrics is not None,
                "training": source.is_training,
                "audit": source.audit is not None,
                "batches": source.folder is not None and (source.folder / "transitions").is_dir(),
                "tokenizer": (self._tokenizer or find_tokenizer(source.folder)) is not None,
                "approvals": bool(source.approvals),
            },
        }
        if source.store is not None or self._record is not None:
            try:
                about |= self._contents(self.store.pages)
            except LgovError as error:
                return about | unreadable(error)
        return about | self.state()

    def _contents(self, pages: StorePages) -> dict[str, Any]:
        """The runs of the store and how much there is, counted again only when rows were added."""
        marks = pages.marks()
        if self._counted[0] != marks:
            rollouts, calls = pages.counts()
            counts = {"rollouts": rollouts, "open_attempts": 0, "calls": calls}
            self._counted = (marks, {"runs": pages.runs(_MOST_RUNS), "counts": counts})
        contents = self._counted[1]
        return {**contents, "counts": {**contents["counts"], "open_attempts": pages.open_attempts()}}

    def state(self) -> dict[str, Any]:
        """Says whether the source is live, stalled or has ended, and when it was last written."""
        try:
            written = self.written()
            if written is None or self._activity[0] != written:
                self._activity = (written, *self._look())
        except (LgovError, OSError) as error:
            return unreadable(error if isinstance(error, LgovError) else StoreError(str(error)))
        _, last, is_open = self._activity
        silent = None if last is None else max(time.time() - last, 0.0)
        state = "live" if silent is not None and silent < STALLED_S else "stalled" if is_open else "ended"
        return {"state": state, "last_write_at": last, "silent_s": silent, "error": None}

    def written(self) -> Any:
        """Changes whenever the files of the source are written to; None where that cannot be seen from here."""
        source = self.source
        if source.store is not None and "://" in source.store:
            return None
        files = [Path(source.store), Path(f"{source.store}-wal")] if source.store is not None else []
        files += [source.metrics] if source.metrics is not None else []
        if source.folder is not None:
            files += [source.folder / "open", *source.folder.glob("open/step-*.jsonl")]
        if source.store is not None and not files[0].exists():
            raise StoreError(f"the trace store {source.place} is gone", hint="it was moved or deleted; put it back")
        return tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.exists())

    def _look(self) -> tuple[float | None, bool]:
        """When the source was last written, and whether an attempt or a step is open."""
        metrics, folder = self.source.metrics, self.source.folder
        times = [] if metrics is None else [metrics.stat().st_mtime]
        is_open = folder is not None and any(folder.glob("open/step-*.jsonl"))
        if self.source.store is not None:
            pages = self.store.pages
            times += filter(None, [pages.last_active()])
            is_open = is_open or pages.open_attempts() > 0
        return max(times, default=None), is_open

    def started_at(self) -> float | None:
        """When the first rollout was made (Unix seconds), None where that cannot be read."""
        try:
            return None if self.source.store is None else self.store.pages.first_created()
        except LgovError:
            return None

    def close(self) -> None:
        """Closes the store."""
        with self._lock:
            if self._record is not None:
                self._record.store.close()
            if self._store is not None:
                self._store.close()
                self._store = None


def unreadable(error: LgovError) -> dict[str, Any]:
    """The state of a source that cannot be read."""
    return {"state": "unreadable", "last_write_at": None, "silent_s": None, "error": error.as_json()}


def _identity(address: str) -> tuple[int, int] | None:
    try:
        return file_identity(address.removeprefix("sqlite:///"))
    except OSError:
        return None
