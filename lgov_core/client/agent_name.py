"""Agents by name: ``module:function`` or ``path/to/file.py:function``, for other processes and for the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import ArgumentError

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
