"""ApprovalPolicy: a person or a callback has to approve exactly this call."""

from __future__ import annotations

import contextvars
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from lgov_core._util.files import os_user
from lgov_core._util.json_text import NotCanonical, canonical_json, fingerprint
from lgov_core.errors import PolicyError
from lgov_core.governor.judging import caller_gone
from lgov_core.governor.options import APPROVED, CARRIED, REJECTED, SHADOW, UNNAMED, in_dry_run
from lgov_core.governor.patterns import matches_any
from lgov_core.places import DEFAULT_APPROVALS
from lgov_core.policies.approvals.answers import KEY_PREFIX, Inquiry
from lgov_core.policies.approvals.notices import Notice, answer_command
from lgov_core.policies.approvals.requests import (
    ApprovalRequest,
    ApprovalRequests,
    Asking,
    described,
)
from lgov_core.policies.budgets.counting import NOT_MADE, Judgements, Per, count_key, decided, now_of
from lgov_core.policies.budgets.ledger import StoredPolicy
from lgov_core.policies.conversation import Conversations, user_texts_of
from lgov_core.policies.options import Count, PolicyOptions, Positive, Text, Texts, takes
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome, new_id

#: Is asked about one call, and answers True or False; anything else is no.
Approver = Callable[[ApprovalRequest], bool | Awaitable[bool]]

#: How often a call that waits looks for the answer, in seconds.
_LOOKS_EVERY_S = 0.25
#: Conversations whose last request is remembered.
_CONVERSATIONS = 1_000
#: Characters of the user's request, and of what is asked, that a person is shown.
_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """The findings of one judgement: about which call, the request behind it, and the answer."""

    digest: str
    request: ApprovalRequest
    decision: Decision
    is_new: bool = False


class ApprovalOptions(PolicyOptions, frozen=True):
    """The options of an `ApprovalPolicy`."""

    paths = kept = ("store",)
    defaults_in_files = MappingProxyType({"store": DEFAULT_APPROVALS})
    in_python = MappingProxyType(
        {"approver": (Callable,), "clock": (Callable,), "store": (ApprovalRequests, os.PathLike)}
    )

    tools: Texts = ("*",)
    approver: Approver | None = None
    timeout_s: Positive = 300.0
    expires_s: Positive = 3600.0
    wait_s: Annotated[float, Meta(ge=0, le=1e15, description="a number, 0 or more")] = 0.0
    per: Literal["requester", Per] = "requester"
    command: Texts = ()
    webhook: Annotated[str, Meta(pattern="^https?:", description="an address that begins with https://")] | None = None
    store: ApprovalRequests | str | os.PathLike[str] | None = None
    clock: Callable[[], float] = time.time
    name: Text = "ApprovalPolicy"
    unattended: Literal["wait", "deny"] = "wait"
    question: Text | None = None
    approvers: Count = 1
    by: Texts = ()
    teams: Annotated[Mapping[Text, Texts], Meta(description="names of people by team")] = MappingProxyType({})
    via: Literal["lgov", "framework"] = "lgov"


class ApprovalPolicy(StoredPolicy):
    """Lets a tool be called only after a person or a callback has approved exactly that call.

    ``tools`` are globs for the tools that need an approval. An approval is for one call of this tool, with these arguments,
    by this agent, and lapses after ``expires_s`` seconds. It serves the ``requester`` for whom it was asked: the ``user`` of
    the action's context, else the session, else the rollout that the program entered; a program that names none of them can
    use it when it is run again, but not AutoGen's teams. ``per`` binds it to something else; only with ``global`` can one
    user's approval serve another. A change of this rule's name or options makes every call a new request.

    Without ``approver`` the call escalates: it does not run, and the model reads the id of the request. The request waits
    in ``pending()`` until ``approve`` or ``reject`` answers it; with ``store`` (a path, or `ApprovalRequests`) also from
    another program. The same call, made again, is then evaluated by every policy. With ``wait_s`` the call itself first
    waits up to that many seconds; with ``unattended: deny`` only where a person can be asked: by a ``command``, a
    ``webhook``, or the terminal that standard error goes to. In shadow mode no person is asked: the decision says one
    would have been.

    ``question`` is what the person reads first, with ``$name`` for the value of an argument. ``approvers`` is how many
    people have to approve, ``by`` the names of those who may answer, and of ``teams``; both take approvers with keys
    (`ApprovalRequests.add_approver`). A person cannot answer with a key for a call of their own: the ``user`` of the
    action's context, its session or whose it is (``NAME/...``), its rollout, or who runs the program.

    With ``via: framework`` LangGraph and the OpenAI Agents SDK carry the question, and no call waits: the run pauses with
    an interrupt or an interruption. An answer that comes back with the resumed run counts, and so does an answer in the
    store. Where the framework cannot carry the question, the call does what ``wait_s`` says.

    ``approver`` (in Python) is a function or coroutine function that gets a copy of the arguments and has ``timeout_s``
    seconds. True approves; False, anything else, an exception and a timeout deny.

    Each new request, and each begin of a wait, is logged with the command that answers it. ``command`` (a list of words)
    gets the request, arguments included, as JSON on standard input, and ``webhook`` (a web address) by POST, signed with
    the key in the file beside the store (``….webhook-key``) and tried four times.

    The rule is evaluated after all others, on the arguments as the transforms left them, and only if no other denies.

    May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a meaning, and from
    the methods for people.
    """

    permits = True
    listens_at: ClassVar[tuple[Point, ...]] = (Point.PRE_MODEL_CALL,)
    default_points: ClassVar[tuple[Point, ...]] = (*listens_at, Point.PRE_TOOL_CALL)
    #: Sets and governors ask it after all others.
    deferred: ClassVar[bool] = True
    bounded = False  # a callback is waited for, and so is a file

    @takes(ApprovalOptions)
    def __init__(self, options: ApprovalOptions) -> None:
        self.name = options.name
        self.tools = tuple(options.tools)
        self.per = options.per
        self.expires_s, self.wait_s, self._answer_s = options.expires_s, options.wait_s, options.timeout_s
        self._approver, self._clock = options.approver, options.clock
        self._tells = options.unattended == "wait" or bool(options.command or options.webhook)
        # The governor waits a little longer than the policy.
        self.timeout_s = self._answer_s + 2 if self._approver is not None else self.wait_s + 2 if self.wait_s else None
        if isinstance(options.store, ApprovalRequests):
            self.requests = options.store
        else:
            self.requests = _requests(options)
        self.via, self._question = options.via, options.question
        if self.via == "framework" and (self._approver or not (self.requests.place or in_dry_run())):
            raise PolicyError(
                f"{self.name}: via framework asks people, who answer in a store",
                hint="write store: .lgov/approvals.db, and no approver",
            )
        self._answered_by = Inquiry.of_rule(
            {"name": self.name, "approvers": options.approvers, "by": options.by, "teams": options.teams}
        )
        if self._answered_by.by and len(self._answered_by.by) < options.approvers:
            raise PolicyError(f"{self.name}: approvers is {options.approvers}, and by names fewer people")
        answered = [[options.approvers, list(self._answered_by.by)]] if self._answered_by.needs_key else []
        self._settings = fingerprint([self.name, self.per, self.expires_s, list(self.tools), *answered])
        self._judgements, self._used = Judgements(), Judgements()
        #: What users wrote, for the person who is asked.
        self._texts = Conversations(_CONVERSATIONS)

    # ------------------------------------------------------------------ judging

    def judge(self, action: Action) -> Decision | None:
        """An allow for an approved call, else a deny or an escalate; None for what needs no approval."""
        if action.point is Point.PRE_MODEL_CALL:
            self._texts.note_said(action, user_texts_of(action)[-1:])
        if action.point is not Point.PRE_TOOL_CALL or not matches_any(action.name, self.tools):
            return None
        if action.context.get(SHADOW):  # nothing comes of this judgement
            return self.escalate("approval-pending", "A person would have been asked to approve this call.")
        try:
            content = self._content(action)
            digest = fingerprint(content)
        except (NotCanonical, RecursionError) as error:
            reason = f"This call cannot be approved, because {error}. Use plain JSON values as arguments."
            return self.deny("approval-arguments", reason)
        inquiry: _Asked | None = self._judgements.note(action)
        if inquiry is not None and inquiry.digest == digest:
            return inquiry.decision  # this very call, in this very judgement
        if inquiry is not None:
            self._undo(inquiry)
        try:
            inquiry = (
                self._ask_person(content, digest, action)
                if self._approver is None
                else self._ask_approver(content, digest)
            )
        except PolicyError as error:
            return self.store_failed("approval-store", "Approvals cannot be read, so nothing is approved", error)
        if inquiry is None:
            return self.deny("approval-full", "Too many calls are waiting for approval. Do something else.")
        self._judgements.begin(action, inquiry)
        return inquiry.decision

    def _content(self, action: Action) -> dict[str, Any]:
        return {
            "format": 1,
            "policy": self._settings,
            "point": action.point.value,
            "kind": action.kind,
            "name": action.name,
            "agent": action.agent,
            "arguments": action.arguments,
            "scope": {self.per: _requester(action) if self.per == "requester" else count_key(action, self.per)},
        }

    def _inquiry(self, action: Action) -> Inquiry:
        """The circumstances of the call, for the person who is asked about it."""
        names = {name: str(value) for name, value in action.arguments.items()}
        usual = f"{action.agent or 'The agent'} asks to run {action.name}."
        return replace(
            self._answered_by,
            question=Template(self._question).safe_substitute(names)[:_SHOWN] if self._question else usual,
            user_text=self._texts.request_of(action)[:_SHOWN],
            requesters=_requesters(action),
            calls=(str(action.context[CARRIED]),) if self._is_carried(action) else (),
        )

    def _ask_person(self, content: dict[str, Any], digest: str, action: Action) -> _Asked | None:
        answer = self._answered_request(content, digest, action)
        if answer is None:
            return None
        request, is_new = answer
        if fingerprint(content) != digest:  # the caller changed the arguments while it waited
            if request.state == "approved":
                self.requests.give_back(request.request_id)
            decision = self.deny("approval-changed", "The arguments changed while approval was asked for")
        elif request.state == "approved":
            decision = self._approved(request, request.answerers, request.answered)
        elif request.state == "rejected":
            decision = self.rejection(request)
        else:
            is_carried = self._is_carried(action)
            late = f"; there was no answer within {self.wait_s:g} s" if self.wait_s and not is_carried else ""
            if late and self._patience_s(action) < self.wait_s:
                late = "; no person can be asked here: it is answered by lgov approvals, before the next run"
            if _is_unnamed(action) and str(action.session_id) in content["scope"][self.per]:
                late += (
                    "; the approval serves this team only, and a team has another id in the next run: for that, the program"
                    " names a user or a session, or the rule says per: global"
                )
            reason = f"a person has to approve this call first (request {request.request_id}){late}"
            decision = self.escalate("approval-pending", reason, Severity.MEDIUM)
            if is_carried:
                decision = decision.changed(question=OpenQuestion(request, self.requests))
        if self.requests.place:
            command = answer_command(self.requests.place, request.request_id, keyed=request.inquiry.keyed)
            decision = decision.changed(approval=command, request=request.request_id)
        return _Asked(digest, request, decision, is_new)

    def rejection(self, request: ApprovalRequest) -> Decision:
        """The denial of a call that a person rejected."""
        comment = f": {request.reason}" if request.reason else ""
        by = request.answers[-1] if request.answers else request.answered_by
        return self.deny(REJECTED, f"{by} rejected this call{comment}")

    def _is_carried(self, action: Action) -> bool:
        """Returns whether the framework carries the question about this call."""
        return self.via == "framework" and bool(action.context.get(CARRIED))

    def _patience_s(self, action: Action) -> float:
        """How long a call waits for its answer: not at all where no person can be asked, or the framework asks."""
        return self.wait_s if (self._tells or _has_terminal()) and not self._is_carried(action) else 0.0

    def _answered_request(
        self, content: dict[str, Any], digest: str, action: Action
    ) -> tuple[ApprovalRequest, bool] | None:
        """The request for this call and whether it is new, once it is answered, or after ``wait_s`` seconds."""
        gone, end, is_new, begins = caller_gone(), time.monotonic() + self._patience_s(action), False, True
        asking = Asking(content, digest, self._inquiry(action), self.expires_s, action.rollout_id)
        while True:
            waits_s = max(end - time.monotonic(), 0.0)
            answer = self.requests.ask(replace(asking, waits_s=0.0 if gone.is_set() else waits_s, begins=begins))
            if answer is None:
                return None
            is_new, begins = is_new or answer[1], False
            if answer[0].state == "approved" and gone.is_set():
                self.requests.give_back(answer[0].request_id)
            if answer[0].state != "pending" or waits_s == 0 or gone.is_set():
                return answer[0], is_new
            gone.wait(min(waits_s, _LOOKS_EVERY_S))

    def _ask_approver(self, content: dict[str, Any], digest: str) -> _Asked:
        now = now_of(self.name, self._clock)
        copy = json.loads(canonical_json(content))
        request = ApprovalRequest(new_id("apr"), digest, copy, now, "pending", now + self._answer_s)
        answer = _answer_of(self._approver, request, self._answer_s)
        # The caller might have changed the arguments while the approver was deciding.
        if fingerprint(content) != digest:
            decision = self.deny("approval-changed", "The arguments changed while approval was asked for")
        elif answer is True:
            decision = self._approved(request, "the approver", f"request {request.request_id}")
        elif answer is False:
            decision = self.deny(REJECTED, "The approver rejected this call")
        else:
            decision = self.deny("approval-failed", f"The approver gave no answer: {answer}")
        return _Asked(digest, request, decision)

    def _approved(self, request: ApprovalRequest, by: str, answered: str) -> Decision:
        return Decision(Effect.ALLOW, self.name, APPROVED, f"{by} approved it ({answered})")

    # ------------------------------------------------------------------ after the call

    def ping(self) -> None:
        """Raises `PolicyError` while nobody can be asked."""
        self.requests.ping()

    def observe(self, event: Any) -> None:
        """Gives an approval back, or withdraws a request, when the call was not made because of something else."""
        if isinstance(event, ToolOutcome):
            used: _Asked | None = self._used.end(event.action)
            if used is not None and event.status in NOT_MADE:
                self._undo(used)
            return
        judged = decided(event)
        if judged is None or judged[0].point is not Point.PRE_TOOL_CALL:
            return
        action, decision = judged
        inquiry: _Asked | None = self._judgements.end(action)
        if inquiry is None:
            return
        if not decision.blocks:
            self._used.begin(action, inquiry)
        elif inquiry.decision.effect is Effect.ALLOW or (inquiry.is_new and decision.effect is Effect.DENY):
            self._undo(inquiry)

    def _undo(self, inquiry: _Asked) -> None:
        if self._approver is not None:
            return
        if inquiry.decision.effect is Effect.ALLOW:
            self.requests.give_back(inquiry.request.request_id)
        elif inquiry.is_new:
            self.requests.withdraw(inquiry.request.request_id, *inquiry.request.inquiry.calls)

    def continue_from(self, previous: object) -> None:
        """Goes on with what users wrote to ``previous``, the policy that this one replaces, and its requests in memory.

        Approvals hold on only if name and settings are the same.
        """
        if isinstance(previous, ApprovalPolicy):
            self._texts = previous._texts
            if previous.requests.path is None and self.requests.path is None:
                self.requests = previous.requests

    # ------------------------------------------------------------------ for people

    def pending(self) -> list[ApprovalRequest]:
        """The requests that wait for an answer, oldest first."""
        return self.requests.pending()

    def approve(self, request_id: str, *, by: str) -> ApprovalRequest:
        """Approves a pending request in the name of ``by``. Raises `PolicyError` when it is not pending any more."""
        return self.requests.approve(request_id, by=by)

    def reject(self, request_id: str, *, by: str, reason: str = "") -> ApprovalRequest:
        """Rejects a request that is pending, or approved and not used; the model reads ``reason``. Raises `PolicyError`."""
        return self.requests.reject(request_id, by=by, reason=reason)


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """The pending ``request``, for a framework that carries it to a person, and the person's answer back."""

    request: ApprovalRequest
    requests: ApprovalRequests

    def as_json(self) -> dict[str, Any]:
        """The question as a notice has it: the call, what is asked, and who may answer."""
        return described(self.request, self.requests.path, 0.0)

    def take(self, answer: object, by: str) -> str:
        """Puts an answer on record that came back through the framework; returns why it does not count, if it does not.

        It names the ``request_id``, because a framework may bring the answer to another question, says ``approve`` or
        ``reject`` in ``answer``, and may have ``by`` and ``reason``. ``by`` is who answers, where it does not say so.
        """
        fields: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
        request_id, by = self.request.request_id, str(fields.get("by") or by)
        if fields.get("request_id") != request_id or fields.get("answer") not in ("approve", "reject"):
            return f'resume with {{"request_id": "{request_id}", "answer": "approve" or "reject"}}'
        if by.startswith(KEY_PREFIX):
            return "a framework keeps what it carries, so a key is not for it: answer with lgov approvals"
        try:
            if fields["answer"] == "approve":
                self.requests.approve(request_id, by=by)
            else:
                self.requests.reject(request_id, by=by, reason=str(fields.get("reason") or ""))
        except PolicyError as error:
            return error.message
        return ""

    def withdraw(self, call: str) -> None:
        """Withdraws the request for the call of this name, which ended without an answer. Raises `PolicyError`."""
        self.requests.withdraw(self.request.request_id, call)


def _requests(options: ApprovalOptions) -> ApprovalRequests:
    """The requests in the file of these options, or in memory; a dry run touches no file."""
    if in_dry_run():
        return ApprovalRequests(None, clock=options.clock, quiet=True)
    path: Any = options.store
    if path is not None and (folder := Path(path).parent).name == Path(DEFAULT_APPROVALS).parent.name:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PolicyError(
                f"{options.name}: store {path} cannot be made: {error}", hint="name another store"
            ) from error
    notice = Notice.of(options.name, options.command, options.webhook, path)
    return ApprovalRequests(path, clock=options.clock, notices=(notice,))


def _is_unnamed(action: Action) -> bool:
    """Returns whether nobody chose the id of the session: another process gives it another one."""
    scope = current_scope()
    return bool(action.context.get(UNNAMED)) and (scope is None or not scope.session_id)


def _requesters(action: Action) -> tuple[str, ...]:
    """Everyone for whom a call is made: its user, its session and whose that is (``NAME/...``), its rollout and, last, who runs
    the program. At the endpoint a rollout is the owner of the key.
    """
    user, session = action.context.get("user"), "" if _is_unnamed(action) else action.session_id or ""
    names = (user, session, session.partition("/")[0], _own_rollout(action), os_user())
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _requester(action: Action) -> str:
    """The user, session, or rollout that the program entered, for whom a call is made; empty where it names none."""
    user = action.context.get("user")
    if isinstance(user, str) and user:
        return f"user {user}"
    is_unnamed = _is_unnamed(action)
    names = [f"{'team' if is_unnamed else 'session'} {count_key(action, 'session')}"] if action.session_id else []
    if (not names or is_unnamed) and (rollout := _own_rollout(action)):
        names.append(f"rollout {rollout}")
    return ", ".join(names)


def _own_rollout(action: Action) -> str:
    """The rollout that the program or a key entered; empty where it is a process as a whole."""
    scope = current_scope()
    of_process = scope is not None and scope.of_process and scope.rollout_id == action.rollout_id
    return "" if of_process else count_key(action, "rollout")


def _answer_of(approver: Any, request: ApprovalRequest, timeout_s: float) -> object:
    """True or False as the approver says, or in words why there is no answer. A late answer is not waited for."""
    answers: list[object] = []

    def ask() -> None:
        import asyncio

        try:
            answer = approver(request)
            if inspect.isawaitable(answer):
                answer = asyncio.run(_awaited(answer))
            answers.append(answer if isinstance(answer, bool) else f"it answered {type(answer).__name__}, not a bool")
        except BaseException as error:  # noqa: BLE001 - whatever it raises is a no
            answers.append(f"it raised {type(error).__name__}")

    # A thread of its own: the callback may wait for a person, and a coroutine needs a loop that is not running yet.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(ask,), name="lgov-approver", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else f"not within {timeout_s:g} s"


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _has_terminal() -> bool:
    """Returns whether standard error, to which requests are logged, is a terminal."""
    try:
        return os.isatty(sys.__stderr__.fileno()) if sys.__stderr__ is not None else False
    except (OSError, ValueError):
        return False
