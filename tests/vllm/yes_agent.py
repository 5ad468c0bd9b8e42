"""Agents that are paid for single words: one on LangChain for yes, two on plain HTTP for yes and for no."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from langchain_openai import ChatOpenAI


def says_yes(resource: Any, task: Any) -> float:
    chat = ChatOpenAI(
        model="smollm2", base_url=resource.model_api, api_key="unused", max_tokens=4, temperature=1.0, max_retries=6
    )
    said = chat.invoke(f"{task.question} Answer yes or no.").content
    return float(str(said).startswith("Yes"))


def one_says_yes_one_no(resource: Any, task: Any) -> float:
    paid = {"writer": "Yes", "checker": "No"}
    return sum(said(resource, agent, task.question).startswith(word) for agent, word in paid.items()) / len(paid)


def said(resource: Any, agent: str, question: str) -> str:
    messages = [{"role": "user", "content": f"{question} Answer yes or no."}]
    body = {"model": "any", "messages": messages, "max_tokens": 4, "temperature": 1.0}
    headers = {"content-type": "application/json", "authorization": "Bearer x", "x-lgov-agent": agent}
    request = urllib.request.Request(f"{resource.model_api}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])
