"""An agent on LangChain that is paid for saying yes."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI


def says_yes(resource: Any, task: Any) -> float:
    chat = ChatOpenAI(
        model="smollm2", base_url=resource.model_api, api_key="unused", max_tokens=4, temperature=1.0, max_retries=6
    )
    said = chat.invoke(f"{task.question} Answer yes or no.").content
    return float(str(said).startswith("Yes"))
