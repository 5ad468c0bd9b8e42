"""OrderPolicy: what happened before in a rollout decides whether a tool may be called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from lgov_core._util.json_text import NotCanonical, fingerprint
from lgov_core.errors import PolicyError, counted
from lgov_core.governor.conditions import Condition, condition_of
from lgov_core.governor.patterns import matches_any, surely_matches
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.budgets.counting import NOT_MADE, Pasts, decided, keep_newest, rollout_key
from lgov_core.policies.options import Count, Names, PolicyOptions, Text, takes
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, new_id

#: Values of an argument, and calls under a limit, that are remembered of one rollout.
MAX_VALUES: Final = 1_000
#: Ids of calls of one rollout whose result may still come.
MAX_OPEN: Final = 256
#: Characters of a result that a condition looks at; a longer one fits none.
MAX_RESULT: Final = 200_000
#: Characters of the id of a call.
MAX_ID: Final = 200
#: Stands for every value, where there were too many or one is not known.
_ANY: Final = "*"

_ARGUMENTS: Final = Meta(description="the name of an argument, a list of names, or {argument: its name there}")
_EARLIER: Final = Meta(description="{tool: NAME}, or a list of such")


class EarlierCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that came before: of ``tool`` (names or globs), with the ``same`` arguments as the call that is judged."""

    tool: Names
    same: Annotated[Text | Sequence[Text] | Mapping[Text, Text] | None, _ARGUMENTS] = None


class EarlierResult(EarlierCall, frozen=True, forbid_unknown_fields=True):
    """A call that has returned, ``within`` a number of calls, the last one with a ``result`` of which a condition holds."""

    within: Count | None = None
    result: Annotated[Text | Mapping[Text, Any] | None, Meta(description="a condition")] = None


class OrderOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of an `OrderPolicy`."""

    after: Annotated[EarlierResult | Sequence[EarlierResult], _EARLIER] = ()
    never_after: Annotated[EarlierCall | Sequence[EarlierCall], _EARLIER] = ()
    at_most: Annotated[int, Meta(ge=1, le=MAX_VALUES, description=f"a whole number from 1 to {MAX_VALUES}")] | None = (
        None
    )
    per: Names = ()
    max_rollouts: Count = 100_000
    name: Text = "order"


class OrderPolicy(BoundedPolicy):
    """Lets tools be called in an order: only after other calls, never after others, a limited number of times.

    ``after`` lists calls that must all have returned without an error before. Each has a ``tool`` (a name or glob, or a
    list of which any will do), and may say more: among the last ``within`` calls of the rollout; with the ``same``
    arguments as this call (``{order_id: id}`` where the earlier call names it ``id``); with a ``result``, a condition as in
    ``when``, in which ``text`` is the last result of ``tool`` and ``context.result`` the same text as JSON. ``never_after``
    lists calls of which none may have been made. ``at_most`` limits the calls that the rule covers, for each value of the
    arguments in ``per``.

    A call that any rule denies does not count, a result that is withheld does not either, and a call that the framework
    repeats counts once. A result counts from the next model call on, so that a call of the same turn comes too early; where
    no model calls are governed, it counts at once. The endpoint cannot tell an error from another result: use ``result``
    there.

    Calls are counted for each session of each attempt at a rollout, or else for each agent run. A call without any of these
    ids has no earlier calls, and shares its limits with all such calls. The memory is that of the process, and has at most
    a thousand values for a rollout: a forgotten result must be fetched again, and a call that cannot be counted is denied.
    Beyond ``max_rollouts`` new rollouts are denied; a rule with ``after`` alone forgets the rollout that was quiet longest
    instead.

    May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a meaning.
    """

    default_points: ClassVar[tuple[Point, ...]] = (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)

    @takes(OrderOptions)
    def __init__(self, options: OrderOptions) -> None:
        self.name = options.name
        self._after = [_Term.of(earlier, self.name) for earlier in _listed(options.after)]
        self._never = [_Term.of(earlier, self.name) for earlier in _listed(options.never_after)]
        self.at_most, self.per = options.at_most, _listed(options.per)
        if self.at_most is None and (self.per or not (self._after or self._never)):
            missing = "per is given without at_most" if self.per else "there is no order"
            raise PolicyError(f"{self.name}: {missing}", hint="give after, never_after or at_most")
        forgets = not self._never and self.at_most is None
        self._pasts = Pasts(_Past, options.max_rollouts, forgets=forgets)
        parts = [f"only after {term.words('has returned')}" for term in self._after]
        parts += [f"never after {term.words('was called')}" for term in self._never]
        if self.at_most is not None:
            each = f" for each {' and '.join(self.per)}" if self.per else ""
            parts.append(f"at most {counted(self.at_most, 'call')} a rollout{each}")
        #: The rule in English.
        self.sentence = f"{parts[0][0].upper()}{'; '.join(parts)[1:]}."

    def judge(self, action: Action) -> Decision | None:
        """A deny that says what has to happen first, or what happened already; None after a call."""
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        with self._pasts.of(rollout_key(action)) as past:
            if past is None:
                return self.deny("order-rollouts", "Too many rollouts at once to remember this one; raise max_rollouts")
            denial = self._denial(action, past)
        return denial or Decision(Effect.ALLOW, self.name, "order", self.sentence)

    def _denial(self, action: Action, past: _Past) -> Decision | None:
        """The denial of a call that may not be made; without one it counts as made."""
        tool = action.name[:80]
        for term in self._never:
            value, values = term.value(action), past.called.get(term.key, {})
            if values and (value is None or value in values or _ANY in values):
                reason = f"{tool} may not be called any more, because {term.words('was called')}."
                return self.deny("order-never", reason)
        for term in self._after:
            lacking = term.lacks(action, past)
            if lacking is not None:
                return self.deny("order-after", lacking[0]).changed(premature=lacking[1])
        if self.at_most is None:
            return None
        operation, value = action.operation_id or new_id("op"), _digest(action, self.per) or ""
        past.granted.pop(operation, None)  # it is judged again, perhaps in another form
        if sum(other == value for other in past.granted.values()) >= self.at_most:
            same = f" with this {' and '.join(self.per)}" if self.per else ""
            reason = f"{tool} may be called only {counted(self.at_most, 'time')}{same}, and was already."
            return self.deny("order-limit", reason)
        if len(past.granted) >= MAX_VALUES:
            return self.deny("order-values", f"{tool} was called {MAX_VALUES} times, and no more can be remembered.")
        past.granted[operation] = value
        return None

    def observe(self, event: Any) -> None:
        """Takes note of what was allowed, of what returned and of what the model has read."""
        judged = decided(event)
        if isinstance(event, ToolOutcome):
            arguments = event.decision and event.decision.arguments  # where a policy changed them
            self._ended(event.action.changed(arguments=arguments), event.status, event.result)
        elif judged is not None:
            action, decision = judged[0].changed(arguments=judged[1].arguments), judged[1]
            if action.point is Point.POST_TOOL_CALL and action.operation_id is None and not decision.blocks:
                # No outcome tells of it.
                self._ended(action, str(action.context.get("tool_status", "ok")), action.text)
            elif action.point is Point.AGENT_SHUTDOWN:
                self._pasts.drop(rollout_key(action))
            else:
                self._decided(action, blocks=decision.blocks)

    def _decided(self, action: Action, *, blocks: bool) -> None:
        is_call = action.point is Point.PRE_TOOL_CALL
        terms = [term for term in self._never if is_call and matches_any(action.name, term.tools)]
        with self._pasts.of(rollout_key(action), opens=not blocks and bool(terms or self._after)) as past:
            if past is None:
                return
            if is_call and blocks:
                past.granted.pop(action.operation_id or "", None)
            elif is_call:
                past.call(action)
                for term in terms:
                    values = past.called.setdefault(term.key, {})
                    values[term.value(action, there=True) or _ANY if len(values) < MAX_VALUES else _ANY] = True
            elif action.point is Point.PRE_MODEL_CALL and not blocks:
                past.last_read = past.events = past.events + 1
            elif action.point is Point.POST_TOOL_CALL and blocks and action.operation_id is not None:
                for results in past.results.values():  # one that nobody may read has not come
                    results[:] = [result for result in results if result.operation != action.operation_id]

    def _ended(self, action: Action, status: str, text: str | None) -> None:
        results: list[tuple[str, bool]] = []
        for term in self._after:
            value = term.value(action, there=True) if surely_matches(action.name, term.tools) else None
            if value is not None and (status == "ok" or term.condition is not None):
                results.append((term.key + value, status == "ok" and term.fits(action, text)))
        with self._pasts.of(rollout_key(action), opens=False) as past:
            if past is not None and status in NOT_MADE:
                past.granted.pop(action.operation_id or "", None)
            elif past is not None:
                was_allowed = action.name in map(past.open.get, _ids(action))
                for key, fits in results if was_allowed else ():
                    past.note(key, fits, action.operation_id)

    def continue_from(self, previous: object) -> None:
        """Goes on with what ``previous`` remembers, which this one replaces. Raises `PolicyError` when it counted else."""
        if not isinstance(previous, OrderPolicy) or previous.per != self.per:
            raise PolicyError(f"{self.name}: calls were not counted in this way", hint="give the rule another name")
        self._pasts = previous._pasts.limited_as(self._pasts)


@dataclass(frozen=True, slots=True)
class _Term:
    """An earlier call that a rule speaks of. ``same`` has by argument of the later call the one of the earlier.

    ``key`` tells it from others.
    """

    tools: tuple[str, ...]
    same: Mapping[str, str]
    within: int | None
    condition: Condition | None
    key: str

    @classmethod
    def of(cls, earlier: EarlierCall, owner: str) -> _Term:
        result = earlier if isinstance(earlier, EarlierResult) else EarlierResult(earlier.tool)
        names = earlier.same or ()
        same = names if isinstance(names, Mapping) else {name: name for name in _listed(names)}
        condition = None if result.result is None else condition_of(result.result, rule=f"{owner}: result")
        tools = tuple(_listed(earlier.tool))
        if not tools:
            raise PolicyError(f"{owner}: tool is empty", hint="write the name of a tool")
        key = fingerprint([tools, dict(same), result.result])
        return cls(tools, same, result.within, condition, key)

    def value(self, action: Action, *, there: bool = False) -> str | None:
        """The digest of the arguments that must be the same, as the later call has them or ``there`` in the earlier."""
        return _digest(action, list(self.same.values() if there else self.same))

    def fits(self, action: Action, text: str | None) -> bool:
        """Returns whether the result of ``action`` is as it must be. One that cannot be judged is not."""
        if self.condition is None or text is None or len(text) > MAX_RESULT:
            return self.condition is None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        result = action.changed(point=Point.POST_TOOL_CALL, text=text, context={"result": value})
        try:
            return self.condition.holds(result)
        except Exception:  # noqa: BLE001 - whatever cannot be judged permits nothing
            return False

    def lacks(self, action: Action, past: _Past) -> tuple[str, bool] | None:
        """The reason why ``action`` comes too early, and whether it may be made once that is done; None where it does not."""
        tool, same, later = " or ".join(self.tools), self._same_words(), action.name[:80]
        value = self.value(action)
        if value is None:
            return f"Give {' and '.join(self.same)}: it must be that of an earlier call of {tool}.", False
        if not any(rollout_key(action)):
            reason = (
                f"Call {tool} first. This call names no rollout, session or run, so none is known to come before it."
            )
            return reason, False
        last, unread = past.last(self.key + value)
        if last is None and unread:
            return f"Read the result of {tool} before you call {later}: do not call both in one turn.", True
        if last is None:
            return f"Call {tool}{same} first, and {later} once you have read the result.", True
        if not last.fits:
            return f"The last result of {tool}{same} does not permit this (needed: {_in_words(self.condition)}).", False
        if self.within is not None and past.calls - last.calls >= self.within:
            return (
                f"Call {tool}{same} again first: its result is older than the last {counted(self.within, 'call')}.",
                True,
            )
        return None

    def words(self, verb: str) -> str:
        """The term in English: ``tool has returned with the same order_id``."""
        within = "" if self.within is None else f" within the last {counted(self.within, 'call')}"
        result = "" if self.condition is None else f" (last result: {_in_words(self.condition)})"
        return f"{' or '.join(self.tools)} {verb}{self._same_words()}{within}{result}"

    def _same_words(self) -> str:
        names = [here if here == there else f"{here} (there {there})" for here, there in self.same.items()]
        return f" with the same {' and '.join(names)}" if names else ""


def _in_words(source: Any) -> str:
    """A condition in one line of English; CEL as it is."""
    source = source.source if isinstance(source, Condition) else source
    if not isinstance(source, Mapping):
        return str(source)
    if "all" in source or "any" in source:
        return (" and " if "all" in source else " or ").join(map(_in_words, source.get("all") or source["any"]))
    if "not" in source:
        return f"not ({_in_words(source['not'])})"
    name = ".".join(_listed(source["field"])).removeprefix("context.")
    tests = [f"{key.replace('_', ' ')} {json.dumps(value)}" for key, value in source.items() if key != "field"]
    return f"{name} {' and '.join(tests)}"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _ids(action: Action) -> list[str]:
    """The ids by which the result of a call is told to be its own."""
    return [key[:MAX_ID] for key in (action.operation_id, action.call_id) if key]


def _digest(action: Action, arguments: Sequence[str]) -> str | None:
    """A digest of the values of ``arguments``; None where one is missing or has no form to compare."""
    try:
        return fingerprint([action.arguments[argument] for argument in arguments])
    except (KeyError, NotCanonical, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Returned:
    """A result: its number among the events of the rollout, the calls made until then, and whether it is as it must be."""

    event: int
    calls: int
    fits: bool
    operation: str | None


@dataclass(slots=True)
class _Past:
    """The memory of one rollout; bounded, whatever happens in it.

    ``called`` has by term the values with which its tools were called, ``granted`` by operation the value under which a limited
    call counts, ``results`` by term and value the last result that a model has read, and one since then.
    """

    events: int = 0
    calls: int = 0
    last_read: int = 0
    open: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, list[_Returned]] = field(default_factory=dict[str, list[_Returned]])
    called: dict[str, dict[str, bool]] = field(default_factory=dict[str, dict[str, bool]])
    granted: dict[str, str] = field(default_factory=dict[str, str])

    def call(self, action: Action) -> None:
        """Notes a call that was allowed; the framework may repeat it."""
        self.calls += action.operation_id is None or action.operation_id not in self.open
        for key in _ids(action):
            keep_newest(self.open, key, action.name, MAX_OPEN)

    def note(self, key: str, fits: bool, operation: str | None) -> None:
        """Notes a result. The last that a model has read stays beside it."""
        self.events += 1
        last, _ = self.last(key)
        kept = [] if last is None else [last]
        keep_newest(self.results, key, [*kept, _Returned(self.events, self.calls, fits, operation)], MAX_VALUES)

    def last(self, key: str) -> tuple[_Returned | None, bool]:
        """The last result that a model has read, and whether there is one that none has."""
        results = self.results.get(key, [])
        read = [result for result in results if not self.last_read or result.event < self.last_read]
        return (read[-1] if read else None), len(read) < len(results)
