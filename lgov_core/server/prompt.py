"""``lgov train --algorithm prompt``: tunes a prompt template of an agent by rollouts, with any model as the critic."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from lgov_core._util.files import atomic_write
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.client import rules_in_use
from lgov_core.client.tasks import Resource, Task, load_agent, read_tasks
from lgov_core.errors import SettingsError, TrainError
from lgov_core.gateway.protocol import Engine
from lgov_core.governance import Governance
from lgov_core.server.local import LocalRollouts, RolloutPlan, open_rollouts
from lgov_core.server.recipe import agent_name_of, device_for, load, task_file
from lgov_core.train.prompt_search import PromptCase, PromptSearch, PromptVersion, Scored
from lgov_core.train.sections import PromptSection
from lgov_core.train.settings import TrainingJob, TrainSettings
from lgov_core.transitions.calls import RecordedConversations
from lgov_core.types import Rollout, new_id

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

    def criticise(self, template: str, cases: Sequence[PromptCase], number: int) -> str:
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


def _in_words(case: PromptCase) -> str:
    reply = f"\n<said>\n{case.said[-_SHOWN:]}\n</said>" if case.said else ""
    error = f"\n<error>{case.error[:_SHOWN]}</error>" if case.error else ""
    task = json.dumps(dict(case.task), ensure_ascii=False)[:_SHOWN]
    return f"<case reward={case.reward:g}>\n<task>{task}</task>{reply}{error}\n</case>"


#: Every template that was made, one JSON object a line; and the best of them as text.
VERSIONS_FILE: Final = "prompts.jsonl"
BEST_FILE: Final = "best.txt"


def run_prompt(job: TrainingJob) -> Mapping[str, Any]:
    """Searches for a better template and leaves all versions in ``prompts.jsonl`` and the best one in ``best.txt``.

    The agent finds the template as ``resource.prompts[name]`` and fills it in. Each round's templates are scored on the
    same tasks; held-out tasks (``data.test``) only score the first and the best at the end. On Ctrl-C what was found so
    far is in the files, and KeyboardInterrupt propagates. Raises `LgovError`.
    """
    try:
        return _searched(job)
    except KeyboardInterrupt:
        best = job.folder / BEST_FILE
        advice = (
            f"resume from the best so far with prompt.template: {best}" if best.exists() else "there is no version yet"
        )
        raise KeyboardInterrupt(f"interrupted; {advice} (in another --folder)") from None


def _searched(job: TrainingJob) -> Mapping[str, Any]:
    settings, section = job.settings, job.settings.prompt
    first = _template(section)
    if section.critic_url is None:
        raise SettingsError("there is no critic", hint="prompt.critic_url: the base URL of an OpenAI-compatible model")
    settings.runtime.refuse_confinement()
    tasks = read_tasks(task_file(job))
    test = read_tasks(settings.data.test) if settings.data.test is not None else []
    agent = load_agent(agent_name_of(job))
    if (job.folder / VERSIONS_FILE).exists():
        raise SettingsError(f"{job.folder} holds a search already", hint="choose another --folder")
    job.folder.mkdir(parents=True, exist_ok=True)
    key = os.environ.get(section.critic_key_env) or None
    critic = ChatCritic(section.critic_url, section.critic_model, key=key, seed=settings.training.seed)
    with _open_scorer(agent, settings, job.folder) as scorer:

        def score(template: str, numbers: Sequence[int]) -> Scored:
            return scorer.scored(template, [tasks[number] for number in numbers] * section.repeats, "train")

        def draw(number: int) -> list[int]:
            """The tasks of a round: the same for the same seed, others in each round."""
            chance = random.Random(f"prompt/{settings.training.seed}/{number}")
            return chance.sample(range(len(tasks)), min(section.tasks, len(tasks)))

        def changed(versions: Sequence[PromptVersion]) -> None:
            lines = "".join(json.dumps(version.as_json(), ensure_ascii=False) + "\n" for version in versions)
            atomic_write(job.folder / VERSIONS_FILE, lines.encode())
            atomic_write(job.folder / BEST_FILE, f"{search.best.template}\n".encode())
            last = versions[-1]
            job.say(f"{len(versions)} versions; best is version {search.best.version} with {search.best.score or 0.0:.3f}; "
                    f"the newest is version {last.version}, made from {last.parent}")  # fmt: skip

        search = PromptSearch(
            first,
            score=score,
            critic=critic,
            draw=draw,
            rounds=section.rounds,
            beam=section.beam,
            candidates=section.candidates,
            budget=section.budget,
            changed=changed,
        )
        best = search.run()
        held_out = [scorer.scored(template, test, "test").mean if test else None for template in (first, best.template)]
    return {
        "folder": str(job.folder),
        "best_version": best.version,
        "score": [search.versions[0].score, best.score],
        "held_out_score": held_out,
        "versions": len(search.versions),
        "rollouts": scorer.count,
        "critic_calls": critic.calls,
        "dropped": dict(search.dropped),
    }


@contextlib.contextmanager
def _open_scorer(agent: Any, settings: TrainSettings, folder: Path) -> Generator[_Scorer]:
    runtime = settings.runtime
    engine, model = _engine(settings)
    governance = Governance.from_settings().under(runtime.policy, folder / "audit.db")
    rules = rules_in_use(governance) if runtime.air_enabled else None
    template = _Template(agent, settings.prompt.name)
    with open_rollouts(
        engine,
        folder,
        lambda url: AgentRunner(
            template.agent,
            endpoint=url,
            governance=governance,
            rules=rules,
            instrument=runtime.auto_instrumentation,
            content=True,
        ),
        model=model,
        plan=RolloutPlan(runtime.nworkers, runtime.timeout_s),
    ) as rollouts:
        yield _Scorer(rollouts, template)


class _Template:
    """The template that is being scored, and the user's agent with it; the agent's threads call `agent`."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent, self._name = agent, name
        self.text = ""

    def agent(self, resource: Resource, task: Task) -> Any:
        """Calls the user's agent."""
        return self._agent(replace(resource, prompts={self._name: self.text}), task)


class _Scorer:
    """Scores templates by rollouts, which it records. For one thread."""

    def __init__(self, rollouts: LocalRollouts, template: _Template) -> None:
        self._rollouts, self._template = rollouts, template
        self._run_id = new_id("prompt")
        self.count = 0

    def scored(self, template: str, tasks: Sequence[Mapping[str, Any]], mode: str) -> Scored:
        """Returns what the agent earns with ``template``. Attempts that machines failed do not count."""
        self._template.text = template
        rollouts = [
            Rollout(new_id("ro"), f"{mode}-{number:06d}", self._run_id, cast("Any", {"mode": mode, "task": dict(task)}))
            for number, task in enumerate(tasks)
        ]
        self.count += len(rollouts)
        with contextlib.closing(self._rollouts.run(rollouts, {"template": template})) as running:
            reports = {rollout.rollout_id: report for rollout, report, _ in running}
        replies = self._replies(list(reports))
        cases: list[PromptCase] = []
        for rollout, task in zip(rollouts, tasks, strict=True):
            report = reports[rollout.rollout_id]
            if report.outcome.trainable:
                reward = math.fsum(reward.value for reward in report.rewards if reward.dimension == "task")
                cases.append(PromptCase(task, reward, replies.get(rollout.rollout_id, ""), report.error))
        if not cases:
            why = next((report.error for report in reports.values() if report.error), "no attempt ended")
            raise TrainError(
                f"none of {len(reports)} rollouts could be used: {why}", hint="run the agent by itself first"
            )
        return Scored(math.fsum(case.reward for case in cases) / len(cases), tuple(cases), len(rollouts))

    def _replies(self, rollout_ids: Sequence[str]) -> dict[str, str]:
        """Returns what the model said in each rollout, call after call."""
        calls = sorted(self._rollouts.store.calls(rollout_ids), key=lambda call: call.started_at)
        read = RecordedConversations(calls)
        lines: dict[str, list[str]] = {}
        for call in calls:
            conversation = read(call)
            if conversation is not None and call.rollout_id is not None:
                reply = conversation.reply
                text = reply.get("content") or json.dumps(reply.get("tool_calls") or "")
                lines.setdefault(call.rollout_id, []).append(str(text))
        return {rollout_id: "\n".join(texts) for rollout_id, texts in lines.items()}


def _engine(settings: TrainSettings) -> tuple[Engine, str]:
    """The engine that answers the agent, and the model's name."""
    upstream = settings.prompt.upstream
    if upstream is not None:
        from lgov_core.gateway.upstream import UpstreamEngine

        engine = UpstreamEngine([upstream], api_key=os.environ.get("OPENAI_API_KEY") or None)
        return engine, settings.model.name or "model"
    from lgov_core.train.engines.vllm_engine import PolicyEngine

    model = load(settings, device_for(None))
    section = settings.model
    return PolicyEngine(model, max_batch=section.max_batch, max_new_tokens=section.max_new_tokens), model.name


def _template(section: PromptSection) -> str:
    if section.template is None:
        raise SettingsError("there is no template to begin with", hint="prompt.template: a text file")
    try:
        text = section.template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the template {section.template} cannot be read: {error}") from error
    if not text.strip():
        raise SettingsError(f"the template {section.template} is empty", hint="write the prompt that is used today")
    return text.strip()
