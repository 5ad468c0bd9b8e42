"""Runs the credit schemes of plugins, and checks what they return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lgov_core.errors import TransitionError
from lgov_core.transitions.credit.schemes import SCHEMES
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import CreditRules

if TYPE_CHECKING:
    import pluggy


def check_known(rules: CreditRules, manager: pluggy.PluginManager | None) -> None:
    """Raises `TransitionError` for a scheme that is not built in where no plugin has schemes."""
    if rules.scheme not in SCHEMES and not _managed(manager).hook.lgov_assign_credit.get_hookimpls():
        raise _unknown(rules)


def ask_plugins(
    rollouts: Sequence[Sequence[Transition]], rules: CreditRules, manager: pluggy.PluginManager | None
) -> list[list[list[float]]]:
    """The advantage of each response token of each turn, by the first plugin that knows the scheme.

    The plugins are asked in pluggy's order, the last registered first. Raises `TransitionError` naming the plugin when one
    raises or its answer does not fit the rollouts, and when none knows the scheme: fails closed.
    """
    given: dict[str, Any] = {"scheme": rules.scheme, "rollouts": rollouts, "rules": rules}
    for impl in reversed(_managed(manager).hook.lgov_assign_credit.get_hookimpls()):
        try:
            answer: Any = impl.function(**{name: given[name] for name in impl.argnames})
        except Exception as error:
            raise TransitionError(
                f"credit scheme {rules.scheme!r}: plugin {impl.plugin_name} raised {type(error).__name__}: {error}",
                hint="no credit was assigned",
            ) from error
        if answer is not None:
            return _checked(answer, rollouts, rules.scheme, impl.plugin_name)
    raise _unknown(rules)


def _managed(manager: pluggy.PluginManager | None) -> pluggy.PluginManager:
    if manager is not None:
        return manager
    from lgov_core.plugins import make_plugin_manager

    return make_plugin_manager()


def _unknown(rules: CreditRules) -> TransitionError:
    return TransitionError(
        f"there is no credit scheme {rules.scheme!r}",
        hint=f"there are {', '.join(SCHEMES)}, and those of plugins (hook lgov_assign_credit)",
    )


def _checked(
    answer: Any, rollouts: Sequence[Sequence[Transition]], scheme: str, plugin: str
) -> list[list[list[float]]]:
    def wrong(what: str) -> TransitionError:
        hint = "a scheme returns a list of rollouts, of a number (or one for each response token) a turn"
        return TransitionError(f"credit scheme {scheme!r}: plugin {plugin} returned {what}", hint=hint)

    rows = _listed(answer)
    if rows is None or len(rows) != len(rollouts):
        raise wrong(f"{_size(rows, answer)} for {len(rollouts)} rollouts")
    checked: list[list[list[float]]] = []
    for row, rollout in zip(rows, rollouts, strict=True):
        name = rollout[0].rollout_id
        turns = _listed(row)
        if turns is None or len(turns) != len(rollout):
            raise wrong(f"{_size(turns, row)} for the {len(rollout)} turns of rollout {name}")
        credit: list[list[float]] = []
        for value, turn in zip(turns, rollout, strict=True):
            tokens = _listed(value)
            if tokens is None:
                tokens = [value] * len(turn.response_ids)
            elif len(tokens) != len(turn.response_ids):
                raise wrong(f"{len(tokens)} for the {len(turn.response_ids)} tokens of turn {turn.turn} of {name}")
            if not all(map(_is_number, tokens)):
                raise wrong(f"{value!r:.60} for turn {turn.turn} of rollout {name}, which is not a finite number")
            credit.append([float(one) for one in tokens])
        checked.append(credit)
    return checked


def _listed(value: Any) -> list[Any] | None:
    """``value`` as a list if it is a sequence (or an array), else None."""
    if isinstance(value, str | bytes | dict) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return None
    return list(value)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _size(listed: list[Any] | None, value: Any) -> str:
    return f"a {type(value).__name__}" if listed is None else f"{len(listed)} values"
