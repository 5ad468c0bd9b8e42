"""Tasks: one JSON object each, from a file of JSON lines; and what an agent gets with one."""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import ArgumentError, TaskError

#: Maximum number of errors of a file reported at once.
_TOLD: Final = 10


class Task(Mapping[str, Any]):
    """One task: its fields as attributes (``task.question``) and as keys (``task["question"]``). Read only.

    A field that is not there raises `AttributeError` (`KeyError`) which names those that are. A field whose name is a
    method of a mapping (``keys``, ``get``, ...) is read as a key.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__setattr__("_fields", dict(fields))

    def __getattr__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"the task has no field {name!r}: it has {', '.join(self._fields)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a task is read only")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Task({self._fields!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self._fields,)


@dataclass(frozen=True, slots=True)
class Resource:
    """The means that an agent works with in one attempt.

    ``model_api`` is the base URL of the model, for clients of OpenAI's and of Anthropic's API; calls to it are recorded
    for this attempt, whatever key and whatever model they name. ``model`` is the model's name. ``api_key`` is a key for
    clients that want one. ``mode`` is ``train``, or ``test`` for held-out tasks. ``prompts`` are the templates that are
    tuned, by name (``lgov train --algorithm prompt``); else there are none.
    """

    model_api: str
    model: str
    rollout_id: str
    attempt: int
    mode: str = "train"
    api_key: str = "not-used"
    prompts: Mapping[str, str] = field(default_factory=dict[str, str])


def read_tasks(source: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tasks in a file of JSON lines, of Parquet (needs the extra ``train``) or, named ``.csv``, of CSV with a line of
    names, each also compressed by gzip; or in a list of mappings, as a data set of Hugging Face is one. Blank lines are
    ignored.

    Raises `TaskError` with file, line and fault, for the first ten: a line that is not UTF-8 or not a JSON object with
    at least one field, a name given twice, NaN and infinity; and for no task at all.
    """
    if not isinstance(source, str | os.PathLike):
        return _of_list(source)
    path = Path(source)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TaskError(f"the task file cannot be read: {error.strerror or error}", path=str(path)) from error
    try:
        raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
        if raw.startswith(b"PAR1"):
            return _of_list(_parquet(raw))
        if path.name.removesuffix(".gz").endswith(".csv"):
            return _of_list(list(csv.DictReader(io.StringIO(raw.decode("utf-8-sig")), restkey="more", strict=True)))
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise TaskError(f"the task file cannot be read: {error}", path=str(path)) from error
    tasks: list[dict[str, Any]] = []
    faults: list[tuple[int, str]] = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(_read(line))
        except ValueError as error:
            faults.append((number, str(error)))
            if len(faults) == _TOLD:
                break
    if faults:
        (line, message), *others = faults
        more = "".join(f"; line {number}: {what}" for number, what in others)
        raise TaskError(
            f"{message}{more}", path=str(path), line=line, hint="one JSON object a line; nothing was uploaded"
        )
    if not tasks:
        raise TaskError("the file holds no task", path=str(path), hint="one JSON object a line")
    return tasks


def _parquet(raw: bytes) -> list[dict[str, Any]]:
    try:
        from pyarrow import BufferReader, parquet
    except ModuleNotFoundError as error:
        raise ValueError("Parquet needs pyarrow: pip install 'lgov[train]'") from error
    return parquet.read_table(BufferReader(raw)).to_pylist()


def _of_list(source: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = []
    for number, task in enumerate(source):
        try:
            if not isinstance(task, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValueError(f"a {type(task).__name__} is not a task")
            tasks.append(_read(json.dumps(dict(task), allow_nan=False).encode()))
        except (TypeError, ValueError) as error:
            raise TaskError(f"task {number} of the list: {error}", hint="give mappings of plain JSON values") from error
    if not tasks:
        raise TaskError("the list holds no task")
    return tasks


def _read(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1} of the line)") from error
    try:
        task = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(task, dict):
        raise ValueError(f"a JSON {_WORDS.get(type(task), 'value')} is not a task: a task is an object")
    if not task:
        raise ValueError("the object is empty")
    return task


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return document


_WORDS: Final = {list: "list", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null"}


#: The name under which a file with an agent is loaded; ``if __name__ == "__main__":`` does not hold there.
FILE_MODULE: Final = "__lgov_agent__"


def name_of(agent: Any) -> str:
    """A name under which another process finds ``agent``. Raises `ArgumentError` for one that has none."""
    module, qualname = getattr(agent, "__module__", None), getattr(agent, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise ArgumentError(
            f"a worker process cannot find the agent {qualname or agent!r}",
            hint="define it at the top level of a module, or train with workers='threads'",
        )
    if module in ("__main__", FILE_MODULE):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            raise ArgumentError(
                f"a worker process cannot find {qualname}: it was defined in no file",
                hint="put it into a file, or train with workers='threads'",
            )
        return f"{Path(file).resolve()}:{qualname}"
    return f"{module}:{qualname}"


def load_agent(name: str) -> Any:
    """The agent of that name. Raises `ArgumentError` when there is none; what its module raises is raised."""
    where, separator, attribute = name.rpartition(":")
    if not separator or not attribute or not where:
        raise ArgumentError(f"{name!r} names no agent", hint="write module:function or file.py:function")
    module = _of_file(Path(where)) if where.endswith(".py") else _of_name(where)
    agent: Any = module
    for segment in attribute.split("."):
        agent = getattr(agent, segment, None)
    if not callable(agent):
        raise ArgumentError(f"{where} has no function {attribute}")
    return agent


def agent_file(name: str) -> Path | None:
    """The Python file that `load_agent` loaded the agent of that name from; None for an agent of no such file."""
    where = name.rpartition(":")[0]
    file = getattr(sys.modules.get(FILE_MODULE if where.endswith(".py") else where), "__file__", None)
    return Path(file) if file is not None and file.endswith(".py") else None


def _of_name(where: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise ArgumentError(
                f"there is no module {where}", hint="name a file with .py, or check the path"
            ) from error
        raise


def _of_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(FILE_MODULE, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ArgumentError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))  # as python file.py does
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE_MODULE] = module
    spec.loader.exec_module(module)
    return module
