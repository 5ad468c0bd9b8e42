"""The arguments of a call as its tool's schema yields them: plain JSON by the names of fields, handed out as judged."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import pydantic.v1
import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    ValidationError,
)

from lgov_core._util.json_text import MAX_DEPTH
from lgov_core.instrumentation.tool_arguments import (
    ToolArguments,
    Unreadable,
    fields_in,
    is_root,
    is_same,
    plain,
    validate_by_name,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="allow")
    path: str = Field("here", alias="file")


class Schema(BaseModel):
    limit: int = 10
    target: Inner | None = None
    targets: list[Inner] = []
    by_name: dict[str, Inner] = {}


class Arguments(ToolArguments):
    """The arguments of a tool that validates with the pydantic model ``model``."""

    def __init__(self, raw: Mapping[str, Any], model: Any = Schema) -> None:
        self.model, self.read = model, 0
        super().__init__(raw)

    @property
    def schema(self) -> Any:
        return self.model

    def validate(self, raw: dict[str, Any], *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
        self.read += 1
        native = validate_by_name(self.model, raw) if by_name else self.model.model_validate(raw)
        return native, fields_in(native) or {}


OTHER_VALUES = "the tool's schema yields other values each time it reads the same arguments"


# ---------------------------------------------------------------------- one call


def test_policies_see_what_the_schema_yields_and_the_function_gets_the_same() -> None:
    call = Arguments({"limit": "2", "target": {"file": "a", "more": 1}})
    expected = {"limit": 2, "target": {"path": "a", "more": 1}, "targets": [], "by_name": {}}
    assert call.arguments == call.judged == expected
    assert call.raw == {"limit": "2", "target": {"file": "a", "more": 1}}
    assert (call.problem, call.error, call.complaint) == (None, None, "")
    taken = call.take()
    assert isinstance(taken, Schema)
    assert (taken.limit, taken.target) == (2, Inner(file="a", more=1))
    assert call.read == 1, "validators run once"


def test_what_a_program_changes_later_changes_neither_the_raw_arguments_nor_what_is_judged() -> None:
    raw: dict[str, Any] = {"targets": [{"file": "a"}]}
    call = Arguments(raw)
    raw["targets"][0]["file"] = "b"
    raw["targets"].append({"file": "c"})
    assert call.raw == {"targets": [{"file": "a"}]}
    call.take().targets[0].path = "d"
    assert call.arguments["targets"] == [{"path": "a"}]


def test_a_validator_that_changes_its_input_does_not_change_the_raw_arguments() -> None:
    class Popping(BaseModel):
        inner: Annotated[dict[str, Any], BeforeValidator(lambda value: {"n": value.pop("n")})]

    call = Arguments({"inner": {"n": 1}}, Popping)
    assert call.raw == {"inner": {"n": 1}}
    assert call.arguments == {"inner": {"n": 1}}


def test_what_the_schema_raises_is_the_frameworks_to_handle() -> None:
    call = Arguments({"limit": "many"})
    assert isinstance(call.error, ValidationError)
    assert call.problem is None
    assert call.arguments == call.judged == call.raw == {"limit": "many"}
    assert "limit" in call.complaint
    assert "\n" not in call.complaint
    assert call.result() == (None, call.error)
    with pytest.raises(ValidationError):
        call.take()
    with pytest.raises(ValidationError):
        call.take()
    assert call.read == 1, "an error is not asked for again"


def test_arguments_nested_too_deep_are_a_problem_and_not_an_error() -> None:
    nested: dict[str, Any] = {}
    for _ in range(10_000):
        nested = {"x": nested}
    call = Arguments(nested)
    assert call.problem == call.complaint == "they are nested too deep"
    assert (call.raw, call.arguments, call.error, call.read) == ({}, {}, None, 0)


def test_a_problem_says_what_no_policy_can_judge() -> None:
    class Floating(BaseModel):
        size: float

    call = Arguments({"size": "nan"}, Floating)
    assert call.problem == call.complaint == "they hold nan, which is no number of JSON"
    assert call.arguments == {"size": "nan"}
    assert call.error is None


def test_what_a_policy_changed_is_read_by_the_names_of_fields() -> None:
    call = Arguments({"target": {"file": "a"}})
    settled = call.settle({"limit": "3", "target": {"path": "b"}})
    assert settled == call.arguments == {"limit": 3, "target": {"path": "b"}, "targets": [], "by_name": {}}
    assert call.judged["target"] == {"path": "a"}, "what was judged before the change"
    assert call.raw == {"limit": "3", "target": {"path": "b"}}
    assert call.take().target.path == "b"
    assert call.read == 2


def test_changed_arguments_that_do_not_fit_are_not_settled_and_say_why() -> None:
    call = Arguments({})
    assert call.settle({"limit": "many"}) is None
    assert isinstance(call.error, ValidationError)
    assert call.arguments == {"limit": "many"}
    assert call.settle({"limit": 4}) == {"limit": 4, "target": None, "targets": [], "by_name": {}}
    assert (call.error, call.problem) == (None, None)


def test_changed_arguments_that_nothing_can_judge_are_not_settled() -> None:
    class Floating(BaseModel):
        size: float = 1.0

    call = Arguments({}, Floating)
    assert call.settle({"size": float("inf")}) is None
    assert call.problem == "they hold inf, which is no number of JSON"
    assert call.error is None
    assert call.settle({"size": 2}) == {"size": 2.0}
    assert call.problem is None


def test_a_field_by_two_names_is_no_problem_in_what_a_policy_wrote() -> None:
    """A policy writes the names of fields; another name beside them is the name of an extra field."""
    call = Arguments({}, Inner)
    assert call.settle({"path": "a", "file": "b"}) == {"path": "a", "file": "b"}


def test_only_exactly_the_arguments_of_the_function_are_judged() -> None:
    call = Arguments({"limit": 1})
    assert call.is_judged({"limit": 1, "target": None, "targets": [], "by_name": {}})
    assert not call.is_judged({"limit": True, "target": None, "targets": [], "by_name": {}})
    assert not call.is_judged({"limit": 1})


def test_each_run_of_a_call_gets_arguments_of_its_own() -> None:
    call = Arguments({"targets": [{"file": "a"}]})
    first, second = call.take(), call.take()
    assert first is not second
    first.targets[0].path = "b"
    assert second.targets[0].path == "a"
    assert call.read == 2


def test_a_schema_that_yields_something_else_each_time_is_not_run_again() -> None:
    numbers = count()
    counted = AfterValidator(lambda _: next(numbers))

    class Counting(BaseModel):
        limit: Annotated[int, counted]

    call = Arguments({"limit": 5}, Counting)
    assert call.take().limit == 0
    for _ in range(2):
        with pytest.raises(Unreadable, match=f"^{OTHER_VALUES}$"):
            call.take()


@pytest.mark.parametrize("later", [2.0, math.nan], ids=["another value", "what no policy can read"])
def test_once_a_schema_has_yielded_something_else_no_run_gets_anything(later: float) -> None:
    """Else the run after the next would get values that no policy has judged: they are those of the reading before."""
    values = iter([1.0, later, later])
    turned = AfterValidator(lambda _: next(values))

    class Turning(BaseModel):
        size: Annotated[float, turned]

    call = Arguments({"size": 5}, Turning)
    assert call.take().size == 1.0
    for _ in range(2):
        with pytest.raises(Unreadable, match=OTHER_VALUES):
            call.take()


def test_a_schema_that_fails_at_the_second_reading_raises_what_it_raises() -> None:
    numbers = count()

    def once(value: int) -> int:
        if next(numbers):
            raise ValueError("only once")
        return value

    class Once(BaseModel):
        limit: Annotated[int, AfterValidator(once)]

    call = Arguments({"limit": 5}, Once)
    call.take()
    with pytest.raises(ValidationError, match="only once"):
        call.take()


def test_after_a_change_the_function_gets_what_was_settled_without_reading_again() -> None:
    call = Arguments({})
    call.take()
    call.settle({"limit": 2})
    assert call.read == 2
    assert call.take().limit == 2
    assert call.read == 2
    assert call.take().limit == 2
    assert call.read == 3


# ---------------------------------------------------------------------- a field by two names


class Chosen(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    path: str = Field("here", validation_alias=AliasChoices("file", "name", AliasPath("at", "path")))
    size: int = Field(1, alias="n")
    note: str | None = Field(None, alias="about")


@pytest.mark.parametrize(
    ("model", "raw", "names"),
    [
        (Chosen, {"path": "a", "file": "b"}, "path is there twice, as file and path"),
        (Chosen, {"file": "a", "name": "b"}, "path is there twice, as file and name"),
        (Chosen, {"name": "a", "at": {"path": "b"}}, "path is there twice, as at.path and name"),
        (Chosen, {"size": 1, "n": 1}, "size is there twice, as n and size"),
        (Chosen, {"note": "a", "about": None}, "note is there twice, as about and note"),
        (Schema, {"target": {"path": "a", "file": "b"}}, "path is there twice, as file and path"),
        (Schema, {"targets": [{"file": "a"}, {"path": "a", "file": "b"}]}, "path is there twice, as file and path"),
        (
            Schema,
            {"by_name": {"x": {"file": "a"}, "y": {"path": "a", "file": "b"}}},
            "path is there twice, as file and path",
        ),
    ],
)
def test_a_field_that_is_there_by_two_names_is_a_problem(model: Any, raw: dict[str, Any], names: str) -> None:
    call = Arguments(raw, model)
    assert call.problem == names
    assert call.arguments == raw


@pytest.mark.parametrize(
    ("model", "raw"),
    [
        (Chosen, {"path": "a"}),
        (Chosen, {"file": "a", "n": 2}),
        (Chosen, {"at": {"path": "a"}}),
        (Chosen, {"at": {"other": "a"}, "name": "b"}),
        (Schema, {"target": {"path": "a"}, "targets": [{"file": "a"}, {"path": "a"}], "by_name": {"x": {"file": "a"}}}),
    ],
)
def test_a_field_by_one_of_its_names_is_none(model: Any, raw: dict[str, Any]) -> None:
    assert Arguments(raw, model).problem is None


def test_a_list_that_a_validator_made_shorter_is_not_compared_element_by_element() -> None:
    class Last(BaseModel):
        targets: Annotated[list[Inner], BeforeValidator(lambda value: value[-1:])]

    call = Arguments({"targets": [{"path": "a", "file": "b"}, {"file": "c"}]}, Last)
    assert (call.problem, call.error) == (None, None)
    assert call.arguments == {"targets": [{"path": "c"}]}


def test_a_tuple_is_compared_with_the_list_that_it_was_made_of() -> None:
    class Pair(BaseModel):
        pair: tuple[Inner, Inner]

    assert Arguments({"pair": [{"file": "a"}, {"path": "a", "file": "b"}]}, Pair).problem is not None


def test_a_value_of_another_form_than_it_was_written_in_is_not_compared() -> None:
    class Loose(BaseModel):
        value: Annotated[Any, BeforeValidator(lambda value: [value] if isinstance(value, dict) else {"a": 1})]

    for raw in ({"x": 1}, [1], "text"):
        call = Arguments({"value": raw}, Loose)
        assert (call.problem, call.error) == (None, None)


def test_a_schema_without_pydantics_fields_has_no_names_to_compare() -> None:
    class Untyped(Arguments):
        def validate(self, raw: dict[str, Any], *, by_name: bool) -> tuple[Any, Mapping[str, Any]]:
            return raw, raw

    call = Untyped({"path": 1, "file": 2}, None)
    assert (call.problem, call.error, call.arguments) == (None, None, {"path": 1, "file": 2})


def test_changed_arguments_are_validated_by_the_names_of_fields_alone() -> None:
    assert validate_by_name(Chosen, {"path": "a", "n": 5}) == Chosen(path="a", size=1)
    assert validate_by_name(Inner, {"path": "a", "file": "b"}).path == "a"


def test_a_model_of_pydantic_1_is_validated_in_its_own_way() -> None:
    class Old(pydantic.v1.BaseModel):
        limit: int = 1

    read = validate_by_name(Old, {"limit": "2"})
    assert isinstance(read, Old)
    assert fields_in(read) == {"limit": 2}


# ---------------------------------------------------------------------- plain JSON


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Word(str):
    def __str__(self) -> str:
        return "another text"


class Number(int):
    pass


class Fraction(float):
    pass


@dataclass
class Point:
    x: int
    inner: Any = None


class Pair(NamedTuple):
    first: int
    second: str


class Shown:
    def __str__(self) -> str:
        return "shown as text"


class Described:
    def __repr__(self) -> str:
        return "described"


class Listed(RootModel[list[int]]):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Word("a text"), "a text"),
        (Number(2), 2),
        (Fraction(2.5), 2.5),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (UserDict({"a": 1}), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1,2]": "c"}),
        ({Colour.RED: 1}, {"red": 1}),
        ([1, [2]], [1, [2]]),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (frozenset({1}), [1]),
        (Pair(1, "b"), [1, "b"]),
        (Inner(file="a", more=2), {"path": "a", "more": 2}),
        (Point(1, Point(2)), {"x": 1, "inner": {"x": 2, "inner": None}}),
        (Listed([1, 2]), [1, 2]),
        (SecretStr("hidden"), "hidden"),
        (b"ab\xff", "ab\\xff"),
        (bytearray(b"ab"), "ab"),
        (memoryview(b"ab"), "ab"),
        (date(2026, 11, 28), "2026-11-28"),
        (Decimal("1.50"), "1.50"),
        (Path("a/b"), "a/b"),
        (Shown(), "shown as text"),
        (Described(), "described"),
        (Described, str(Described)),
    ],
)
def test_a_validated_value_is_plain_json(value: Any, expected: Any) -> None:
    converted = plain(value)
    assert converted == expected
    assert type(converted) is type(expected)


def test_numbers_and_texts_lose_the_classes_of_the_program() -> None:
    converted = [plain(value) for value in (Number(2), Fraction(2.5), Word("a"), Level.HIGH)]
    assert [type(value) for value in converted] == [int, float, str, int]


class Opaque:
    pass


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (math.nan, "they hold nan, which is no number of JSON"),
        (-math.inf, "they hold -inf, which is no number of JSON"),
        ("\ud800", "a text in them holds half of a character"),
        ({"a\ud800": 1}, "a text in them holds half of a character"),
        ({1: "a", "1": "b"}, "an object in them has a key twice"),
        (iter([1]), "a list_iterator in them is nothing that a policy can read"),
        (Opaque(), "a Opaque in them is nothing that a policy can read"),
    ],
)
def test_what_json_has_no_form_for_is_unreadable(value: Any, problem: str) -> None:
    with pytest.raises(Unreadable) as raised:
        plain(value)
    assert str(raised.value) == problem
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "deeper",
    [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"x": value},
        lambda value: Point(1, value),
        lambda value: RootModel[Any](value),
        lambda value: {"x": RootModel[Any](value)},
    ],
)
def test_a_value_is_plain_down_to_the_greatest_depth_that_json_may_have(deeper: Any) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH // 2):
        value = deeper(value)
    plain(value)
    for _ in range(MAX_DEPTH):
        value = deeper(value)
    with pytest.raises(Unreadable, match=r"^they are nested too deep$"):
        plain(value)


def test_exactly_the_greatest_depth_is_readable() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    plain(value)
    with pytest.raises(Unreadable):
        plain([value])
    with pytest.raises(Unreadable):
        plain({(): value})


def test_keys_and_enums_count_as_a_step_down() -> None:
    class Deep(Enum):
        ONE = "one"

    assert plain(Deep.ONE, MAX_DEPTH - 1) == "one"
    assert plain({(): 1}, MAX_DEPTH - 1) == {"[]": 1}
    with pytest.raises(Unreadable):
        plain({((),): 1}, MAX_DEPTH - 1)
    for value in (Deep.ONE, {"a": 1}, {(): 1}):
        with pytest.raises(Unreadable):
            plain(value, MAX_DEPTH)


def test_the_fields_of_a_value_are_those_of_a_model_or_a_dataclass() -> None:
    class Old(pydantic.v1.BaseModel):
        limit: int = 1

    assert fields_in(Inner(file="a", more=2)) == {"path": "a", "more": 2}
    assert fields_in(Old()) == {"limit": 1}
    assert fields_in(Point(1)) == {"x": 1, "inner": None}
    assert fields_in(Point) is None
    assert fields_in({"a": 1}) is None
    assert fields_in(Opaque()) is None


def test_the_fields_of_a_model_are_found_without_what_pydantic_warns_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fields_in(Inner(file="a")) == {"path": "a"}


def test_a_root_model_is_its_one_value() -> None:
    assert is_root(Listed([1]))
    assert not is_root(Inner())
    assert not is_root(1)


@pytest.mark.parametrize("other", [1.0, True, "1", [1], None])
def test_values_that_python_takes_for_equal_are_not_the_same_json(other: Any) -> None:
    assert is_same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not is_same({"a": 1}, {"a": other})


def test_what_is_no_json_is_the_same_as_nothing() -> None:
    assert not is_same({"a": math.nan}, {"a": math.nan})
    assert not is_same({"a": object}, {"a": object})
