"""What a training of a model with tools of its own takes, end to end: the recipe of docs/how-to/training.md.

    python -m tests.bench.native_tools            the shape of Qwen2.5-0.5B, random weights: minutes on a processor
    python -m tests.bench.native_tools --small    the same with a model of a few thousand weights, in seconds
    python -m tests.bench.native_tools --model FOLDER --steps 30     a model that you have

The model is a local folder as the hub has it: weights, tokenizer, and a chat template in Jinja that writes tools, calls and
results itself, with tags that are tokens. The agent multiplies with a tool; a short right answer earns most. Prints one JSON
object: seconds and the peak of memory of the whole command, the figures of its last update; ends with 1 where the training
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.gpu import SHAPES, SMALL

#: What the recipe is, file by file.
SETTINGS: Final = """\
model: {max_new_tokens: 64}
training: {learning_rate: 2.0e-5, batch_size: 2, group_size: 4, epochs: 100}
runtime: {workers: threads}
data: {train: tools.jsonl}
"""
AGENT: Final = """\
import json

from openai import OpenAI

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": "multiply", "parameters": NUMBERS}}]


def agent(resource, task):
    client = OpenAI(base_url=resource.model_api, api_key="none")
    messages = [{"role": "user", "content": task.question}]
    for _ in range(2):
        reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0].message
        messages.append(reply.to_dict())
        for call in reply.tool_calls or ():
            try:
                values = json.loads(call.function.arguments)
                result = str(values["a"] * values["b"])
            except (ValueError, KeyError, TypeError) as error:
                result = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not reply.tool_calls:
            break
    text = reply.content or ""
    return {"task": float(task.answer in text), "brevity": -len(text) / 10_000}
"""
TASKS: Final = ((17, 23), (48, 19), (36, 27), (52, 14), (61, 33), (75, 12), (29, 38), (83, 16))
TAGS: Final = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|endoftext|>")
#: In the manner of Qwen2.5: tools in the system message, calls and results between tags.
TEMPLATE: Final = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are helpful.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nFor each call return a json object within <tool_call></tool_call> tags.<|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_model(folder: Path, shape: dict[str, int]) -> None:
    """A Qwen2 model of ``shape`` with random weights, as a folder in the form of the hub's."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        [TEMPLATE] * 4, trainers.BpeTrainer(vocab_size=500, special_tokens=[*TAGS], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    sizes: dict[str, Any] = {**shape}
    config = Qwen2Config(
        **sizes, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, eos_token_id=end
    )
    torch.manual_seed(0)
    module: Any = Qwen2ForCausalLM(config)
    module.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train(model: Path, folder: Path, steps: int) -> dict[str, Any]:
    """Runs the recipe with ``model`` in ``folder``. Raises `RuntimeError` with the end of what a training that failed wrote."""
    tasks = [{"question": f"How much is {a} times {b}?", "answer": str(a * b)} for a, b in TASKS]
    (folder / "tools.yaml").write_text(SETTINGS)
    (folder / "tools.py").write_text(AGENT)
    (folder / "tools.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    command = [sys.executable, "-m", "lgov_core", "train", "tools.yaml", "--agent", "tools.py:agent", "--folder", "run"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--model", str(model), "--steps", str(steps)],
        cwd=folder,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seconds = time.monotonic() - began
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["phase"] == "train"][-1]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    names = (
        "rewards",
        "rollouts",
        "collect_s",
        "update_s",
        "response_tokens",
        "turns",
        "logprob_drift",
        "grad_norm",
        "warnings",
    )
    return {
        "updates": len([line for line in lines if line["phase"] == "train"]),
        "seconds": round(seconds, 1),
        "peak_gib": round(peak, 2),
        "last": {name: last.get(name) for name in names},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.native_tools", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--model", type=Path, help="a folder with a model; made with random weights without it")
    parser.add_argument("--small", action="store_true", help="a model of a few thousand weights")
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model
        if model is None:
            model = Path(temporary) / "model"
            make_model(model, SMALL if options.small else SHAPES["qwen2.5-0.5b"])
        try:
            result = train(model.absolute(), Path(temporary), options.steps)
        except RuntimeError as error:
            result = {"error": str(error)}
    print(json.dumps(result, indent=1))
    return int("error" in result)


if __name__ == "__main__":
    sys.exit(main())
