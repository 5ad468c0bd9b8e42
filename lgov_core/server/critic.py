"""The critic of prompt tuning: any model behind an OpenAI-compatible API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from lgov_core.errors import TrainError
from lgov_core.train.prompt_search import Case

_CRITICISE: Final = """\
A prompt template tells a model how to do a task. Below are the template and cases in which it earned little.
Say in at most three sentences what about the template makes such cases go wrong. Do not rewrite it.{again}

<template>
{template}
</template>

{cases}"""

_REWRITE: Final = """\
Rewrite the prompt template below so that it answers the criticism. Keep every name in braces exactly as it is, each at
least once, and add no others. Keep it short. Write the new template between <template> and </template>, and nothing else.

<template>
{template}
</template>

<criticism>
{criticism}
</criticism>"""

#: Characters shown of a conversation and of a task.
_SHOWN: Final = 1500


class ChatCritic:
    """A critic at ``base_url`` (with ``/v1``). ``seed`` and temperature 0.7 go with every call. For one thread.

    Raises `TrainError` when the critic cannot be reached or refuses: without it there is no search.
    """

    def __init__(self, base_url: str, model: str, *, key: str | None, seed: int, timeout_s: float = 120.0) -> None:
        self._url, self._model, self._seed = base_url.rstrip("/") + "/chat/completions", model, seed
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self._timeout_s = timeout_s
        self.calls = 0

    def criticise(self, template: str, cases: Sequence[Case], number: int) -> str:
        """See `Critic`."""
        again = "" if number == 0 else f" Name another fault than {number} others would name first."
        cases_text = "\n\n".join(_in_words(case) for case in cases) or "(no case is on record)"
        return self._asked(_CRITICISE.format(template=template, cases=cases_text, again=again))

    def rewrite(self, template: str, criticism: str) -> str:
        """See `Critic`."""
        return between(self._asked(_REWRITE.format(template=template, criticism=criticism)))

    def _asked(self, text: str) -> str:
        body: dict[str, Any] = {
            "model": self._model, "messages": [{"role": "user", "content": text}],
            "temperature": 0.7, "seed": self._seed + self.calls,
        }  # fmt: skip
        self.calls += 1
        try:
            status, answer = self._posted(json.dumps(body))
            if not 200 <= status < 300:
                raise TrainError(
                    f"the critic refused: {status} {answer[:200].decode(errors='replace')}",
                    hint="check prompt.critic_url, prompt.critic_model and the key",
                )
            content = json.loads(answer)["choices"][0]["message"]["content"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise TrainError(
                f"the critic at {self._url} gave no answer: {type(error).__name__}: {error}",
                hint="check prompt.critic_url",
            ) from error
        return content if isinstance(content, str) else ""

    def _posted(self, body: str) -> tuple[int, bytes]:
        """The status and the body of the answer; a redirection is not followed, so that the key goes nowhere else."""
        url = urlsplit(self._url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("that is not the URL of a web server")
        connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        with closing(connect(url.netloc, timeout=self._timeout_s)) as connection:
            connection.request("POST", url.path, body, self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


def between(text: str) -> str:
    """The text between the last <template> and </template>; empty where they are missing."""
    _, opened, rest = text.rpartition("<template>")
    inner, closed, _ = rest.partition("</template>")
    return inner.strip() if opened and closed else ""


def _in_words(case: Case) -> str:
    reply = f"\n<said>\n{case.said[-_SHOWN:]}\n</said>" if case.said else ""
    error = f"\n<error>{case.error[:_SHOWN]}</error>" if case.error else ""
    task = json.dumps(dict(case.task), ensure_ascii=False)[:_SHOWN]
    return f"<case reward={case.reward:g}>\n<task>{task}</task>{reply}{error}\n</case>"
