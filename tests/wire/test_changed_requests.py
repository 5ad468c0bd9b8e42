"""A text that a policy changed is put into its own place of a request, in each API, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.wire.apis import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api, Exchange

PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo"}
RESULTS = [
    {"type": "tool_result", "tool_use_id": name, "content": [{"type": "text", "text": f"result of {name}"}]}
    for name in ("a", "b")
]
CALLS = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("a", "b")]
BODIES: list[tuple[Api, dict[str, Any]]] = [
    (CHAT, {"messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": "t", "tool_calls": CALLS},
        *({"role": "tool", "tool_call_id": call["id"], "content": f"result of {call['id']}"} for call in CALLS),
    ]}),
    (MESSAGES, {"max_tokens": 9, "system": "s", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "image", "source": PNG}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "t"},
            *({"type": "tool_use", "id": name, "name": "f", "input": {}} for name in ("a", "b")),
        ]},
        {"role": "user", "content": [*RESULTS, {"type": "text", "text": "and now?"}]},
    ]}),
    (RESPONSES, {"instructions": "s", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}, {"type": "input_image", "image_url": "x"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        *({"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in ("a", "b")),
        *({"type": "function_call_output", "call_id": name, "output": f"result of {name}"} for name in ("a", "b")),
    ]}),
    (RESPONSES, {"input": "u"}),
    (COMPLETIONS, {"prompt": ["one", "two"], "suffix": "end"}),
]  # fmt: skip


def text_of(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("api", "body"), BODIES)
def test_a_changed_text_is_put_into_its_place(api: Api, body: dict[str, Any], native: bool) -> None:
    if api is COMPLETIONS and not native:
        pytest.skip("a translated completion has one prompt")
    exchange = Exchange.read(api, {"model": "m", **body}, native=native)
    before = list(exchange.readable.messages)
    for index in range(len(before)):
        after = list(exchange.changed(exchange.body, {index: "changed"}).readable.messages)
        assert [text_of(message) for message in after] == [
            "changed" if number == index else text_of(message) for number, message in enumerate(before)
        ]
        without = [{**message, "content": None} for message in after]
        assert without == [{**message, "content": None} for message in before]


def test_a_conversation_that_is_kept_here_is_changed_too() -> None:
    before = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "so"}]
    exchange = Exchange.read(RESPONSES, {"model": "m", "input": "now"}, native=False, before=before)
    changed = exchange.changed(exchange.body, {0: "changed"})
    assert [text_of(message) for message in changed.readable.messages] == ["changed", "so", "now"]
    assert changed.body == exchange.body
