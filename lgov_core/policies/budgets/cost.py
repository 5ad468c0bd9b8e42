"""CostControlPolicy: budgets of money, tokens, calls and time."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any, ClassVar, Final
from zoneinfo import ZoneInfo

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.governor.judging import caller_gone
from lgov_core.governor.options import in_dry_run
from lgov_core.policies.budgets.counting import (
    COMMON,
    NOT_MADE,
    Judgements,
    Per,
    count_key,
    decided,
    now_of,
)
from lgov_core.policies.budgets.ledger import (
    NANO,
    Amount,
    Balance,
    BudgetLimits,
    Dollars,
    Lack,
    Ledger,
    ModelPrice,
    Price,
    StoredPolicy,
    find,
    price_of,
)
from lgov_core.policies.options import Count, PolicyOptions, Positive, Text, takes
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point, ToolOutcome

_LOG = logging.getLogger("lgov.policies")


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts that a budget has spent, and has set aside for calls under way. ``seconds`` since its first action."""

    cost_usd: float
    tokens: int
    calls: int
    reserved_cost_usd: float
    reserved_tokens: int
    reserved_calls: int
    seconds: float


class CostOptions(PolicyOptions, frozen=True):
    """The options of a `CostControlPolicy`."""

    paths = kept = addresses = ("ledger",)
    in_python = MappingProxyType({"ledger": (os.PathLike,), "clock": (Callable,)})

    max_cost_usd: Positive | None = None
    max_tokens: Count | None = None
    max_calls: Count | None = None
    max_seconds: Positive | None = None
    per: Per = "rollout"
    prices: Mapping[Text, ModelPrice] | None = None
    unknown_model_price: ModelPrice | None = None
    tool_costs: Mapping[Text, Dollars] | None = None
    max_output_tokens: Count = 4096
    bytes_per_token: Positive = 1.0
    ledger: str | os.PathLike[str] | None = None
    day: Text | None = None
    max_budgets: Count = 100_000
    abort_after: Count | None = None
    clock: Callable[[], float] | None = None
    name: Text = "CostControlPolicy"


class CostControlPolicy(StoredPolicy):
    """Keeps what agents spend within a budget.

    The limits, at least one, are ``max_cost_usd``, ``max_tokens`` (prompts and replies), ``max_calls`` (of models and tools
    together; a rule's ``on`` narrows it) and ``max_seconds`` (since the budget's first action). There is a budget for each
    ``rollout`` (all its attempts), ``attempt``, ``session``, ``conversation`` (its session, or else its rollout) or
    ``agent``, or one for all (``global``): ``per``. Actions without the id in question share a budget. With ``day``, the
    name of a time zone (``UTC``, ``Europe/Berlin``), the limits are those of each calendar day there: a call counts on the
    day it begins.

    Before a model call the policy reserves the most that the call may use, so that calls cannot overspend together: a token
    for every ``bytes_per_token`` bytes of the prompt, and the reply's own limit or else ``max_output_tokens``. After the call
    its reported usage is spent instead, or the whole reservation where none is reported, or the call broke off. It is given
    back when a policy or the server (by an error status) refuses the call, or no connection was made.

    ``prices`` maps model names or globs to ``{"input": dollars, "output": dollars}`` for a million tokens. Under
    ``max_cost_usd`` a model without a price is denied, unless ``unknown_model_price`` is given. ``tool_costs`` maps tool
    names or globs to dollars a call; other tools cost nothing.

    ``ledger`` is the path of a SQLite file (made when missing) that several processes spend from, or, for several machines,
    the address ``postgresql://user@host/database`` of a database; policies of the same name share its budgets. Without it
    the process remembers ``max_budgets`` budgets; beyond them the oldest ended one is dropped, and refused if it comes
    back. ``abort_after`` refusals of one budget in a row end the run. ``clock`` gives seconds (monotonic; wall time with a
    ledger, which outlives it, or a day).

    May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a meaning.
    """

    reads_replies: ClassVar[bool] = False  # only their usage
    default_points: ClassVar[tuple[Point, ...]] = (
        Point.PRE_MODEL_CALL,
        Point.POST_MODEL_CALL,
        Point.PRE_TOOL_CALL,
        Point.POST_TOOL_CALL,
    )

    settles_at: ClassVar[Mapping[Point, Point]] = {Point.PRE_MODEL_CALL: Point.POST_MODEL_CALL}

    @takes(CostOptions)
    def __init__(self, options: CostOptions) -> None:
        self.name = options.name
        self.per = options.per
        if options.max_cost_usd is options.max_tokens is options.max_calls is options.max_seconds is None:
            hint = "give max_cost_usd, max_tokens, max_calls or max_seconds"
            raise PolicyError(f"{self.name}: there is no limit", hint=hint)
        nano_usd = None if options.max_cost_usd is None else int(options.max_cost_usd * NANO)
        self.limits = BudgetLimits(nano_usd, options.max_tokens, options.max_calls, options.max_seconds)
        self.prices = {glob: price_of(price) for glob, price in (options.prices or {}).items()}
        unknown_price = options.unknown_model_price
        self.unknown_model_price = None if unknown_price is None else price_of(unknown_price)
        self.tool_costs = {glob: math.ceil(cost * NANO) for glob, cost in (options.tool_costs or {}).items()}
        self.max_output_tokens = options.max_output_tokens
        self.bytes_per_token = options.bytes_per_token
        in_memory = options.ledger is None or in_dry_run()
        path = None if in_memory or options.ledger is None else os.fspath(options.ledger)
        self._ledger = Ledger(path, self.name, max_budgets=options.max_budgets)
        self.day, self._zone, self._today = options.day, _zone(self.name, options.day), ""
        self._clock = options.clock or (time.monotonic if in_memory and self._zone is None else time.time)
        # A file may have to be waited for, so the governor watches the time.
        self.bounded = in_memory
        self.abort_after, self._refusals = options.abort_after, BoundedDict[str, int](options.max_budgets)
        self._judgements = Judgements()
        self._asked_before_models = False

    # ------------------------------------------------------------------ judging

    def judge(self, action: Action) -> Decision | None:
        """A deny when the budget does not reach for the call; otherwise None, and what the call may use is set aside."""
        if action.point is Point.PRE_MODEL_CALL:
            self._asked_before_models = True
            return self._before_model(action)
        if action.point is Point.PRE_TOOL_CALL:
            return self._reserve(action, Amount(find(self.tool_costs, action.name) or 0, 0, 1))
        if action.point is Point.POST_MODEL_CALL:
            return self._settle(action, self._actual(action))
        if action.point is Point.POST_TOOL_CALL:
            return self._settle(action, None)
        return None

    def _before_model(self, action: Action) -> Decision | None:
        try:
            prompt = most_input_tokens(action.arguments, self.bytes_per_token)
            reply = most_output_tokens(action.arguments, self.max_output_tokens)
        except (ValueError, TypeError, RecursionError):
            return self.deny("cost-unclear", "The size of this prompt cannot be determined, so neither can its cost.")
        price = self._price(action.name)
        if price is None and self.limits.nano_usd is not None:
            return self.deny(
                "cost-price",
                f"There is a budget in dollars, but no price for the model {action.name[:80]!r}: it must be given in prices,"
                " or as unknown_model_price",
            )
        cost = 0 if price is None else price.nano_usd(prompt, reply)
        return self._reserve(action, Amount(cost, prompt + reply, 1))

    def _price(self, model: str) -> Price | None:
        price: Price | None = find(self.prices, model)
        return self.unknown_model_price if price is None else price

    def _actual(self, action: Action) -> Amount | None:
        used = tokens_used(action.arguments)
        if used is None:
            return None
        price = self._price(action.name)
        if price is None and self.limits.nano_usd is not None:
            return None  # a price that vanished between the two points: what was set aside is the better figure
        return Amount(0 if price is None else price.nano_usd(*used), sum(used), 1)

    def _reserve(self, action: Action, amount: Amount) -> Decision | None:
        # Of this very call, before a transform: something was set aside, the budget did not reach.
        reserved, refused = self._judgements.note(action) or (False, False)
        key = self._key(count_key(action, self.per))
        try:
            short = self._ledger.reserve(
                key, action.operation_id, amount, self.limits, now_of(self.name, self._clock), again=reserved
            )
        except PolicyError as error:
            return self.store_failed("cost-ledger", "The budget cannot be read, so nothing may be spent", error)
        if short is not None:
            refusals = (self._refusals.get(key) or 0) + (not refused)
            self._refusals.put(key, refusals)
            self._judgements.begin(action, (reserved, True))
            ends = self.abort_after is not None and refusals >= self.abort_after
            return self._refuse(action, amount, *short).changed(abort=ends)
        if not refused:
            self._refusals.pop(key)
        self._judgements.begin(action, (True, refused))
        if caller_gone().is_set() and action.operation_id is not None:  # the call was denied for want of an answer
            self._ledger.release(action.operation_id)
        return None

    def _settle(self, action: Action, actual: Amount | None) -> Decision | None:
        if not self._judgements.begin(action):
            return None
        key, now = self._key(count_key(action, self.per)), now_of(self.name, self._clock)
        try:
            if action.operation_id is not None:
                self._ledger.settle(key, action.operation_id, actual, now)
            elif actual is not None and not self._asked_before_models:
                # The policy is not asked before calls, so nothing was set aside for this one.
                self._ledger.settle(key, f"unasked {id(action)} {now}", actual, now)
        except PolicyError as error:
            # The call is over, and what was set aside for it counts as spent until then: nothing gets cheaper by this.
            _LOG.warning("%s: what a call used is not booked yet: %s", self.name, error.message)
            reason = "What the call used is booked once the budget can be written again."
            return Decision(Effect.WARN, self.name, "cost-ledger", reason)
        return None

    def _key(self, name: str) -> str:
        """The budget called ``name``: with ``day`` the one of today."""
        if self._zone is None:
            return name
        today = datetime.fromtimestamp(now_of(self.name, self._clock), self._zone).date().isoformat()
        if today > self._today:
            self._today = today
            self._ledger.ended_before(today)
        return f"{today} {name}"

    # ------------------------------------------------------------------ refusing

    def _refuse(self, action: Action, amount: Amount, lack: Lack, balance: Balance) -> Decision:
        total, limits = balance.total, self.limits
        if self.per == "global":
            whose = "all actions"
        else:
            common = count_key(action, self.per) == COMMON
            whose = f"all actions without a {self.per}" if common else f"this {self.per}"
        whose += "" if self.day is None else f" for this day ({self.day})"
        match lack:
            case "seconds":
                spent_time = f"The time of {whose} is up: {balance.elapsed_s:.1f} of {limits.seconds:g} s"
                return self.deny("time-budget", f"{spent_time}. Finish with what you have.")
            case "budgets":
                reason = "Too many budgets at once, so none can be opened; raise max_budgets or use a ledger file"
                return self.deny("cost-budgets", reason)
            case "closed":
                return self.deny("cost-closed", f"The budget of {whose} was closed when it ended; begin a new one")
            case "cost":
                figures = _figures(total.nano_usd / NANO, (limits.nano_usd or 0) / NANO, amount.nano_usd / NANO, "USD")
            case "tokens":
                figures = _figures(total.tokens, limits.tokens or 0, amount.tokens, "tokens")
            case "calls":
                figures = _figures(total.calls, limits.calls or 0, amount.calls, "calls")
        reason = f"The budget of {whose} does not reach: {figures}. Finish with what you have."
        return self.deny(f"{lack.removesuffix('s')}-budget", reason)

    # ------------------------------------------------------------------ after the call

    def observe(self, event: Any) -> None:
        """Gives back what was set aside for a call that was not made, and closes the budget of what has ended."""
        if isinstance(event, ToolOutcome):
            operation = event.action.operation_id
            if operation is not None and event.action.point is Point.PRE_TOOL_CALL:
                if event.status in NOT_MADE:
                    self._ledger.release(operation)
                else:
                    self._ledger.settle(
                        self._key(count_key(event.action, self.per)), operation, None, now_of(self.name, self._clock)
                    )
            return
        if isinstance(event, ModelCallFailed):
            operation = event.action.operation_id
            if operation is not None and event.refused:
                self._ledger.release(operation)
            elif operation is not None:  # what may have run may be charged
                self._ledger.settle(
                    self._key(count_key(event.action, self.per)), operation, None, now_of(self.name, self._clock)
                )
            return
        judged = decided(event)
        if judged is None:
            return
        action, decision = judged
        # Only what this very judgement set aside: an operation id that is used twice must not free the call before.
        reserved, _ = self._judgements.end(action) or (False, False)
        if action.point in (Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL):
            if reserved and decision.blocks and action.operation_id is not None:
                self._ledger.release(action.operation_id)
        elif action.point is Point.AGENT_SHUTDOWN and self.per in ("rollout", "attempt"):
            self._ledger.ended(self._key(count_key(action, self.per)))

    def ping(self) -> None:
        """Raises `PolicyError` while the ledger cannot be used."""
        self._ledger.ping()

    def flush(self) -> None:
        """Books what could not be booked before, or logs that it is never booked."""
        self._ledger.flush()

    def release(self, operation_id: str) -> None:
        """Gives back what was set aside for a call that, as the caller knows, was never made and never charged."""
        self._ledger.release(operation_id)

    def continue_from(self, previous: object) -> None:
        """Goes on with the budgets of ``previous``, the policy that this one replaces. Another file keeps its own.

        Raises `PolicyError` when what was spent cannot be taken over.
        """
        if not isinstance(previous, CostControlPolicy) or (previous.per, previous.day) != (self.per, self.day):
            raise PolicyError(
                f"{self.name}: what was spent was not counted per {self.per}{f' and day in {self.day}' if self.day else ''}",
                hint="give the rule another name to begin anew",
            )
        if previous._ledger.path is not None:
            self._ledger.close()
            if (previous._ledger.path, previous._ledger.owner) == (self._ledger.path, self._ledger.owner):
                self._ledger = previous._ledger  # with what it has to book
            return
        if self._ledger.path is not None:
            raise PolicyError(
                f"{self.name}: what was spent is in memory, not in the ledger", hint="restart the program to begin anew"
            )
        self._ledger, self._judgements = previous._ledger, previous._judgements
        self._clock = previous._clock

    # ------------------------------------------------------------------ for people

    def spent(self, scope_id: str | None = None) -> Spent:
        """Returns the amounts spent by the rollout (or session, or agent) ``scope_id``, or by all of them together.

        The budget of actions without an id is called ``""``; that of an attempt ``ROLLOUT/1``. With ``day`` a budget is that of
        today, and all are those of all days. All figures are of one
        moment. Callable from any thread. Raises `PolicyError` when the ledger file cannot be read.
        """
        key = None if scope_id is None else self._key(scope_id)
        balance = self._ledger.balance(key, now_of(self.name, self._clock))
        spent, reserved = balance.spent, balance.reserved
        return Spent(
            spent.nano_usd / NANO, spent.tokens, spent.calls,
            reserved.nano_usd / NANO, reserved.tokens, reserved.calls, balance.elapsed_s,
        )  # fmt: skip

    def reset(self, scope_id: str | None = None) -> None:
        """Starts the budget of ``scope_id``, or every one, anew. Callable from any thread.

        What calls under way use is spent from the new budget when they say so.
        """
        self._ledger.reset(None if scope_id is None else self._key(scope_id))


#: Where adapters and endpoints write how long a reply may be, and how many replies are asked for.
_MOST: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens", "max_new_tokens")
_REPLIES: Final = ("n", "best_of")
_OPTIONS: Final = ("options", "settings", "model_settings", "sampling")
#: More tokens than this are not a count of anything.
_ABSURD: Final = 2**40


def most_input_tokens(arguments: Mapping[str, Any], bytes_per_token: float) -> int:
    """An upper bound for the tokens of a prompt: the bytes of everything in it as JSON, ``bytes_per_token`` to a token.

    No byte-level tokenizer makes more than one token of a byte. Raises `ValueError` or `RecursionError` for what has no
    JSON form.
    """
    text = json.dumps(
        _with_text_keys(arguments),
        ensure_ascii=False,
        default=lambda value: _with_text_keys(value) if isinstance(value, Mapping) else repr(value),
    )
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / bytes_per_token)


def most_output_tokens(arguments: Mapping[str, Any], otherwise: int) -> int:
    """The most tokens that the reply may have: what the call itself says, or ``otherwise``; times the replies asked for."""
    places = [arguments, *(arguments[name] for name in _OPTIONS if isinstance(arguments.get(name), Mapping))]
    limits = [count for holder in places for name in _MOST if (count := _limit(holder.get(name))) is not None]
    replies = [count for holder in places for name in _REPLIES if (count := _limit(holder.get(name))) is not None]
    return max(limits, default=otherwise) * max(replies, default=1)


def tokens_used(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """The tokens of prompt and reply that a finished call says it used; None when it does not say anything usable.

    A call that says it used nothing at all says nothing usable: every prompt has a token.
    """
    usage = arguments.get("usage")
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    if type(read) is not int or type(written) is not int:
        return None
    return (read, written) if min(read, written) >= 0 and 0 < read + written < _ABSURD else None


def _limit(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return math.ceil(min(value, _ABSURD))  # a limit beyond all measure is not a small one


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()}


def _zone(name: str, day: str | None) -> tzinfo | None:
    """The time zone that an option names."""
    if day in (None, "UTC"):
        return day and UTC
    try:
        return ZoneInfo(day)
    except (LookupError, ValueError, OSError) as error:
        hint = "write a name such as UTC or Europe/Berlin; without the system's tzdata: pip install tzdata"
        raise PolicyError(f"{name}: there is no time zone {day!r}", hint=hint) from error


def _figures(total: float, limit: float, needed: float, unit: str) -> str:
    def said(amount: float) -> str:
        return f"{amount:,}" if isinstance(amount, int) else f"{amount:.6f}".rstrip("0").rstrip(".")

    remaining = said(max(limit - total, 0))
    return (
        f"{said(total)} of {said(limit)} {unit} are spent or set aside, {remaining} left; this may take {said(needed)}"
    )
