"""YAML with line numbers: plain values only, nothing silently merged, repeated or executed."""

from __future__ import annotations

from typing import Any

from lgov_core.errors import PolicyFileError

#: The place of a value in a document: keys and indexes from the root.
Place = tuple[str | int, ...]
MAX_DEPTH = 32
_SCALARS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "value")
)
MAX_CHARACTERS = 1_000_000


def read_yaml(text: str, source: str) -> tuple[Any, dict[Place, int]]:
    """The value of a YAML text, and the line (from 1) of every place in it.

    Keys are always text (``on:`` is not a truth value). Anchors, merges, tags, dates and repeated keys are errors.
    Raises `PolicyFileError`.
    """
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise PolicyFileError(f"the file is longer than {MAX_CHARACTERS} characters", path=source)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        raise PolicyFileError(f"not YAML: {error.problem}", path=source, line=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyFileError(f"not YAML: {error}", path=source) from error
    if root is None:
        return None, {}
    reader = _Reader(source)
    return reader.value(root, ()), reader.lines


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Place, int] = {}
        self._seen: set[int] = set()

    def value(self, node: Any, location: Place) -> Any:
        """The plain value of ``node``, at ``location``."""
        self.lines[location] = node.start_mark.line + 1
        if id(node) in self._seen:
            raise self._error("an alias (*name) is not supported", node, "write the value out")
        self._seen.add(id(node))
        if len(location) > MAX_DEPTH:
            raise self._error("nested too deeply", node)
        if node.id == "mapping" and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, location)
        if node.id == "sequence" and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, (*location, index)) for index, item in enumerate(node.value)]
        if node.id == "scalar" and node.tag in _SCALARS:
            return self._scalar(node)
        raise self._error(f"the tag {node.tag} is not supported", node, "leave the tag out")

    def _mapping(self, node: Any, location: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            if key.id != "scalar" or key.tag == "tag:yaml.org,2002:merge":
                raise self._error("a key must be plain text", key, "write key: value")
            name = str(key.value)
            if name in mapping:
                first = self.lines[(*location, name)]
                raise self._error(f"{name} is given twice (first in line {first})", key, "keep one of them")
            mapping[name] = self.value(item, (*location, name))
            self.lines[(*location, name)] = key.start_mark.line + 1
        return mapping

    def _scalar(self, node: Any) -> Any:
        import yaml

        loader = yaml.SafeLoader("")
        try:
            value = loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise self._error(f"{node.value!r} has no meaning", node, "put it in quotes") from error
        finally:
            loader.dispose()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float) and value - value == 0:  # neither infinite nor NaN
            return value
        raise self._error(f"{node.value!r} is read as {type(value).__name__}", node, "put it in quotes")

    def _error(self, message: str, node: Any, hint: str | None = None) -> PolicyFileError:
        return PolicyFileError(message, path=self.source, line=node.start_mark.line + 1, hint=hint)
