"""The arguments of a tool call as its tool's schema yields them: validated once, judged, and handed to the function.

A framework validates what a model wrote before it calls a tool's function: names are resolved, defaults filled in, values
converted. What policies judge is the result, under the names of the schema's fields and as plain JSON values. The framework
gets the same result where it would validate, so that validators run once, and the function gets what was judged.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from typing import Any, Final

from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from lgov_core._util.json_text import MAX_DEPTH, NotCanonical, canonical_json
from lgov_core.wire.turns import JSON


class Unreadable(ValueError):
    """Arguments that no policy can judge, and why."""


class ToolArguments(ABC):
    """The arguments of one call.

    ``raw`` is what the schema was given and ``arguments`` what it yields, as policies judge it: plain JSON by the names of
    fields. Where ``problem`` says why nothing can judge it, or ``error`` is what the schema raised, ``arguments`` is ``raw``.
    ``judged`` is what ``arguments`` was before policies changed it. Used by one task or thread at a time.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.problem: str | None = None
        self.raw: Mapping[str, Any] = self._own(raw)
        self.error: Exception | None = None
        self.arguments = self.raw
        self._by_name = self._is_taken = False
        self._native: Any = None
        self._read()
        self.judged = self.arguments

    @property
    @abstractmethod
    def schema(self) -> Any:
        """The pydantic model that validates the arguments; None if nothing does."""

    @abstractmethod
    def validate(self, raw: JSON, *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        """Returns what the framework hands to the function for ``raw``, and the same values by the names of the fields.

        ``by_name``: the names in ``raw`` are those of fields, as policies see them. Raises what the schema raises, and
        `Unreadable`.
        """

    def _own(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return _own_json(dict(raw))
        except RecursionError:
            self.problem = "they are nested too deep"
            return {}

    def _read(self) -> None:
        if self.problem is not None:
            return
        try:
            self._native, values = self.validate(_own_json(self.raw), by_name=self._by_name)
            arguments = plain(values)
            if not self._by_name:
                _check_names(self.schema, values, self.raw)
            self.arguments = arguments
        except Unreadable as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 - the framework's to handle, at the place where it validates
            self.error = error

    def settle(self, changed: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The arguments that the schema yields for those a policy ``changed``; None if they do not fit.

        From here on the function gets these.
        """
        self.problem = self.error = None
        self.raw, self._by_name, self._is_taken = self._own(changed), True, False
        self.arguments = self.raw
        self._read()
        return None if self.problem is not None or self.error is not None else self.arguments

    @property
    def complaint(self) -> str:
        """Why the schema, or no policy, can read the arguments; one line."""
        return " ".join(str(self.problem or self.error or "").split())

    def is_judged(self, judged: Mapping[str, Any]) -> bool:
        """Returns whether ``judged`` is exactly what the function gets."""
        return is_same(self.arguments, judged)

    def take(self) -> Any:
        """Returns what the function gets. Raises what the schema raised."""
        native, error = self.result()
        if error is not None:
            raise error
        return native

    def result(self) -> tuple[Any, Exception | None]:
        """Returns what the function gets, or what the schema raised.

        A function may change what it gets: for another run of the same call it is made anew. If the schema yields something
        else then, no run gets anything any more.
        """
        if self._is_taken and self.error is None and self.problem is None:
            judged = self.arguments
            self._read()
            if self.problem is not None or (self.error is None and not is_same(self.arguments, judged)):
                self.error = Unreadable("the tool's schema yields other values each time it reads the same arguments")
        self._is_taken = True
        return self._native, self.error


def is_same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Returns whether both are the same JSON: 1, 1.0, true and "1" are not."""
    try:
        return canonical_json(first) == canonical_json(second)
    except NotCanonical:
        return False


def _own_json(value: Any) -> Any:
    """A copy of the JSON containers in ``value``; what the framework put in beside them stays."""
    if type(value) is list:
        return [_own_json(element) for element in value]
    return {key: _own_json(element) for key, element in value.items()} if isinstance(value, dict) else value


def plain(value: Any, depth: int = 0) -> Any:
    """A validated value as plain JSON: every field that a function finds in it, whatever its serialisers would show.

    Raises `Unreadable` for a value that JSON has no form for.
    """
    if depth > MAX_DEPTH:
        raise Unreadable("they are nested too deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, str):
        return _whole_text(str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unreadable(f"they hold {value!r}, which is no number of JSON")
        return float(value)
    if isinstance(value, Mapping):
        return _plain_object(value, depth)
    if isinstance(value, list | tuple | Set):
        return [plain(element, depth + 1) for element in value]
    if (fields := fields_in(value)) is not None:
        return plain(fields["root"], depth + 1) if is_root(value) else _plain_object(fields, depth)
    return _plain_leaf(value)


def _plain_object(value: Mapping[Any, Any], depth: int) -> JSON:
    items = [(plain(key, depth + 1), plain(element, depth + 1)) for key, element in value.items()]
    plain_items = {key if isinstance(key, str) else canonical_json(key): element for key, element in items}
    if len(plain_items) != len(items):
        raise Unreadable("an object in them has a key twice")
    return plain_items


def _whole_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable("a text in them holds half of a character") from None
    return text


def _plain_leaf(value: Any) -> Any:
    if hasattr(value, "get_secret_value"):
        return plain(value.get_secret_value())
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if not isinstance(value, Iterator):
        try:
            return plain(to_jsonable_python(value))
        except (PydanticSerializationError, ValueError):
            if type(value).__str__ is not object.__str__ or type(value).__repr__ is not object.__repr__:
                return str(value)
    raise Unreadable(f"a {type(value).__name__} in them is nothing that a policy can read")


def fields_in(value: Any) -> JSON | None:
    """The fields of a pydantic model (those that its schema does not name too) or a dataclass, by name; None otherwise."""
    if hasattr(type(value), "__pydantic_fields__") or hasattr(type(value), "__fields__"):
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def is_root(value: Any) -> bool:
    """Returns whether ``value`` is a pydantic model that is only its one value (``RootModel``)."""
    return bool(getattr(type(value), "__pydantic_root_model__", False))


_ABSENT: Final = object()


def _check_names(schema: Any, values: Mapping[str, Any], raw: Any) -> None:
    """Raises `Unreadable` if ``raw``, from which ``schema`` made ``values``, has one of its fields by two names."""
    fields: Mapping[str, Any] = getattr(schema, "__pydantic_fields__", None) or {}
    for name, info in fields.items():
        written = {text: value for text, value in _written(name, info, raw) if value is not _ABSENT}
        if len(written) > 1:
            raise Unreadable(f"{name} is there twice, as {' and '.join(sorted(written))}")
        for value in written.values():
            _check_inside(values.get(name), value)


def _check_inside(value: Any, raw: Any) -> None:
    if isinstance(value, list | tuple) and isinstance(raw, list) and len(value) == len(raw):
        for element, raw_element in zip(value, raw, strict=True):
            _check_inside(element, raw_element)
    elif isinstance(raw, Mapping):
        if isinstance(value, Mapping):
            for name, element in value.items():
                _check_inside(element, raw.get(name))
        elif (fields := fields_in(value)) is not None:
            _check_names(type(value), fields, raw)


def _written(name: str, info: Any, raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each name of a field, with its value in ``raw``."""
    yield name, raw.get(name, _ABSENT)
    alias = info.validation_alias  # pydantic sets it to the alias where there is no other
    for choice in getattr(alias, "choices", None) or [alias]:
        if isinstance(choice, str):
            yield choice, raw.get(choice, _ABSENT)
        elif choice is not None:  # a path
            value = choice.search_dict_for_path(raw)
            yield ".".join(map(str, choice.path)), _ABSENT if value is PydanticUndefined else value


def validate_by_name(schema: Any, values: Mapping[str, Any]) -> Any:
    """The pydantic model ``schema`` made of ``values``, which are under the names of its fields, whatever its aliases are."""
    if not hasattr(schema, "__pydantic_fields__"):  # pydantic 1
        return schema.parse_obj(values)
    return schema.model_validate(values, by_name=True, by_alias=False)
