"""Whatever a tool's schema is and a model writes: what the tool's function gets is what policies judged, or nothing runs.

Schemas and arguments are composed: fields of several types, names of every kind that pydantic has, defaults, conversions,
nested models, validators that rewrite. The calls pass each framework's own loop, with a scripted model.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from agents import Agent, Runner, function_tool
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
)

from lgov_core.audit import AuditLog
from lgov_core.instrumentation.tool_arguments import fields_in, is_same, plain
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen, asks, says
from tests.contract import agents_sdk_driver, autogen_driver, langchain_driver, openai_driver
from tests.contract.adapter_driver import QUESTION, Program
from tests.openai_agents.cells_agents import make_governor

pytestmark = pytest.mark.filterwarnings("ignore")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    model_config = ConfigDict(extra="allow")
    path: str = Field("here", validation_alias=AliasChoices("file", "path"))
    size: int = 1


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(9, alias="n")


class Dog(BaseModel):
    kind: Literal["dog"]
    bark: str = "wuff"


def spelled(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def doubled(value: Any) -> Any:
    return value + value if isinstance(value, str) else value


#: Each type with JSON values that it takes, among them some that it converts.
TYPES: list[tuple[Any, list[Any]]] = [
    (str, ["a", " B ", ""]),
    (int, [1, "2", 3.0, True]),
    (float, [1, "2.5", "nan"]),
    (bool, [True, "yes", 0]),
    (list[int], [[1, "2"], []]),
    (set[str], [["b", "a", "b"]]),
    (date, ["2026-11-28"]),
    (Colour, ["red"]),
    (dict[str, Any], [{"x": 1}, {}]),
    (Any, [[1], {"y": [2]}, None]),
    (Inner, [{"file": "a"}, {"path": "a", "size": "2", "more": 1}, {"file": "a", "path": "b"}]),
    (list[Inner], [[{"file": "a"}, {"path": "b"}]]),
    (Annotated[Cat | Dog, Field(discriminator="kind")], [{"kind": "cat", "n": 3}, {"kind": "dog"}]),
    (Annotated[Any, BeforeValidator(spelled)], [" A "]),
    (Annotated[str, AfterValidator(doubled)], ["a", "ab"]),
]

NAMES = ("path", "to", "limit")
FIELDS = st.tuples(
    st.integers(0, len(TYPES) - 1),
    st.sampled_from(["", "alias", "validation_alias", "choices", "path"]),
    st.sampled_from(["required", "default", "factory"]),
)
SCHEMAS = st.fixed_dictionaries({
    "fields": st.dictionaries(st.sampled_from(NAMES), FIELDS, min_size=1),
    "by_name": st.booleans(),
    "extra": st.sampled_from(["ignore", "allow", "forbid"]),
})  # fmt: skip
#: For each field by which of its names it is given (by both, by none), and the number of the value.
WRITTEN = st.fixed_dictionaries({
    "names": st.lists(st.sampled_from(["name", "alias", "alias", "both", "none"]), min_size=3, max_size=3),
    "values": st.lists(st.integers(0, 3), min_size=3, max_size=3),
    "more": st.booleans(),
    "twice": st.sampled_from([False, False, False, True]),
    "rewrites": st.booleans(),
})  # fmt: skip


def field_of(name: str, described: tuple[int, str, str]) -> tuple[Any, Any]:
    number, names, default = described
    kind, values = TYPES[number]
    aliases: dict[str, Any] = {
        "": {},
        "alias": {"alias": f"{name}_x"},
        "validation_alias": {"validation_alias": f"{name}_x"},
        "choices": {"validation_alias": AliasChoices(f"{name}_x", f"{name}_y")},
        "path": {"validation_alias": AliasPath(f"{name}_x", "at")},
    }[names]
    if default == "required":
        return kind, Field(**aliases)
    how: dict[str, Any] = {"default": values[0]} if default == "default" else {"default_factory": lambda: values[0]}
    return kind, Field(**aliases, **how, validate_default=True)


def written(schema: Any, choice: Any) -> str:
    """The text that the model writes for the schema."""
    pairs: list[str] = []
    for (name, (number, names, _)), by, at in zip(
        schema["fields"].items(), choice["names"], choice["values"], strict=False
    ):
        values = TYPES[number][1]
        value, other = values[at % len(values)], values[(at + 1) % len(values)]
        alias = f"{name}_x" if names else name
        if by in ("alias", "both"):
            pairs.append(f"{json.dumps(alias)}: {json.dumps({'at': value} if names == 'path' else value)}")
        if by in ("name", "both"):
            pairs.append(f"{json.dumps(name)}: {json.dumps(other)}")
    if choice["more"]:
        pairs.append('"unknown": "x"')
    if choice["twice"] and pairs:
        pairs.append(pairs[0])
    return "{" + ", ".join(pairs) + "}"


class Judge(BoundedPolicy):
    """Allows every call, and notes what it judged last. It may rewrite texts."""

    name = "judge"

    def __init__(self, *, rewrites: bool) -> None:
        self.rewrites = rewrites
        self.judged: Mapping[str, Any] = {}

    def judge(self, action: Action) -> Decision | None:
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        self.judged = action.arguments
        new = {key: "new" if isinstance(value, str) else value for key, value in action.arguments.items()}
        if self.rewrites and new != action.arguments:
            return self.transform("rewrite", "rewritten", arguments=new)
        return self.allow("fine")


class Model:
    """Asks for the tool ``act`` with the arguments text, then says that it is done."""

    def __init__(self) -> None:
        self.text = self.read = ""
        self.server = ScriptedModelServer(self.reply)

    def reply(self, body: Any) -> ScriptedReply:
        last = (body.get("messages") or body.get("input"))[-1]
        is_result = last.get("role") == "tool" or last.get("type") == "function_call_output"
        self.read = json.dumps(last) if is_result else ""
        return says("done") if is_result else asks(("c1", "act", self.text))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model()
    with model.server:
        yield model


Ran = list[Any]


def langchain_agent(schema: type[BaseModel], ran: Ran, program: Program) -> None:
    def act(**arguments: Any) -> str:
        ran.append(plain(arguments))
        return "done"

    tool = StructuredTool.from_function(act, name="act", description="Acts.", args_schema=schema)
    graph = langchain_driver.LangChain().agent(program, [tool])
    question: Any = {"messages": [("user", QUESTION)]}
    if program.streams:
        list(graph.stream(question, stream_mode="messages"))
    elif program.mode == "sync":
        graph.invoke(question)
    else:
        asyncio.run(graph.ainvoke(question))


def autogen_agent(schema: type[BaseModel], ran: Ran, program: Program) -> None:
    class Act(BaseTool[Any, Any]):
        async def run(self, args: Any, cancellation_token: CancellationToken) -> str:
            ran.append(plain(fields_in(args)))
            return "done"

    way = "explicit" if program.explicit else "instrumented"
    parts = autogen_driver.Way(way, program.governor, program.base_url)
    agent = parts.agent("clerk", [Act(schema, str, "act", "Acts.")], stream=program.streams)
    asyncio.run(autogen_driver._run(agent, program))


def sdk_agent(schema: type[BaseModel], ran: Ran, program: Program) -> None:
    def act(**arguments: Any) -> str:
        ran.append(plain(arguments))
        return "done"

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[info.annotation, info])
        for name, info in schema.model_fields.items()
    ]
    act.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    act.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    tool = function_tool(act, strict_mode=False)
    model: Any = agents_sdk_driver.MODELS["responses"](program)
    agent = Agent(name="clerk", model=model, tools=[tool])
    runner: Any = agents_sdk_driver.LgovRunner(program.governor) if program.explicit else Runner
    agents_sdk_driver.run_with(runner, program.mode, agent, QUESTION)


def openai_program(schema: type[BaseModel], ran: Ran, program: Program) -> None:
    """Parses the arguments itself, so policies judge the text."""

    def act(**arguments: Any) -> str:
        ran.append(plain(arguments))
        return "done"

    openai_driver.OpenAI("chat").run(replace(program, tools=[act]))


#: Each framework's agent, with its driver.
AGENTS: dict[str, tuple[Callable[..., None], Any]] = {
    "langchain": (langchain_agent, langchain_driver.LangChain()),
    "autogen": (autogen_agent, autogen_driver.AutoGen()),
    "openai_agents": (sdk_agent, agents_sdk_driver.AgentsSDK("responses")),
    "openai": (openai_program, openai_driver.OpenAI("chat")),
}
SAME = {"fields": {"path": (0, "choices", "required")}, "by_name": True, "extra": "allow"}
DOUBLING = {"fields": {"path": (14, "", "required")}, "by_name": False, "extra": "ignore"}
BOTH = {"names": ["both"] * 3, "values": [0] * 3, "more": False, "twice": False, "rewrites": False}


@pytest.mark.parametrize("way", ["explicit", "instrumented"])
@pytest.mark.parametrize("name", AGENTS)
@settings(
    max_examples=16,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(schema=SCHEMAS, choice=WRITTEN)
@example(schema=SAME, choice=BOTH)
@example(schema=SAME, choice={**BOTH, "names": ["alias"] * 3})
@example(schema=SAME, choice={**BOTH, "names": ["alias"] * 3, "twice": True})
@example(schema=SAME, choice={**BOTH, "names": ["alias"] * 3, "rewrites": True})
@example(schema=SAME, choice={**BOTH, "names": ["none"] * 3, "more": True, "rewrites": True})
@example(schema=DOUBLING, choice={**BOTH, "names": ["name"] * 3, "rewrites": True})
def test_what_a_function_gets_was_judged(name: str, way: str, model: Model, schema: Any, choice: Any) -> None:
    config = ConfigDict(populate_by_name=schema["by_name"], extra=schema["extra"])
    fields: Any = {field: field_of(field, described) for field, described in schema["fields"].items()}
    arguments = create_model("Arguments", __config__=config, **fields)
    _, ran, judge = call(name, way, model, arguments, written(schema, choice), rewrites=choice["rewrites"])
    assert len(ran) <= 1
    assert not ran or is_same(ran[0], judge.judged), (ran, judge.judged, model.text)
    twice = len(json.loads(model.text, object_pairs_hook=list)) != len(json.loads(model.text))
    assert not (ran and twice), "a text with a key twice"


class Named(BaseModel):
    """A path under two names, which a validator writes out."""

    model_config = ConfigDict(populate_by_name=True)
    path: str = Field(alias="file")


seen_by_validator: list[str] = []


def numbered(value: str) -> str:
    seen_by_validator.append(value)
    return f"{value} {len(seen_by_validator)}"


class Numbered(BaseModel):
    """A validator that yields something else each time."""

    path: Annotated[str, AfterValidator(numbered)] = Field(alias="file")


VALIDATING = [name for name in AGENTS if name != "openai"]


@pytest.mark.parametrize("way", ["explicit", "instrumented"])
@pytest.mark.parametrize("name", VALIDATING)
def test_a_tools_validators_run_once(name: str, way: str, model: Model) -> None:
    seen_by_validator.clear()
    outcome, ran, judge = call(name, way, model, Numbered, '{"file": "a"}')
    assert (outcome.status, ran, judge.judged) == ("ok", [{"path": "a 1"}], {"path": "a 1"})
    assert seen_by_validator == ["a"]


UNREADABLE = {
    "a key twice": '{"file": "a", "file": "b"}',
    "a key twice, inside": '{"file": "a", "more": [{"x": 1, "x": 2}]}',
    "no number": '{"file": "a", "more": NaN}',
    "no end": '{"file": "a", "more": -1e999}',
    "half a character": '{"file": "\\ud83d"}',
    "half a character as a key": '{"file": "a", "\\ude00": 1}',
    "two names": '{"file": "a", "path": "b"}',
}


@pytest.mark.parametrize("mode", ["async", "streaming"])
@pytest.mark.parametrize("text", UNREADABLE)
@pytest.mark.parametrize("name", AGENTS)
def test_what_programs_read_differently_is_denied_and_recorded(
    name: str, text: str, mode: str, model: Model, tmp_path: Path
) -> None:
    if name == "openai" and text == "two names":
        pytest.skip("who parses the arguments itself says which names it takes")
    if name == "openai_agents" and text.startswith("half"):
        with pytest.raises(UnicodeEncodeError):  # of the SDK: no such call gets as far as a tool
            call(name, "instrumented", model, Named, UNREADABLE[text], mode)
        return
    for way in ("explicit", "instrumented"):
        with AuditLog(tmp_path / f"{way}.db", signer=None) as log:
            outcome, ran, judge = call(name, way, model, Named, UNREADABLE[text], mode, audit=log)
            entries = [entry for entry in log.entries() if entry.name == "act"]
        assert (ran, judge.judged) == ([], {})
        assert (outcome.status, outcome.error_type) == ("invalid_args", "InvalidToolCall")
        decided, ended = entries
        assert (decided.kind, decided.effect, decided.rule) == ("decision", "deny", "unreadable-arguments")
        assert (ended.kind, ended.status, ended.refers_to) == ("outcome", "invalid_args", decided.entry_id)
        assert not decided.body.get("parts")
        assert not outcome.decision.fault, "the model wrote them"
        assert "the arguments of act cannot be judged" in model.read


def call(
    name: str,
    way: str,
    model: Model,
    schema: type[BaseModel],
    text: str,
    mode: str = "async",
    *,
    rewrites: bool = False,
    audit: AuditLog | None = None,
) -> tuple[Any, Ran, Judge]:
    """The outcome of one call, what the function got, and the policy that judged it."""
    ask, driver = AGENTS[name]
    judge, ran, seen = Judge(rewrites=rewrites), Ran(), Seen()
    governor, model.text = make_governor(judge, seen), text
    governor.audit = audit
    with driver.governed(way, governor):
        ask(schema, ran, Program(model.server.base_url, governor, way, mode))
    governor.close()
    (outcome,) = seen.outcomes
    return outcome, ran, judge
