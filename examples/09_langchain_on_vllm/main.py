"""Sorts reviews: a LangChain agent that is told to answer in one word."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

OTHER = {"good": "bad", "bad": "good"}


def agent(resource, task):
    model = ChatOpenAI(base_url=resource.model_api, api_key="none", model="any")
    sorter = create_agent(model, [], system_prompt="Is the review good or bad? Answer with one word, good or bad.")
    answer = str(sorter.invoke({"messages": [("user", task.review)]})["messages"][-1].content).lower()
    return float(task.label in answer and OTHER[task.label] not in answer)
