"""``lgov train --algorithm prompt``: tunes a prompt template of an agent by rollouts, with any model as the critic."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from lgov_core._util.files import atomic_write
from lgov_core.client.abandoned_threads import as_they_end
from lgov_core.client.agent_name import load_agent
from lgov_core.client.client import rules_in_use
from lgov_core.client.tasks import Resource, Task, read_tasks
from lgov_core.errors import SettingsError, TrainError
from lgov_core.gateway.protocol import Engine
from lgov_core.governance import Governance
from lgov_core.server.critic import ChatCritic
from lgov_core.server.local_rollouts import LocalRollouts, open_rollouts
from lgov_core.server.recipe import agent_name_of, device_for, load, task_file
from lgov_core.train.algorithms.registry import TrainingJob
from lgov_core.train.prompt_search import Case, PromptSearch, PromptVersion, Scored
from lgov_core.train.sections import PromptSection
from lgov_core.train.settings import TrainSettings
from lgov_core.transitions.calls import RecordedConversations
from lgov_core.types import Rollout, new_id

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
    first, critic_url = _template(section), section.critic_url
    if critic_url is None:
        raise SettingsError("there is no critic", hint="prompt.critic_url: the base URL of an OpenAI-compatible model")
    settings.runtime.refuse_confinement()
    tasks = read_tasks(task_file(job))
    test = read_tasks(settings.data.test) if settings.data.test is not None else []
    agent = load_agent(agent_name_of(job))
    if (job.folder / VERSIONS_FILE).exists():
        raise SettingsError(f"{job.folder} holds a search already", hint="choose another --folder")
    job.folder.mkdir(parents=True, exist_ok=True)
    critic = ChatCritic(
        critic_url,
        section.critic_model,
        key=os.environ.get(section.critic_key_env) or None,
        seed=settings.training.seed,
    )
    runtime = settings.runtime
    engine, model = _engine(settings)
    scorer = _Scorer(agent, settings)
    governance = Governance.from_settings().under(runtime.policy)
    rules = rules_in_use(governance) if runtime.air_enabled else None
    with open_rollouts(
        scorer.agent, engine, job.folder, model=model, timeout_s=runtime.timeout_s, governance=governance,
        rules=rules, instrument=runtime.auto_instrumentation,
    ) as scorer.rollouts:  # fmt: skip

        def score(template: str, numbers: Sequence[int]) -> Scored:
            return scorer.scored(template, [tasks[number] for number in numbers] * section.repeats, "train")

        def draw(number: int) -> list[int]:
            """The tasks of a round: the same for the same seed, others in each round."""
            chance = random.Random(f"prompt/{settings.training.seed}/{number}")
            return chance.sample(range(len(tasks)), min(section.tasks, len(tasks)))

        def changed(versions: Sequence[PromptVersion]) -> None:
            _write(job.folder, versions, search.best)
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
        held_out = [None, None]
        if test:
            held_out = [scorer.scored(template, test, "test").mean for template in (first, best.template)]
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


class _Scorer:
    """Runs an agent with one template or another, and records it. For one thread; the agent's threads call `agent`."""

    def __init__(self, agent: Any, settings: TrainSettings) -> None:
        self._agent, self._settings = agent, settings
        self._template = ""
        self._run_id = new_id("prompt")
        self.rollouts: LocalRollouts | None = None
        self.count = 0

    def agent(self, resource: Resource, task: Task) -> Any:
        """The user's agent with the template that is being scored."""
        return self._agent(replace(resource, prompts={self._settings.prompt.name: self._template}), task)

    def scored(self, template: str, tasks: Sequence[Mapping[str, Any]], mode: str) -> Scored:
        """Returns what the agent earns with ``template``. Attempts that machines failed do not count."""
        assert self.rollouts is not None
        self._template = template
        rollouts = [
            Rollout(new_id("ro"), f"{mode}-{number:06d}", self._run_id, cast("Any", {"mode": mode, "task": dict(task)}))
            for number, task in enumerate(tasks)
        ]
        self.rollouts.store.add_rollouts(rollouts)
        self.count += len(rollouts)
        run = functools.partial(self.rollouts.run, result={"template": template})
        with contextlib.closing(
            as_they_end(run, rollouts, self._settings.runtime.nworkers, name="lgov-prompt")
        ) as running:
            by_place = dict(running)
        reports = [by_place[index] for index in range(len(rollouts))]
        replies = self._said(self.rollouts, [rollout.rollout_id for rollout in rollouts])
        cases: list[Case] = []
        for rollout, task, report in zip(rollouts, tasks, reports, strict=True):
            if report.outcome.trainable:
                reward = math.fsum(reward.value for reward in report.rewards if reward.dimension == "task")
                cases.append(Case(task, reward, replies.get(rollout.rollout_id, ""), report.error))
        if not cases:
            why = next((report.error for report in reports if report.error), "no attempt ended")
            raise TrainError(
                f"none of {len(reports)} rollouts could be used: {why}", hint="run the agent by itself first"
            )
        return Scored(math.fsum(case.reward for case in cases) / len(cases), tuple(cases), len(rollouts))

    def _said(self, rollouts: LocalRollouts, rollout_ids: Sequence[str]) -> dict[str, str]:
        """Returns what the model said in each rollout, call after call."""
        calls = sorted(rollouts.store.calls(rollout_ids), key=lambda call: call.started_at)
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
        from lgov_core.gateway.upstream.engine import UpstreamEngine

        engine = UpstreamEngine([upstream], api_key=os.environ.get("OPENAI_API_KEY") or None)
        return engine, settings.model.name or "model"
    from lgov_core.train.engines.policy_engine import PolicyEngine

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


def _write(folder: Path, versions: Sequence[PromptVersion], best: PromptVersion) -> None:
    lines = "".join(json.dumps(version.as_json(), ensure_ascii=False) + "\n" for version in versions)
    for name, text in ((VERSIONS_FILE, lines), (BEST_FILE, best.template + "\n")):
        atomic_write(folder / name, text.encode())
