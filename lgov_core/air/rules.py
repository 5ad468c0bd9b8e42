"""Rules of automatic intermediate rewards (AIR): a function or a number, and the calls that it is about; checks of amounts."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

from lgov_core.errors import RewardError


def finite(what: str, value: Any) -> float:
    """``value`` as a finite float. Raises `RewardError`, naming ``what``, for anything else."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise RewardError(f"{what} is a coroutine", hint="reward functions are plain functions, not async ones")
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{what} is {value!r:.100}, not a finite number")
    return number


def amount(what: str, value: Any) -> float:
    """As `finite`, but a truth value is not a number either."""
    if isinstance(value, bool):
        raise RewardError(f"{what} is {value}, not a finite number", hint="write how much it earns or costs")
    return finite(what, value)


#: What a rule is about.
Event: TypeAlias = Literal["tool_success", "tool_failure", "denied", "model_call"]
#: What makes a success new: each (tool, arguments), each tool, or the result of a function of the call.
Milestone: TypeAlias = "Literal['call', 'tool'] | Callable[..., Hashable]"

_TOOL: Final = ("tool_name", "arguments", "agent", "call_id", "outcome")
#: What a rule's function may ask for, by the names of its parameters.
PARAMETERS: Final[Mapping[Event, tuple[str, ...]]] = {
    "tool_success": (*_TOOL, "output"),
    "tool_failure": (*_TOOL, "error", "error_type", "status"),
    "denied": (*_TOOL, "reason", "policy", "rule", "severity", "decision"),
    "model_call": ("model", "agent", "response_id", "finish_reason", "input_tokens", "output_tokens", "span"),
}


@dataclass(frozen=True, slots=True)
class AirRules:
    """How much each kind of tool outcome is worth.

    ``tool_success`` and ``tool_error`` go to the dimension ``air``; ``denied`` goes to ``compliance``, so that a penalty is
    never averaged away by tool rewards. A tool that timed out is an infrastructure problem and earns nothing. Nor does a
    denial because a policy failed or the record could not be written (`Decision.fault`), or a call that awaits approval.

    ``shaped`` pays ``air`` as a difference of potentials that is taken back when the attempt ends (see `AirPlugin`): a
    policy cannot gain by calling tools for their reward. False pays each call anew; then only bounds hold it:
    `lgov_core.transitions.CreditRules.air_cap`. Raises `RewardError` (a `ValueError`) for values that are not finite.
    """

    tool_success: float = 0.05
    tool_error: float = -0.05
    denied: float = -0.5
    shaped: bool = True

    def __post_init__(self) -> None:
        for name in ("tool_success", "tool_error", "denied"):
            amount(f"AirRules.{name}", getattr(self, name))
        if not isinstance(self.shaped, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RewardError(f"AirRules.shaped must be True or False, not {self.shaped!r}")


@dataclass(unsafe_hash=True, slots=True)
class AirRule:
    """One rule: on ``event``, for tools and agents that match (globs, case-sensitive), pay ``reward``.

    ``reward`` is a number, or a function of what it asks for by its parameters' names (`PARAMETERS`) that returns one, or
    None for nothing. ``tools`` are names of models for ``model_call``. ``shaped`` pays a difference of potentials, taken
    back when the attempt ends; ``milestone`` is what makes a success new.

    Raises `RewardError` for a function whose parameters have no meaning, and for one that is not a plain function.
    """

    name: str
    event: Event
    reward: float | Callable[..., Any]
    tools: tuple[str, ...] = ("*",)
    agents: tuple[str, ...] = ("*",)
    shaped: bool = True
    milestone: Milestone = "call"
    _asks: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]], init=False, repr=False)

    def __post_init__(self) -> None:
        what = f"AIR rule {self.name!r}"
        if self.event not in PARAMETERS:
            raise RewardError(f"{what}: there is no event {self.event!r}", hint=f"there are {', '.join(PARAMETERS)}")
        for name, globs in (("tools", self.tools), ("agents", self.agents)):
            if not globs or not all(isinstance(glob, str) and glob for glob in globs):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RewardError(f"{what}: {name} must be globs, not {globs!r}", hint=f'write "*" for all {name}')
        asks: dict[str, tuple[str, ...]] = {}
        if callable(self.reward):
            asks["reward"] = _asked(what, self.reward, self.event)
        else:
            amount(what, self.reward)
        if callable(self.milestone):
            asks["milestone"] = _asked(f"{what}: milestone", self.milestone, self.event)
        elif self.milestone not in ("call", "tool"):
            raise RewardError(f"{what}: milestone is {self.milestone!r}", hint="write call, tool or a function")
        self._asks = asks

    def covers(self, tool: str, agent: str | None) -> bool:
        """Returns whether the rule is about this tool (or model) and agent."""
        return any(fnmatchcase(tool, glob) for glob in self.tools) and (
            self.agents == ("*",) or any(fnmatchcase(agent or "", glob) for glob in self.agents)
        )

    def value(self, facts: Mapping[str, Any]) -> float:
        """The reward for a call. Raises what the function raises, and `RewardError` for a value that is not a finite number."""
        paid: Any = self.reward
        if callable(paid):
            paid = paid(**{name: facts[name] for name in self._asks["reward"]})
        return 0.0 if paid is None else amount(f"what AIR rule {self.name!r} paid", paid)

    def reached(self, facts: Mapping[str, Any]) -> Hashable:
        """The result of the ``milestone`` function for a call; None where ``milestone`` is not a function."""
        if not callable(self.milestone):
            return None
        reached = self.milestone(**{name: facts[name] for name in self._asks["milestone"]})
        hash(reached)
        return reached


class RuleSet:
    """AIR rules in the order in which they were added; each that covers a call pays for it.

    ``base`` are the values where no rule of that event covers a call; None pays nothing there. ``cap`` bounds what is paid
    in the dimension ``air`` over an attempt: the potential for shaped rules, the absolute sum for others; None switches it
    off. Rules may be added while a governor uses the set. Safe in any thread. Raises `RewardError`.
    """

    def __init__(self, *, base: AirRules | None = None, cap: float | None = 1.0) -> None:
        if cap is not None and amount("the cap of AIR", cap) < 0:
            raise RewardError(f"the cap of AIR is {cap:g}", hint="it is 0 or more; None switches it off")
        self.base = base
        self.cap = cap
        self._rules: tuple[AirRule, ...] = ()
        self._lock = threading.Lock()

    @property
    def rules(self) -> tuple[AirRule, ...]:
        """The rules."""
        return self._rules

    def add(self, rule: AirRule) -> None:
        """Adds a rule. One whose function was defined anew (a module loaded again) takes the place of the old."""
        with self._lock:
            for at, existing in enumerate(self._rules):
                if existing.name == rule.name:
                    if _home(existing.reward) is None or _home(existing.reward) != _home(rule.reward):
                        raise RewardError(f"two AIR rules are called {rule.name!r}", hint="give one another name=")
                    self._rules = (*self._rules[:at], rule, *self._rules[at + 1 :])
                    return
            self._rules = (*self._rules, rule)

    def covering(self, event: Event, tool: str, agent: str | None) -> list[AirRule]:
        """The rules about this event that cover a tool (or model) and agent."""
        return [rule for rule in self._rules if rule.event == event and rule.covers(tool, agent)]

    def on_tool_success(self, /, *tools: Any, **options: Any) -> Any:
        """Pays what the function returns when a tool succeeded.

        ``@on_tool_success`` is for all tools, ``@on_tool_success("search_*", "run_sql")`` for those that match a glob.
        Options are the further fields of `AirRule`: ``name``, ``agents``, ``shaped``, ``milestone``. The function may ask
        for ``tool_name``, ``output``, ``arguments``, ``agent``, ``call_id`` and ``outcome``.
        """
        return self._decorated("tool_success", tools, options)

    def on_tool_failure(self, /, *tools: Any, **options: Any) -> Any:
        """As `on_tool_success`, when a tool failed, does not exist or was called with arguments that do not fit.

        Instead of ``output`` there are ``error``, ``error_type`` and ``status``. A timeout is not a failure of the call,
        and neither is a cancellation by the program.
        """
        return self._decorated("tool_failure", tools, options)

    def on_denied(self, /, *tools: Any, **options: Any) -> Any:
        """As `on_tool_success`, when a policy denied a call; paid in the dimension ``compliance`` and never shaped.

        The function may ask for ``reason``, ``policy``, ``rule``, ``severity`` and ``decision``. A denial because a policy
        or the record failed is none.
        """
        return self._decorated("denied", tools, {"shaped": False, **options})

    def on_model_call(self, /, *tools: Any, **options: Any) -> Any:
        """As `on_tool_success`, when a model has replied; globs are for the model's name.

        The function may ask for ``model``, ``agent``, ``response_id``, ``finish_reason``, ``input_tokens``,
        ``output_tokens`` and ``span``; what the provider did not report is None.
        """
        return self._decorated("model_call", tools, options)

    def _decorated(self, event: Event, tools: Sequence[Any], options: Mapping[str, Any]) -> Any:
        if len(tools) == 1 and callable(tools[0]) and not options.keys() - {"shaped"}:
            return self._register(event, tools[0], (), options)
        return lambda function: self._register(event, function, tools, options)

    def _register(self, event: Event, function: Any, tools: Sequence[Any], options: Mapping[str, Any]) -> Any:
        if unknown := sorted(options.keys() - {"name", "agents", "shaped", "milestone"}):
            hint = "there are name, agents, shaped and milestone"
            raise RewardError(f"on_{event} has no option {unknown[0]!r}", hint=hint)
        if not callable(function):
            raise RewardError(f"on_{event} is for a function, not {function!r}")
        settings = dict(options)
        agents: Any = settings.pop("agents", ("*",))
        settings["agents"] = (agents,) if isinstance(agents, str) else tuple(agents)
        name = settings.pop("name", None) or getattr(function, "__name__", event)
        self.add(AirRule(name, event, function, tuple(tools) or ("*",), **settings))
        return function


def _asked(what: str, function: Callable[..., Any], event: Event) -> tuple[str, ...]:
    """The names that a function wants, each of which the event has."""
    if inspect.iscoroutinefunction(function):
        raise RewardError(f"{what} is a coroutine function", hint="write def, not async def")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"{what}: the parameters of {function!r} are unknown", hint="wrap it in a function"
        ) from error
    available = PARAMETERS[event]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return available
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in available and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise RewardError(
                f"{what} asks for {parameter.name!r}, which on_{event} does not have",
                hint=f"it may ask by name for {', '.join(available)}",
            )
    return tuple(names)


def _home(reward: Any) -> tuple[str, str] | None:
    """Where a function was defined: two of one home are the same rule."""
    module, name = getattr(reward, "__module__", None), getattr(reward, "__qualname__", None)
    return (module, name) if module and name else None
