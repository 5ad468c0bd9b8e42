"""What an update should not be made of unnoticed: replies that are cut off, and models that never call a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lgov_core.transitions.transition_set import Transition
from lgov_core.types import CapturedCall

#: The share of replies that may be cut off without a warning.
_CUT_OFF: Final = 0.25
#: Rollouts whose requests are looked at.
_LOOKED_AT: Final = 4


def reply_warnings(
    transitions: Sequence[Transition], calls_of: Callable[[list[str]], Iterable[CapturedCall]]
) -> dict[str, str]:
    """Warnings about the replies of an update, by name: ``replies-truncated`` (as `lgov doctor` has it), ``no-tool-calls``.

    ``calls_of`` reads the calls of rollouts. It is asked only when no reply has a tool call, for whether tools were offered.
    """
    found: dict[str, str] = {}
    count, cut = len(transitions), sum(one.truncated for one in transitions)
    if cut > _CUT_OFF * count:
        found["replies-truncated"] = (
            f"{cut} of {count} replies were cut off at the limit of tokens: raise model.max_new_tokens, or max_tokens"
        )
    if count and not any(one.tool_call_ids for one in transitions):
        rollouts = list(dict.fromkeys(one.rollout_id for one in transitions))[:_LOOKED_AT]
        if any(call.request.get("tools") for call in calls_of(rollouts)):
            found["no-tool-calls"] = (
                f"none of {count} replies holds a tool call that can be read, though tools were offered: look at one with"
                f" lgov traces show FOLDER {rollouts[0]}; teach the form by lgov train --algorithm sft, demand a call"
                " (tool_choice), or try another model.tool_format"
            )
    return found
