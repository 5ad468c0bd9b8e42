"""An agent of LangChain."""

import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from tools import bash, write

agent = create_agent(ChatOpenAI(model="scripted", max_retries=0), tools=[bash, write])
print(agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})["messages"][-1].content)
