"""A loop on OpenAI's client."""

import json
import sys

import openai
from tools import TOOLS, run

client = openai.OpenAI(max_retries=0)
messages = [{"role": "user", "content": sys.argv[1]}]
functions = [{"type": "function", "function": tool} for tool in TOOLS]
while True:
    message = client.chat.completions.create(model="scripted", messages=messages, tools=functions).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = run(call.function.name, json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
