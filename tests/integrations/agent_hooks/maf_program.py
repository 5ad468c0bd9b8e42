"""An agent of Microsoft Agent Framework under lgov's policies; run in an environment of its own.

``python -m tests.integrations.agent_hooks.maf_program BASE_URL FOLDER TASK`` prints what came of it as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

warnings.filterwarnings("ignore")

from agent_framework import Agent, create_agent_hooks_middleware, tool  # noqa: E402
from agent_framework_openai import OpenAIChatCompletionClient  # noqa: E402
from agent_hooks import InterceptionBlocked  # noqa: E402

from lgov_core import Action, AuditLog, Decision, Effect, Governor, Point, ToolOutcome, hookimpl, load_policy_file  # noqa: E402
from lgov_core.governor import ObservedDecision  # noqa: E402
from lgov_core.integrations.agent_hooks import LgovInterceptor  # noqa: E402


class Seen:
    def __init__(self) -> None:
        self.decisions: list[ObservedDecision] = []
        self.outcomes: list[ToolOutcome] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, ObservedDecision):
            self.decisions.append(event)
        elif isinstance(event, ToolOutcome):
            self.outcomes.append(event)


class Upper:
    """Rewrites what is noted, and forgets how to judge an explosion."""

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision | None:
        if action.name == "explode":
            raise RuntimeError("the policy is broken")
        text = action.arguments.get("text")
        if action.name != "note" or not isinstance(text, str) or text.isupper():
            return None
        return Decision(Effect.TRANSFORM, "upper", arguments={"text": text.upper()})


def tools(folder: Path) -> list[Any]:
    @tool(approval_mode="never_require")
    def erase_file(path: Annotated[str, "the file"]) -> str:
        """Erases a file."""
        Path(path).unlink()
        return f"erased {path}"

    @tool(approval_mode="never_require")
    def note(text: Annotated[str, "the words"]) -> str:
        """Writes a note."""
        (folder / "note.txt").write_text(text)
        return f"noted {text}"

    @tool(approval_mode="never_require")
    def explode() -> str:
        """Explodes."""
        (folder / "exploded").touch()
        return "boom"

    return [erase_file, note, explode]


async def main(base_url: str, folder: Path, task: str, mode: str) -> dict[str, Any]:
    seen, audit = Seen(), AuditLog(folder / "audit.db")
    governor = Governor(load_policy_file(folder / "policy.yaml"), plugins=[seen, Upper()], audit=audit)
    agent = Agent(
        client=OpenAIChatCompletionClient(model="scripted", base_url=base_url, api_key="none"),
        name="clerk",
        tools=tools(folder),
        middleware=[create_agent_hooks_middleware([LgovInterceptor(governor)])],
    )
    blocked = answer = None
    updates: list[str] = []
    try:
        if mode == "streaming":
            stream = agent.run(task, stream=True)
            updates = [update.text async for update in stream]
            answer = (await stream.get_final_response()).text
        else:
            answer = (await agent.run(task)).text
    except InterceptionBlocked as error:
        blocked = error.result.verdict.reason
    audit.close()
    calls = [Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL]
    return {
        "answer": answer,
        "blocked": blocked,
        "updates": updates,
        "points": [one.action.point.value for one in seen.decisions],
        "agents": sorted({f"{one.action.framework}/{one.action.agent}" for one in seen.decisions}),
        "committed": all(one.decision.decision_id for one in seen.decisions),
        "calls": [
            [one.action.name, one.action.call_id, one.decision.effect.label, one.action.operation_id]
            for one in seen.decisions
            if one.action.point in calls
        ],
        "usage": [
            one.action.arguments.get("usage") for one in seen.decisions if one.action.point is Point.POST_MODEL_CALL
        ],
        "user_text": sorted(
            {str(one.action.context.get("user_text")) for one in seen.decisions if one.action.point in calls}
        ),
        "outcomes": [[one.action.name, one.status, one.result] for one in seen.outcomes],
    }


if __name__ == "__main__":
    url, where, said, how = sys.argv[1:]
    print(json.dumps(asyncio.run(main(url, Path(where), said, how))))
