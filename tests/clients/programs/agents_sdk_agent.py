"""An agent of the OpenAI Agents SDK."""

import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled
from tools import bash, write

set_tracing_disabled(True)
coder = Agent("coder", model="scripted", tools=[function_tool(bash), function_tool(write)])
print(Runner.run_sync(coder, sys.argv[1]).final_output)
