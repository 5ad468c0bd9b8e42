"""Where the values of a call may come from: `FlowPolicy`, and `ProvenancePolicy` for addresses that users name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import matches_any, surely_matches
from lgov_core.policies.approvals.answers import Inquiry
from lgov_core.policies.approvals.policy import ApprovalOptions, ApprovalPolicy
from lgov_core.policies.approvals.requests import ApprovalRequests
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.content.text_views import INVISIBLE
from lgov_core.policies.conversation import (
    MAX_TEXT,
    MAX_VALUE,
    Conversations,
    KnownText,
    KnownTexts,
    UsedValue,
    system_texts,
    user_texts_of,
)
from lgov_core.policies.network.addresses import (
    KINDS,
    MAX_NAME,
    Address,
    AddressKind,
    addresses,
    covers,
    loose_words,
    page_of,
    strings_in,
    words_of,
)
from lgov_core.policies.options import Count, Names, PolicyOptions, Text, Texts, YesOrNo, takes
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome

_OF_TOOLS: Final = ("trusted", "untrusted", "fields")
#: What stands for the sources of a value that is in no text.
_BY_MODEL: Final = [("model", "the model", None)]
_NUMBER: Final = re.compile(r"[\d.,+-]+")

ValueKind = Literal[AddressKind, "number", "name", "text"]
Confidentiality = Literal["public", "personal", "secret"]
_ALL_KINDS: Final = frozenset[str]((*KINDS, "number", "name", "text"))
_LEVELS: Final[tuple[Confidentiality, ...]] = ("public", "personal", "secret")
#: The classes of texts in ``allow`` and ``deny``; everything else there names tools, and fields of their results.
CLASSES: Final = frozenset({"user", "system", "trusted", "untrusted", "fields", "pointed", "model", "*"})
_ALLOWED: Final = ("user", "system", "trusted")
#: Texts that a decision names of one argument, arguments that it names, characters of their names; terms that are remembered.
_MOST, _MOST_ARGUMENTS, _MOST_NAME, _MAX_TERMS = 4, 64, 200, 1_000


class Returns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The label of a tool's results: whether strangers can write into them, and how confidential they are."""

    returns: Literal["trusted", "untrusted"] = "untrusted"
    holds: Confidentiality = "public"


_UNKNOWN: Final = Returns()
_SOURCES: Final = Meta(
    description=f"names of tools, TOOL:FIELD, or: {', '.join(sorted(CLASSES))}; or a mapping from arguments to such"
)
_VALUES: Final = Meta(description="a list of globs for addresses, or a mapping from arguments to such lists")


class ValueSource(NamedTuple):
    """A value of a call and the texts that have it: ``user``, ``system``, TOOL, TOOL:FIELD; ``pointed`` as in `FlowPolicy`."""

    argument: str
    value: Address | str
    texts: tuple[str, ...]
    pointed: bool


class FlowOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `FlowPolicy`."""

    paths = kept = ("store",)
    defaults_in_files = ApprovalOptions.defaults_in_files
    in_python = MappingProxyType({"store": (ApprovalRequests, os.PathLike)})

    argument: Names = "*"
    kinds: Sequence[ValueKind] = (*KINDS, "number", "name")
    allow: Annotated[Names | Mapping[Text, Names], _SOURCES] = _ALLOWED
    deny: Annotated[Names | Mapping[Text, Names], _SOURCES] = "untrusted"
    tools: Mapping[Text, Returns] | None = None
    values: Annotated[Texts | Mapping[Text, Texts], _VALUES] = ()
    discloses: Confidentiality = "secret"
    otherwise: Literal["deny", "approve"] = "deny"
    asks: Annotated[Names, Meta(description="as allow")] = "*"
    wait_s: Annotated[float, Meta(ge=0, le=1e15, description="a number, 0 or more")] = 0.0
    store: ApprovalRequests | str | os.PathLike[str] | None = None
    conversations: Count = 1_000
    name: Text = "flow"


@dataclass(frozen=True, slots=True)
class _Sources:
    """The entries of ``allow`` or ``deny``: classes of texts, and globs for tools and fields."""

    entries: tuple[str, ...]
    classes: frozenset[str]
    globs: tuple[str, ...]

    @classmethod
    def of(cls, entries: str | Sequence[str]) -> _Sources:
        entries = _listed(entries)
        return cls(entries, CLASSES.intersection(entries), tuple(each for each in entries if each not in CLASSES))

    def name(self, label: str, origin: str) -> bool:
        """Returns whether a text of this label and origin is among them."""
        if label in self.classes or "*" in self.classes:
            return True
        return bool(self.globs) and label in _OF_TOOLS and surely_matches(origin, self.globs)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The sources that are allowed and denied for one argument; ``globs`` and ``named`` are for addresses from anywhere."""

    allow: _Sources
    deny: _Sources
    globs: tuple[str, ...]
    named: frozenset[Address]

    def trust(self, value: UsedValue) -> bool:
        """Returns whether a value may come from anywhere."""
        address = value.form
        if isinstance(address, str):
            return value.kind == "value" and bool(surely_matches(value.text.casefold(), self.globs))
        form = address.form.casefold()
        if address.kind == "url":  # the host and the path are matched each on its own: a path may hold any host's name
            host, _, path = page_of(address).casefold().partition("/")
            for glob in self.globs:
                host_glob, slash, path_glob = glob.removeprefix("https://").removeprefix("http://").partition("/")
                if "@" not in glob and fnmatchcase(host, host_glob) and (not slash or fnmatchcase(path, path_glob)):
                    return True
        elif address.kind == "email" and re.search(r"@.*@|[%!|].*@", form):  # which may lead by another host
            return False
        elif surely_matches(form, tuple(glob for glob in self.globs if ("@" in glob) == (address.kind == "email"))):
            return True
        bare = address if address.kind != "url" else Address("url", page_of(address))
        return any(covers(named, variant) for named in self.named for variant in (address, bare))


class FlowPolicy(BoundedPolicy):
    """Denies a tool call with a value from a text that may not name it.

    Each text of a conversation has a label: ``user``; ``system`` for the messages before all others; and for the result of
    a tool what ``tools`` says, by name or glob: ``{get_account: {returns: trusted, holds: secret}}``. Results of other
    tools are ``untrusted`` and ``public``. So is the answer of an agent that has read something untrusted.

    The rule looks at the arguments whose key, at any depth, matches a glob of ``argument``. It takes every address in them
    (see `ProvenancePolicy`); an argument without an address is one value, a ``number``, a ``name`` (80 characters at most)
    or a ``text``. ``kinds`` are the kinds of values to check. A value that is in a text of ``allow`` may be used. Without
    that, an address is denied, and another value if it is in a text of ``deny``. With ``deny: untrusted`` the model may
    write a value that is in no text; with ``"*"`` it may not.

    ``allow`` and ``deny`` take labels, tools (globs), and these: ``TOOL:FIELD``, a field of a JSON result that is this
    value and nothing more; ``fields``, any such field; ``model`` (not in ``allow``), one of no text; ``pointed``, the
    result of a call with an argument that the user named, such as a file. An address from a pointed result may be used if
    the result has no other of its kind, and an argument of a tool can get no other value from that result later. ``values``
    are globs for addresses that need no source. Each of the three may be a mapping from arguments (globs) to such lists, of
    which the first that fits counts; other arguments have the default. ``discloses`` is the highest confidentiality of
    results that arguments may quote: a number, a code, or four words in a row, unless the user wrote them.

    With ``otherwise: approve`` a person is asked instead (see `ApprovalPolicy`, which has ``wait_s`` and ``store``): an
    approval is for this call with these values, once, and names where they come from. A call with a value of which no
    source is in ``asks`` is denied all the same.

    Addresses are compared by what they name, words without case and punctuation. A value of less than four characters is
    not looked for within results. What the model computes or rephrases is not recognised. A result of more than 200,000
    characters is untrusted and may hold any value; so may a forgotten result. The rule remembers the ``conversations``
    rollouts, sessions and runs that were used last.

    May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a meaning.
    """

    listens_at: ClassVar[tuple[Point, ...]] = (Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_TOOL_CALL)
    default_points: ClassVar[tuple[Point, ...]] = (*listens_at, Point.PRE_TOOL_CALL)
    #: What the slugs of its rules begin with.
    slug: ClassVar[str] = "flow"
    messages: bool = True
    whole: Sequence[str] = ()
    #: Whether sets and governors ask it after all others, which is where a person may be asked.
    deferred: bool = False
    timeout_s: float | None = None

    @takes(FlowOptions)
    def __init__(self, options: FlowOptions) -> None:
        self._set_up(options)
        if not self.arguments:
            raise PolicyError(f"{self.name}: argument is empty", hint='write the name of an argument, or "*"')
        if options.wait_s and options.otherwise != "approve":
            raise PolicyError(f"{self.name}: wait_s is for a person's answer", hint="write otherwise: approve")

    def _set_up(self, options: FlowOptions) -> None:
        self.name, self.tools = options.name, dict(options.tools or {})
        self.arguments, self.kinds = _listed(options.argument), frozenset[str](options.kinds)
        self._options, self._terms = options, BoundedDict[str, _Terms](_MAX_TERMS)
        by_argument = [each for each in (options.allow, options.deny, options.values) if isinstance(each, Mapping)]
        self._only_terms: _Terms | None = None if by_argument else self._terms_of("")
        named = {*self.arguments, *(argument for option in by_argument for argument in option)}
        self._named = tuple(named - {"*"})
        self.limit = _LEVELS.index(options.discloses)
        self._texts = Conversations(options.conversations)
        self._asked = _Sources.of(options.asks)
        self._asks = _Asks(self, options) if options.otherwise == "approve" else None
        self.requests = None if self._asks is None else self._asks.requests
        if self._asks is not None:
            self.bounded, self.deferred, self.timeout_s = False, True, self._asks.timeout_s

    def judge(self, action: Action) -> Decision | None:
        """Takes note of texts; gives the verdict on tool calls."""
        if action.point is Point.PRE_TOOL_CALL:
            decision, may_ask = self.verdict(action)
            return self._asks.judge(action) if may_ask and decision.blocks and self._asks is not None else decision
        if action.point is Point.INPUT:
            if action.text and action.parent_id is None and action.source in (None, "user", "system"):
                self._texts.note_said(action, [action.text])
        elif action.point is Point.PRE_MODEL_CALL:
            self._texts.note_said(action, user_texts_of(action))
            if self.messages:
                self._texts.note_said(action, system_texts(action.arguments.get("messages")), "system")
        elif action.point is Point.POST_TOOL_CALL and action.text:
            self._note_result(action, action.text)
        return None

    def observe(self, event: Any) -> None:
        """Takes note of the result of a call, where no adapter shows it to `judge`."""
        if isinstance(event, ToolOutcome) and event.result and Point.POST_TOOL_CALL in self.listens_at:
            self._note_result(event.action, event.result)
        if self._asks is not None:
            self._asks.observe(event)

    def ping(self) -> None:
        """Raises `PolicyError` while nobody can be asked."""
        if self._asks is not None:
            self._asks.ping()

    def _note_result(self, action: Action, text: str) -> None:
        used = [value for value in self._values(action) if value.is_sought]
        self._texts.note_result(action, text, used, self._is_trusted)

    def continue_from(self, previous: object) -> None:
        """Goes on with the texts that ``previous`` remembers, which this one replaces."""
        if isinstance(previous, FlowPolicy):
            self._texts = previous._texts
            if self._asks is not None and previous._asks is not None:
                self._asks.continue_from(previous._asks)

    # ------------------------------------------------------------------ the values of a call

    def _values(self, action: Action, *, judged: bool = False) -> Iterator[UsedValue]:
        """The values in the arguments, for the verdict (``judged``) only of those that it is about.

        Raises `Unclear` there for what cannot be looked at.
        """
        try:
            for name, text in strings_in(action.arguments, keeps=self._keeps):
                strict = judged and bool(self.whole) and matches_any(name, self.whole)
                if strict:
                    yield UsedValue(name, "value", words_of(text), text=text)
                if judged and self.arguments != ("*",) and not matches_any(name, self.arguments):
                    continue
                if len(text) > MAX_TEXT:
                    raise Unclear(f"{self.slug}-unscanned", f"{_place(name)} is longer than {MAX_TEXT} characters.")
                named, kinds = addresses(text, name), self.kinds if judged else _ALL_KINDS
                values = [UsedValue(name, address.kind, address) for address in named if address.kind in kinds]
                if not named and text.strip():
                    kind = "text" if len(text) > MAX_VALUE else "number" if _NUMBER.fullmatch(text) else "name"
                    if kind in kinds:
                        values = [UsedValue(name, kind, words_of(text), loose_words(text))]
                if judged and (values or strict) and not text.isascii() and INVISIBLE.search(text):
                    reason = f"{_place(name)} hides characters in an address. Write it plainly."
                    raise Unclear(f"{self.slug}-hidden", reason)
                yield from values
        except Unclear as error:
            if judged and error.rule == "arguments-unlookable":
                raise Unclear(f"{self.slug}-unscanned", f"{error}, so they were not looked at.") from error
            if judged:
                raise

    def _keeps(self, argument: str) -> bool:
        """Returns whether what stands below an argument is judged as that argument: where an option names it."""
        return bool(self._named) and matches_any(argument, self._named)

    def sources(self, action: Action) -> list[ValueSource]:
        """The texts that each judged value of a call is in."""
        with self._texts.lock:
            texts = self._texts.known_to(action)
            sources: list[ValueSource] = []
            for value in self._values(action):
                labelled = self._sources(value, texts)
                names = tuple(dict.fromkeys(origin for _, origin, _ in labelled))
                pointed = any(label == "pointed" for label, *_ in labelled)
                sources.append(ValueSource(value.argument, value.form, names, pointed))
        return sources

    def _sources(self, value: UsedValue, texts: KnownTexts) -> list[tuple[str, str, KnownText]]:
        """The labels under which texts have a value, each with the name of the text or field, and the text."""
        sources: list[tuple[str, str, KnownText]] = []
        for text in texts.which_may_have(value):
            origin, fields = text.origin, text.fields.get(value.form, ())
            if not fields and not text.holds(value):
                continue
            if text.is_users:
                sources.append((origin, origin, text))
                continue
            origin = origin.replace(":", " ")
            sources += [("fields", f"{origin}:{name}", text) for name in fields]
            sources.append(("trusted" if self.tools and self._is_trusted(text) else "untrusted", origin, text))
            if text.pointed and not text.opaque and text.alone(value.form):
                sources.append(("pointed", origin, text))
        return sources

    def _is_trusted(self, text: KnownText) -> bool:
        return not (text.opaque or text.tainted) and all(label.returns == "trusted" for label in self._labels(text))

    def _labels(self, text: KnownText) -> list[Returns]:
        if text.origin in self.tools:
            return [self.tools[text.origin]]
        return [label for glob, label in self.tools.items() if matches_any(text.origin, (glob,))] or [_UNKNOWN]

    def _terms_of(self, argument: str) -> _Terms:
        """The terms of an argument."""
        terms = self._terms.get(argument)
        if terms is None:
            listed = self._options
            globs = tuple(glob.casefold() for glob in _for(argument, listed.values, ()))
            plain = [glob for glob in globs if not set(glob) & set("*?[")]
            named = frozenset(address for glob in plain for address in addresses(glob))
            allow, deny = _for(argument, listed.allow, _ALLOWED), _for(argument, listed.deny, ("untrusted",))
            terms = _Terms(_Sources.of(allow), _Sources.of(deny), globs, named)
            self._terms.put(argument, terms)
        return terms

    # ------------------------------------------------------------------ the verdict

    def verdict(self, action: Action) -> tuple[Decision, bool]:
        """The verdict on a call, and whether a person may be asked about it."""
        try:
            values = list(self._values(action, judged=True))
        except Unclear as error:
            return self.deny(error.rule, error.reason), False
        if not values and self.limit == len(_LEVELS) - 1:
            return self.allow(), False
        with self._texts.lock:
            texts = self._texts.known_to(action)
            leak = self._leak(action, texts)
            return (leak, True) if leak is not None else self._verdict(action, values, texts)

    def _verdict(self, action: Action, values: Sequence[UsedValue], texts: KnownTexts) -> tuple[Decision, bool]:
        taken: dict[tuple[KnownText, str], set[Address | str]] = {}
        came: dict[str, dict[str, None]] = {}
        refused: list[tuple[UsedValue, list[str]]] = []
        may_ask = True
        for value in values:
            terms = self._only_terms or self._terms_of(value.argument)
            sources: Sequence[tuple[str, str, KnownText | None]] = self._sources(value, texts) or _BY_MODEL
            names = dict.fromkeys([origin for _, origin, _ in sources])
            came[value.argument] = {**came[value.argument], **names} if value.argument in came else names
            allowed = [(label, text) for label, origin, text in sources if text and terms.allow.name(label, origin)]
            if any([label != "pointed" for label, _ in allowed]) or terms.trust(value):
                continue
            if allowed:
                taken.setdefault((allowed[0][1], value.argument), set()).add(value.form)
            elif (
                isinstance(value.form, Address)
                or texts.lost
                or any(terms.deny.name(label, origin) for label, origin, _ in sources)
            ):
                refused.append((value, [] if sources is _BY_MODEL else [*names]))
                may_ask = may_ask and any(self._asked.name(label, origin) for label, origin, _ in sources)
        origins = {name[:_MOST_NAME]: [*names][:_MOST] for name, names in [*came.items()][:_MOST_ARGUMENTS]}
        if refused:
            return self._refusal(action, *refused[0], texts).changed(sources=origins), may_ask
        for (text, argument), forms in taken.items():
            if not forms <= text.endorsed.get((action.name, argument), forms):
                reason = f"{_place(argument)} was already taken from {text.origin[:80]}, as another value. Ask the user for it"
                return self.deny(f"{self.slug}-endorsed", reason).changed(sources=origins), True
        for (text, argument), forms in taken.items():
            text.endorsed.setdefault((action.name, argument), frozenset(forms))
        reason = "; ".join([f"{_place(name)}: {', '.join(texts)}" for name, texts in origins.items()])
        return Decision(Effect.ALLOW, self.name, self.slug, reason[:MAX_NAME], sources=origins), True

    def _leak(self, action: Action, texts: KnownTexts) -> Decision | None:
        """The denial of a call that would tell what is too confidential for it."""
        if self.limit == len(_LEVELS) - 1:
            return None
        too_much = _LEVELS[self.limit + 1 :]
        closed = [text for text in texts.results if any(label.holds in too_much for label in self._labels(text))]
        for name, text in strings_in(action.arguments, keeps=self._keeps) if closed else ():
            words = loose_words(text).split()
            for result in closed if matches_any(name, self.arguments) else ():
                if result.shares(words, texts.user_texts):
                    reason = f"{_place(name)} has words out of {result.origin[:80]}, whose results may not be told here"
                    return self.deny(f"{self.slug}-discloses", f"{reason}. Leave them out.")
        forgotten = "Results were forgotten that may not be told here. Ask the user to begin anew."
        return self.deny(f"{self.slug}-discloses", forgotten) if texts.lost else None

    def _refusal(self, action: Action, value: UsedValue, names: Sequence[str], texts: KnownTexts) -> Decision:
        where = f"The {value.kind} in {_place(value.argument)}"
        if not (texts.user_texts or any(conversation.results for conversation in texts.conversations)):
            return self.deny(
                f"{self.slug}-unknown",
                f"{_place(value.argument)} holds an address ({value.kind}), but what the user said is not known here; judge the"
                " user's input in the same agent run, session or rollout, or give it as user_text in the action's context",
            )
        allowed = self._terms_of(value.argument).allow.entries
        if set(allowed) == {"user", "system"}:
            reason = f"{where} was not given by the user. Use only addresses the user has named, or ask them"
        else:
            listed = ", ".join(list(dict.fromkeys(names))[:_MOST])[:200]
            came = f"comes from {listed}" if names else "is in no text that counts"
            reason = f"{where} {came}. Here it must come from: {', '.join(allowed)[:200]}. Otherwise ask the user"
        late = ". Of the user's messages only those before the first reply count here"
        return self.deny(f"{self.slug}-unsaid", reason + late * (action.framework == "endpoint"))


class _Asks(ApprovalPolicy):
    """Asks a person about a call that a flow rule denies, in the words of the denial."""

    def __init__(self, flow: FlowPolicy, options: FlowOptions) -> None:
        super().__init__(store=options.store, wait_s=options.wait_s, name=options.name)
        self._flow, self._texts = flow, flow._texts

    def _inquiry(self, action: Action) -> Inquiry:
        inquiry, reason = super()._inquiry(action), self._flow.verdict(action)[0].reason
        return replace(inquiry, question=f"{inquiry.question} {reason}.")


class ProvenanceOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `ProvenancePolicy`."""

    arguments: Texts = ("*",)
    kinds: Sequence[AddressKind] = KINDS
    whole: Texts = ()
    trusted: Texts = ()
    messages: YesOrNo = True
    conversations: Count = 1_000
    name: Text = "provenance"


class ProvenancePolicy(FlowPolicy):
    """Denies a tool call with an address that the user has not said: ``flow`` with ``allow: [user, system]``.

    Addresses are e-mail addresses, URLs and host names, paths, account numbers and wallets, and phone numbers (``kinds``).
    The rule looks for them in the arguments whose key, at any depth, matches a glob of ``arguments``. An argument named in
    ``whole`` counts as one address.

    The user's texts are ``Action.context["user_text"]`` of tool and model calls; texts at ``input`` whose ``source`` is not
    an agent or a tool; and, with ``messages``, the system messages at the beginning of a model call (not later ones, and
    not messages in the user's role, which agents write to each other). What a tool returned is not the user's. The rule
    remembers the texts by rollout and session of the scope, by the outermost agent run, and by the conversation that the
    framework names (LangGraph's thread, the SDK's session, AutoGen's team), which then replaces the rollout. It must
    therefore cover ``input`` and ``pre_model_call`` too, as it does without ``on:``. Where nothing is known of the user, a
    call with an address is denied.

    Addresses are compared by what they name: hosts in lower case and ASCII form, paths without ``..``. A URL covers the
    pages below it, a folder its files, and a host its pages, but no subdomain. A query string, a fragment or a user in a
    URL must be in the user's URL too. ``trusted`` are globs for addresses that need not be said: ``*@example.org``,
    ``example.org/*``, ``/srv/data/*``.

    The rule remembers the ``conversations`` rollouts, sessions and runs that were used last. May be called from several
    threads at once. Fails closed: what is forgotten was not said.
    """

    default_points: ClassVar[tuple[Point, ...]] = (Point.INPUT, Point.PRE_MODEL_CALL, Point.PRE_TOOL_CALL)
    listens_at: ClassVar[tuple[Point, ...]] = (Point.INPUT, Point.PRE_MODEL_CALL)
    slug: ClassVar[str] = "provenance"

    @takes(ProvenanceOptions)
    def __init__(self, options: ProvenanceOptions) -> None:
        self._set_up(
            FlowOptions(
                argument=options.arguments,
                kinds=options.kinds,
                allow=("user", "system"),
                deny="*",
                values=options.trusted,
                conversations=options.conversations,
                name=options.name,
            )
        )
        self.messages, self.whole = options.messages, tuple(options.whole)


def _listed(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _for(argument: str, option: Any, default: Sequence[str]) -> Sequence[str]:
    """The entry of an option for an argument; the default where it is a mapping in which no glob fits."""
    if not isinstance(option, Mapping):
        return _listed(option)
    return next((_listed(entry) for glob, entry in option.items() if matches_any(argument, (glob,))), default)


def _place(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 40 else "an argument"
