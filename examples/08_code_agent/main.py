"""An ordinary LangChain agent that writes Python programs. It contains nothing about rewards, or where its programs run.

    python main.py "What is the sum of the numbers from 1 to 100?"

prints a program. It talks to the model that OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL name.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

PROMPT = "You answer questions by programs. Reply with one Python program that prints the answer and nothing else."


def write_program(model_api: str | None, question: str) -> str:
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"),
        base_url=model_api,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),  # type: ignore[arg-type]
        max_retries=0,
    )
    agent: Any = create_agent(model, [], name="programmer", system_prompt=PROMPT)
    reply = agent.invoke({"messages": [("user", question)]})["messages"][-1].text
    fenced = re.search(r"```(?:python)?\n(.*?)```", reply, re.S)
    return fenced[1] if fenced else reply


if __name__ == "__main__":
    print(write_program(os.environ.get("OPENAI_BASE_URL"), " ".join(sys.argv[1:])))
