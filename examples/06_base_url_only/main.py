"""A chat in three turns with the plain openai client. It does not know where its model is, or that its calls are recorded.

OPENAI_BASE_URL=... OPENAI_API_KEY=... python main.py
"""

from __future__ import annotations

import os

from openai import OpenAI

QUESTIONS = ("My name is Ada. Remember it.", "What is 2 + 3?", "What is my name?")


def main() -> None:
    client = OpenAI()
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        reply = client.chat.completions.create(model=os.environ.get("OPENAI_MODEL", "any"), messages=messages)
        answer = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})
        print(f"user:  {question}\nmodel: {answer}")


if __name__ == "__main__":
    main()
