"""Rules about whom a tool call names: addresses that the user said, and those that came from elsewhere."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from typing import Final

from lgov_core.policies.provenance.policy import strings_in
from lgov_core.policies.provenance.text import addresses
from lgov_core.policies.provenance.values import Address, covers
from lgov_core.types import Action
from lgov_core.views.suggestion.acts import ToolActs
from lgov_core.views.suggestion.rules import ProposedRule

#: Addresses that the user did not say beyond which a tool is one that takes them from anywhere.
_FOREIGN: Final = 20


def said_rules(tools: Sequence[ToolActs]) -> list[tuple[ProposedRule, list[Action]]]:
    """Rules by which addresses must be said by the user, each with the actions that it covers.

    One rule for all tools that never named another address, and one for each tool that did, which lists them. None for a
    tool that names too many others, or no address while what the user said is not on record.
    """
    strict: list[ToolActs] = []
    naming = 0
    found: list[tuple[ProposedRule, list[Action]]] = []
    for tool in tools:
        foreign, count = _foreign(tool)
        if not foreign and all(action.context.get("user_text") for action in tool.actions):
            strict.append(tool)
            naming += count
        elif 0 < len(foreign) <= _FOREIGN:
            rule = {
                "name": f"{tool.name}: said by the user",
                "tools": [glob.escape(tool.name)],
                "use": "provenance",
                "with": {"trusted": sorted({glob.escape(address.form) for address in foreign})},
            }
            named = ", ".join(f"{address.form} {count}" for address, count in foreign.most_common())
            notes = [f"{tool.name}: addresses must come from the user; allowed besides: {named}"]
            found.append((ProposedRule(rule, notes), tool.actions))
    if strict:
        names = [glob.escape(tool.name) for tool in strict]
        total = sum(tool.total for tool in strict)
        note = f"{naming} of {total} calls name an address (e-mail, URL, path, account, phone), which the user had said"
        rule = {"name": "said by the user", "tools": names, "use": "provenance"}
        found.insert(0, (ProposedRule(rule, [note]), [action for tool in strict for action in tool.actions]))
    return found


def _foreign(tool: ToolActs) -> tuple[Counter[Address], int]:
    """The addresses that the user had not said, and how often each was named; and how many calls named any address."""
    found: Counter[Address] = Counter()
    naming = 0
    for action, count in zip(tool.actions, tool.counts, strict=True):
        said = addresses(str(action.context.get("user_text", "")))
        named = [one for name, text in strings_in(action.arguments) for one in addresses(text, name)]
        naming += count if named else 0
        found.update({one: count for one in named if not any(covers(known, one) for known in said)})
    return found, naming
