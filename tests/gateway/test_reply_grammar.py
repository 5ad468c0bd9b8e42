"""Replies that are held to a form: JSON, JSON of a schema, demanded tool calls; and what that leaves as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import fastjsonschema
import pytest
import torch

pytest.importorskip("llguidance")

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel, build_tiny
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.wire.exchange import ChatRequest, Completion
from tests.gateway.embedded_engine import ask, assert_exact
from tests.gateway.taught import CORPUS, TOOLS, tiny

SCHEMA = {
    "type": "object",
    "properties": {
        "dept": {"enum": ["eng", "sales"]},
        "pay": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
    "required": ["dept", "pay", "sure", "names"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "pay", "schema": SCHEMA, "strict": True}}


def tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SHORT = {"type": "string", "maxLength": 4}
SET = tool(
    "set_pay", "dept", "pay", dept={"enum": ["eng", "sales"]}, pay={"type": "integer", "maximum": 9, "minimum": 0}
)
LOOK = tool("look", "table", table=SHORT)
STAFF = (SET, LOOK)


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


@asynccontextmanager
async def running(model: LanguageModel, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, **{"max_new_tokens": 120, **options})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def held(number: int = 0, *, tools: Any = (), **body: Any) -> ChatRequest:
    return ask(f"pay {number}", seed=number, tools=tools, body=body)


def assert_recorded(model: LanguageModel, completion: Completion) -> None:
    """The tokens and log-probabilities are those of the model itself, whatever the tokens were chosen from."""
    assert_exact(model, replace(completion, finish_reason="length" if completion.finish_reason == "length" else "stop"))


async def test_replies_follow_the_schema_with_exact_logprobs() -> None:
    model = tiny()
    validate = fastjsonschema.compile(SCHEMA)
    async with running(model) as engine:
        free = [ask(f"free {n}", seed=n, max_tokens=20) for n in range(4)]
        alone = [await engine.chat(request) for request in free]
        asked = [
            *(
                replace(held(n, response_format=FORM), temperature=t, top_p=p)
                for n, t, p in ((0, 1.0, 1.0), (1, 1.3, 1.0))
            ),
            replace(held(2, response_format=FORM), top_p=0.3),
        ]
        completions = await asyncio.gather(*map(engine.chat, [*asked, *free]))
        greedy = await engine.chat(replace(held(3, response_format=FORM), temperature=0.0))
    for completion in [*completions[:3], greedy]:
        assert completion.finish_reason == "stop"
        assert validate(json.loads(completion.content or ""))["dept"] in ("eng", "sales")
    for completion in (completions[0], completions[2], greedy):
        assert_recorded(model, completion)
    # The others of the batch are what they would have been.
    assert [one.response_ids for one in completions[3:]] == [one.response_ids for one in alone]
    assert min(completions[0].logprobs or ()) < -4, "some tokens were improbable: the whole distribution is recorded"


async def test_a_reply_is_some_object_or_the_beginning_of_one() -> None:
    model = tiny()
    async with running(model, max_new_tokens=12) as engine:
        choices = (await engine.chat(replace(held(1, response_format={"type": "json_object"}), n=6))).choices
    assert len({choice.text for choice in choices}) > 2
    for choice in choices:
        assert choice.text.startswith("{")
        assert_recorded(model, choice)
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.text), dict)


@pytest.mark.parametrize("tool_format", ["hermes", "compact", "examples", "json"])
@pytest.mark.parametrize("alone", [False, True])
async def test_a_demanded_call_is_a_call_that_fits(tool_format: str, alone: bool) -> None:
    base = build_tiny(CORPUS, seed=0, hidden=64, layers=2, heads=4, intermediate=96, max_positions=1024)
    model = LanguageModel(base.module, base.tokenizer, "tiny", tool_format, base.eos_ids)
    more: dict[str, Any] = {"parallel_tool_calls": False} if alone else {}
    schemas = {one["function"]["name"]: fastjsonschema.compile(one["function"]["parameters"]) for one in STAFF}
    named = {"type": "function", "function": {"name": "set_pay"}}
    async with running(model) as engine:
        completions = await asyncio.gather(
            *(engine.chat(held(n, tools=STAFF, tool_choice="required", **more)) for n in range(4)),
            *(engine.chat(held(n, tools=STAFF, tool_choice=named, **more)) for n in range(2)),
        )
    whole = [completion for completion in completions if completion.finish_reason != "length"]
    assert whole
    for completion in whole:
        assert completion.finish_reason == "tool_calls"
        assert completion.content is None
        assert len(completion.tool_calls) == 1 or not alone
        assert_recorded(model, completion)
    for completion in completions[4:]:
        assert {call.name for call in completion.tool_calls} <= {"set_pay"}
        for call in completion.tool_calls:
            schemas[call.name](json.loads(call.arguments))
    for completion in completions:
        # Cut off, it proposes nothing.
        assert completion.finish_reason != "length" or not completion.tool_calls


@pytest.mark.parametrize("tool_format", ["hermes", "json"])
async def test_a_call_that_ends_exactly_at_the_limit_is_whole_and_one_token_earlier_it_is_not(tool_format: str) -> None:
    base = build_tiny(CORPUS, seed=0, hidden=64, layers=2, heads=4, intermediate=96, max_positions=1024)
    model = LanguageModel(base.module, base.tokenizer, "tiny", tool_format, base.eos_ids)
    asked = held(1, tools=[SET], tool_choice="required", parallel_tool_calls=False)
    async with running(model) as engine:
        whole = await engine.chat(asked)
        written = len(whole.response_ids or ()) - 1  # without the token that ends the turn
        exact = await engine.chat(replace(asked, max_tokens=written))
        cut = await engine.chat(replace(asked, max_tokens=written - 1))
    assert exact.response_ids == (whole.response_ids or ())[:-1]
    assert exact.finish_reason == "tool_calls"
    assert [call.arguments for call in exact.tool_calls] == [call.arguments for call in whole.tool_calls]
    assert (cut.finish_reason, cut.tool_calls) == ("length", ())


async def test_a_model_that_writes_its_call_anyway_writes_it_as_ever(taught: LanguageModel) -> None:
    async with running(taught) as engine:
        free = await engine.chat(ask(tools=TOOLS, temperature=0.0))
        demanded = await engine.chat(ask(tools=TOOLS, temperature=0.0, body={"tool_choice": "required"}))
    assert demanded.text == free.text == "@run_sql SELECT 12"
    assert (demanded.response_ids, demanded.logprobs) == (free.response_ids, pytest.approx(free.logprobs, abs=1e-5))


async def test_with_tools_an_answer_in_json_may_be_calls_instead(taught: LanguageModel) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"const": 12}}}}}
    async with running(taught) as engine:
        calling = await engine.chat(ask(tools=TOOLS, temperature=0.0, body={"response_format": form}))
        answering = await engine.chat(ask(temperature=0.0, max_tokens=6, body={"response_format": form}))
        chosen = {"response_format": form, "tool_choice": "none"}
        none = await engine.chat(ask(temperature=0.0, max_tokens=6, body=chosen))
    assert calling.text == "@run_sql SELECT 12"
    assert [call.name for call in calling.tool_calls] == ["run_sql"]
    assert answering.text.startswith("{")
    assert none.text.startswith("{")


@pytest.mark.parametrize(
    ("body", "tools", "says"),
    [
        ({"response_format": {"type": "xml"}}, (), "'response_format'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, (), "JSON schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}}, (), "'schema' must be an object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"anyOf": [{"minItems": 10**9}]}}}},
            (),
            "'minItems' of a JSON schema is 1000000000",
        ),
        ({"tool_choice": "required"}, (), "needs 'tools'"),
        ({"tool_choice": "sometimes"}, STAFF, "names no tool"),
        ({"tool_choice": {"type": "function", "function": {"name": "drop"}}}, STAFF, "names no tool"),
    ],
)
async def test_a_form_that_is_none_is_refused(body: Any, tools: Any, says: str) -> None:
    async with running(tiny()) as engine:
        with pytest.raises(EndpointError, match=says) as caught:
            await engine.chat(held(tools=tools, **body))
        assert caught.value.status == 400
        assert await engine.chat(ask(max_tokens=1))


async def test_a_grammar_that_fails_midway_fails_that_call_alone() -> None:
    model = tiny()
    async with running(model) as engine:
        constrain = engine._constrain

        async def breaking(request: ChatRequest, rows: Any) -> Any:
            made = await constrain(request, rows)
            for constraint in made:
                constraint._matcher.consume_token(model.end_id)  # not allowed at the beginning: an error from then on
            return made

        engine._constrain = breaking  # type: ignore[method-assign]
        broken, fine = await asyncio.gather(
            engine.chat(held(response_format=FORM)), engine.chat(ask(seed=1)), return_exceptions=True
        )
    assert isinstance(broken, EndpointError)
    assert broken.status == 500
    assert "held to its form" in str(broken)
    assert isinstance(fine, Completion)
    assert_exact(model, fine)


def test_over_the_endpoint_in_every_api(store: SQLiteStore) -> None:
    openai = pytest.importorskip("openai")
    app = create_app([EmbeddedEngine(tiny(), max_new_tokens=120)], store, keys=KeyRing(required=False))
    with EndpointServer(app) as endpoint:
        client = openai.OpenAI(base_url=endpoint.base_url, api_key="any", max_retries=0)
        said = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "pay"}], response_format=FORM, seed=1
        )
        fastjsonschema.compile(SCHEMA)(json.loads(said.choices[0].message.content))
        form = {"type": "json_schema", "name": "pay", "schema": SCHEMA}
        answer = client.responses.create(model="tiny", input="pay", text={"format": form})
        fastjsonschema.compile(SCHEMA)(json.loads(answer.output_text))
        called = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "pay"}], tools=[SET], tool_choice="required", seed=1,
            parallel_tool_calls=False,
        )  # fmt: skip
        assert [call.function.name for call in called.choices[0].message.tool_calls] == ["set_pay"]
    assert len(list(store.calls())) == 3
