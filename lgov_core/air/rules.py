"""Rules of automatic intermediate rewards (AIR): a function or a number, and the calls that it is about; checks of amounts.

Also reads them from YAML: every mistake is an error with its line and what to write instead.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from lgov_core._util.schema import Mistake, Place, checked, read_yaml
from lgov_core.errors import PolicyFileError, RewardError, RewardFileError, suggest_name


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


_BUILT_IN: Final = AirRules()
_Number = Annotated[float, Meta(description="a number")]
_YesOrNo = Annotated[bool, Meta(description="true or false")]
_Globs = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, description="a list of globs, at least one")
]


#: msgspec's names of kinds, in words.
_WORDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "object": "a mapping",
    "bool | object": "true or a mapping",
}


class _Values(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The values of calls that no rule covers; see `AirRules`."""

    tool_success: _Number = _BUILT_IN.tool_success
    tool_error: _Number = _BUILT_IN.tool_error
    denied: _Number = _BUILT_IN.denied
    shaped: _YesOrNo = _BUILT_IN.shaped


class _Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One rule; see `AirRule`."""

    on: Annotated[Event, Meta(description=f"one of {', '.join(PARAMETERS)}")]
    reward: _Number
    name: Annotated[str, Meta(pattern=r"\S", description="a text")] | None = None
    tools: _Globs = ("*",)
    agents: _Globs = ("*",)
    shaped: _YesOrNo | None = None
    milestone: Annotated[Literal["call", "tool"], Meta(description="call or tool")] = "call"


class _AirFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of AIR rules, or a section of one. ``cap`` is the most that an attempt is paid; null for no bound."""

    version: Annotated[Literal[1], Meta(description="1")]
    cap: Annotated[float, Meta(ge=0, description="a number, 0 or more, or null for no bound")] | None = 1.0
    defaults: bool | _Values = False
    rules: tuple[_Rule, ...] = ()


def _schema() -> dict[str, Any]:
    (written,), parts = msgspec.json.schema_components([_AirFile], ref_template="#/definitions/{name}")
    name = written["$ref"].rpartition("/")[2]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **parts.pop(name),
        "title": "lgov AIR rules",
        "definitions": parts,
    }


#: The JSON Schema (draft 7) of a file of AIR rules, or of a section of one.
AIR_FILE_SCHEMA: Final[dict[str, Any]] = _schema()


def load_rules(path: str | PathLike[str], *, section: str | None = None) -> RuleSet:
    """The AIR rules in a YAML file, or in its top-level ``section``; the rest of the file is then ignored.

    Raises `RewardFileError` with the line for any mistake in them.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RewardFileError("there is no such file", path=source, hint="check the path of the AIR rules") from error
    except UnicodeDecodeError as error:
        raise RewardFileError("the file is not UTF-8 text", path=source) from error
    except (OSError, ValueError) as error:
        raise RewardFileError(f"the file cannot be read: {error}", path=source) from error
    try:
        document, lines = read_yaml(text, source)
    except PolicyFileError as error:
        where = ":".join(str(part) for part in (error.path, error.line) if part is not None)
        message = error.message.removeprefix(f"{where}: ")
        raise RewardFileError(message, path=source, line=error.line, hint=error.hint) from error
    root: Place = ()
    if section is not None:
        if not isinstance(document, Mapping) or section not in document:
            raise RewardFileError(f"there is no section {section!r}", path=source)
        document, root = document[section], (section,)
    return _rule_set(document, source, lines, root)


def rules_of(document: Mapping[str, Any], *, source: str = "AIR rules") -> RuleSet:
    """The AIR rules in a document that is in memory; ``source`` names it in errors. Raises `RewardFileError`."""
    return _rule_set(document, source, {}, ())


def _rule_set(document: Any, source: str, lines: Mapping[Place, int], root: Place) -> RuleSet:
    def error(path: Place, message: str, hint: str | None) -> RewardFileError:
        """The error with the line of ``path``, or of the nearest thing around it that has one."""
        path = (*root, *path)
        while path and path not in lines:
            path = path[:-1]
        return RewardFileError(message, path=source, line=lines.get(path), hint=hint)

    try:
        file = checked(document, _AirFile)
    except Mistake as mistake:
        raise error(*_explained(mistake, document)) from None
    path: Place = ("defaults",)
    try:
        values = _Values() if file.defaults is True else file.defaults or None
        base = None if values is None else AirRules(**msgspec.structs.asdict(values))
        path = ("cap",)
        rules = RuleSet(base=base, cap=file.cap)
        for index, rule in enumerate(file.rules):
            path = ("rules", index)
            shaped = rule.on != "denied" if rule.shaped is None else rule.shaped
            name = rule.name or f"rule {index + 1}"
            rules.add(AirRule(name, rule.on, rule.reward, rule.tools, rule.agents, shaped, rule.milestone))
    except RewardError as wrong:
        raise error(path, wrong.message, wrong.hint) from wrong
    if not rules.rules and rules.base is None:
        raise error(("rules",), "nothing is ever paid", "write rules, or defaults: true")
    return rules


def _explained(mistake: Mistake, document: Any) -> tuple[Place, str, str | None]:
    """Returns where a document does not fit the schema, what is wrong there, and what to write instead."""
    path: Place = mistake.path
    struct = _Rule if path[:1] == ("rules",) else _Values if path[:1] == ("defaults",) else _AirFile
    if mistake.unknown is not None:
        keys = struct.__struct_fields__
        hint = suggest_name(mistake.unknown.lower(), keys)
        return (*path, mistake.unknown), f"there is no key {mistake.unknown!r} here", hint
    missing = mistake.expected.removeprefix("Object missing required field ")
    if missing != mistake.expected:
        return path, f"there is no {missing}", f"write {missing}: ..."
    value = document
    for step in path:
        value = value[step]
    plain, _, _ = mistake.expected.partition(", got ")
    expected = _WORDS.get(plain, plain)
    choices = PARAMETERS if path[-1:] == ("on",) else ("call", "tool") if path[-1:] == ("milestone",) else ()
    hint = suggest_name(str(value).lower(), tuple(choices)) if choices else f"it must be {expected}"
    return path, f"{path[-1] if path else 'the document'} is {value!r:.100}", hint
