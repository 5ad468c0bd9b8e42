"""Where the values of a call may come from: `FlowPolicy`, and `ProvenancePolicy` for addresses that users name."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import matches_any, surely_matches
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.content.text_views import INVISIBLE
from lgov_core.policies.network.addresses import (
    KINDS,
    MAX_NAME,
    Address,
    AddressKind,
    account_form,
    addresses,
    covers,
    leaves_of,
    loose_words,
    page_of,
    strings_in,
    words_of,
)
from lgov_core.policies.options import Count, Names, PolicyOptions, Text, Texts, YesOrNo, takes
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome

#: Characters of one argument in which addresses are looked for, and of one text that is looked into; a longer result is opaque.
MAX_TEXT: Final = 200_000
#: Addresses that are remembered of one text.
MAX_ADDRESSES: Final = 2_000
#: Characters of one text of the user's in which words are looked for.
MAX_WORDS: Final = 20_000
#: Texts of the user's, and results, that are remembered of one conversation, and characters of either.
MAX_TEXTS: Final = 512
MAX_KEPT: Final = 400_000
#: Characters of results that are remembered of all conversations, and conversations that are known to be forgotten.
MAX_ALL: Final = 4_000_000
MAX_FORGOTTEN: Final = 65_536
#: Characters of a value that is looked for within a text: a shorter one is in any. A longer one is free text.
MIN_VALUE: Final = 4
MAX_VALUE: Final = 80
_OF_TOOLS: Final = ("trusted", "untrusted", "fields")
_ROLES: Final = ("system", "developer")
#: Words in a row that show that a text was copied out of another.
_RUN: Final = 4
#: What a text that may hold any value is looked up by.
_ANYTHING: Final = ""
_MAY_HOLD_AN_ADDRESS: Final = re.compile(r"[@./:\\]|\d\d")

ValueKind = Literal[AddressKind, "number", "name", "text"]
Confidentiality = Literal["public", "personal", "secret"]
_LEVELS: Final[tuple[Confidentiality, ...]] = ("public", "personal", "secret")
#: The classes of texts in ``allow`` and ``deny``; everything else there names tools, and fields of their results.
CLASSES: Final = frozenset({"user", "system", "trusted", "untrusted", "fields", "pointed", "model", "*"})


class Returns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The label of a tool's results: whether strangers can write into them, and how confidential they are."""

    returns: Literal["trusted", "untrusted"] = "untrusted"
    holds: Confidentiality = "public"


_UNKNOWN: Final = Returns()
_SOURCES: Final = Meta(description=f"names of tools, TOOL:FIELD, or: {', '.join(sorted(CLASSES))}")


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of an argument: the address that it is, or its words, and these as they are looked for in results."""

    argument: str
    kind: str
    form: Address | str
    loose: str = ""
    text: str = ""


class ValueSource(NamedTuple):
    """A value of a call and the texts that have it: ``user``, ``system``, TOOL, TOOL:FIELD; ``pointed`` as in `FlowPolicy`."""

    argument: str
    value: Address | str
    texts: tuple[str, ...]
    pointed: bool


@dataclass(slots=True, eq=False)
class _Text:
    """A text of a conversation. ``origin`` is ``user``, ``system``, or the name of a tool.

    ``fields`` has by value the fields of a result that are this value and nothing more. ``tainted`` is the answer of an agent
    that read something untrusted, ``opaque`` is too long to look into. ``endorsed`` has by tool and argument what was taken
    from it because the user pointed at it.
    """

    origin: str
    words: str = ""
    loose: str = ""
    vocabulary: frozenset[str] = frozenset()
    addresses: frozenset[Address] = frozenset()
    fields: Mapping[Address | str, Iterable[str]] = field(default_factory=dict[Address | str, Iterable[str]])
    is_users: bool = False
    pointed: bool = False
    tainted: bool = False
    opaque: bool = False
    size: int = 0
    endorsed: dict[tuple[str, str], frozenset[Address | str]] = field(
        default_factory=dict[tuple[str, str], frozenset["Address | str"]]
    )

    @classmethod
    def of_user(cls, text: str, origin: str = "user") -> _Text:
        words, named = words_of(text[:MAX_WORDS]), addresses(text[:MAX_TEXT])[:MAX_ADDRESSES]
        return cls(origin, words, loose_words(words), addresses=frozenset(named), is_users=True, size=len(words))

    @classmethod
    def of_result(cls, origin: str, text: str, *, pointed: bool, tainted: bool) -> _Text:
        if len(text) > MAX_TEXT:
            return cls(origin, tainted=tainted, opaque=True)
        named: set[Address] = set()
        fields: dict[Address | str, dict[str, None]] = {}
        leaves = list(leaves_of(text))
        for name, leaf in leaves:
            within = addresses(leaf, name or "phone account") if _MAY_HOLD_AN_ADDRESS.search(leaf) else []
            named.update(within[: MAX_ADDRESSES - len(named)])
            if not name or len(leaf) > MAX_VALUE:
                continue
            fields.setdefault(words_of(leaf), {})[name] = None
            if len(within) == 1 and (len(leaf.split()) == 1 or account_form(leaf) == within[0].form):
                fields.setdefault(within[0], {})[name] = None
        loose = loose_words("\n".join(leaf for _, leaf in leaves))
        index = frozenset(loose.split()), frozenset(named), fields
        return cls(origin, "", loose, *index, pointed=pointed, tainted=tainted, size=len(loose))

    def holds(self, value: _Value) -> bool:
        """Returns whether the value is in the text: for an address of the user's also when it is covered by one there."""
        form = value.form
        if isinstance(form, str):
            if self.is_users:
                return bool(form.strip()) and form in self.words
            first = value.loose.split(maxsplit=1)[:1]
            is_inside = len(value.loose) - 2 >= MIN_VALUE and first[0] in self.vocabulary and value.loose in self.loose
            return self.opaque or is_inside
        if form in self.addresses or (self.is_users and any(covers(address, form) for address in self.addresses)):
            return True
        # A file named as it is: without a folder, or with blanks in its name.
        is_name = self.is_users and form.kind == "path" and ("/" not in form.form or " " in form.form)
        return is_name and bool(words := words_of(form.form).strip()) and f" {words} " in self.words

    def keys(self) -> Iterator[Address | str]:
        """Yields the keys of the text in an index: its words, its addresses and the values of its fields, each once."""
        yield from (_ANYTHING,) if self.opaque else self.vocabulary
        yield from self.addresses
        yield from (form for form in self.fields if form not in self.addresses)

    def alone(self, form: Address | str) -> bool:
        """Returns whether an address is the only one of its kind here, so that who points at the text means this one.

        Another reading of the same characters is no other: of an account its digits, of a path the name in it.
        """
        others = [] if isinstance(form, str) else [other.form for other in self.addresses if other.kind == form.kind]
        return isinstance(form, str) or all(other in form.form or form.form in other for other in others)

    def shares(self, words: Sequence[str], user_texts: Sequence[_Text]) -> bool:
        """Returns whether ``words`` have a number, a code or some words in a row of the text, and of none of ``user_texts``."""
        for at, word in enumerate(words):
            if word not in self.vocabulary:
                continue
            row = f" {' '.join(words[at : at + _RUN])} "
            is_code = len(word) >= MIN_VALUE and any(map(str.isdigit, word))
            is_copied = len(words) - at >= _RUN and row in self.loose
            copies = [f" {word} "] * is_code + [row] * is_copied
            if any(all(copy not in text.loose for text in user_texts) for copy in copies):
                return True
        return self.opaque


_Key: TypeAlias = tuple[str, str]


class _Memory:
    """The texts of one conversation. ``lost``: some were forgotten, and nobody knows what was in them."""

    def __init__(self, key: _Key, *, lost: bool) -> None:
        self.key, self.lost = key, lost
        self.user_texts: dict[Any, _Text] = {}
        self.results: dict[Any, _Text] = {}
        #: The results by what they are looked up by.
        self.index: dict[Address | str, list[_Text]] = {}
        #: Characters of the results.
        self.size = 0

    def add(self, mark: Any, text: _Text) -> None:
        kept = self.user_texts if text.is_users else self.results
        if mark in kept:
            return
        kept[mark] = text
        for key in () if text.is_users else text.keys():
            self.index.setdefault(key, []).append(text)
        while len(kept) > MAX_TEXTS or (len(kept) > 1 and sum(text.size for text in kept.values()) > MAX_KEPT):
            dropped = kept.pop(next(iter(kept)))
            self.lost = self.lost or not dropped.is_users
            for key in () if dropped.is_users else dropped.keys():
                self.index[key].remove(dropped)
                if not self.index[key]:
                    del self.index[key]
        self.size = sum(text.size for text in self.results.values())

    def results_with(self, value: _Value) -> Iterator[_Text]:
        """The results that may have a value."""
        yield from self.index.get(value.form, ())
        by_word = [self.index.get(word, ()) for word in value.loose.split()]
        yield from min(by_word, key=len, default=())
        yield from self.index.get(_ANYTHING, ())


class FlowOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `FlowPolicy`."""

    argument: Names = "*"
    kinds: Sequence[ValueKind] = (*KINDS, "number", "name")
    allow: Annotated[Names, _SOURCES] = ("user", "system", "trusted")
    deny: Annotated[Names, _SOURCES] = "untrusted"
    tools: Mapping[Text, Returns] | None = None
    values: Texts = ()
    discloses: Confidentiality = "secret"
    conversations: Count = 1_000
    name: Text = "flow"


class FlowPolicy(BoundedPolicy):
    """Denies a tool call with a value out of a text that may not name it.

    Each text of a conversation has a label: ``user``, ``system`` (the messages before all others), and for the result of a
    tool what ``tools`` says of it, by name or glob: ``{get_account: {returns: trusted, holds: secret}}``. Other tools are
    ``untrusted`` and ``public``. So is an agent's answer if it has read something untrusted.

    Judged are the arguments whose key, at any depth, matches a glob of ``argument``: every address in them (see
    `ProvenancePolicy`), or without one the whole, which is a ``number``, a ``name`` (80 characters at most) or ``text``; only
    those of ``kinds``. A value in a text of ``allow`` may be used. Other addresses are denied, and other values in a text of
    ``deny``: with ``untrusted`` the model may write what no text has, with ``"*"`` it may not.

    ``allow`` and ``deny`` name labels, tools (globs) and: ``TOOL:FIELD``, a field of a result in JSON that is this value and
    nothing more; ``fields``, any such; ``pointed``, a result for which the call had an argument that the user named, like a
    file: an address only if no other of its kind is there, and only what was taken from there first, by argument of a
    tool; ``model``, what no text has. ``values`` are globs for addresses from anywhere. ``discloses`` is the most confidential
    result of which a number, a code or four words in a row may be in an argument, unless the user wrote them.

    Compared are addresses by what they name, and words without case and punctuation. A value of less than four characters
    is not looked for within results. What the model computes or puts in other words is not recognised. A result of
    more than 200,000 characters is untrusted and may hold any value; so may what was forgotten.

    Remembers at most ``conversations`` rollouts, sessions and runs, the ones used last. May be called from several threads at
    once. Fails closed. Raises `PolicyError` when made with something that has no meaning.
    """

    listens_at: ClassVar[tuple[Point, ...]] = (Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_TOOL_CALL)
    default_points: ClassVar[tuple[Point, ...]] = (*listens_at, Point.PRE_TOOL_CALL)
    #: What the slugs of its rules begin with.
    slug: ClassVar[str] = "flow"
    messages: bool = True
    whole: Sequence[str] = ()

    @takes(FlowOptions)
    def __init__(self, options: FlowOptions) -> None:
        self._set_up(options)
        if not self.arguments:
            raise PolicyError(f"{self.name}: argument is empty", hint='write the name of an argument, or "*"')

    def _set_up(self, options: FlowOptions) -> None:
        self.name, self.tools = options.name, dict(options.tools or {})
        self.arguments, self.kinds = _listed(options.argument), frozenset[str](options.kinds)
        self.allowed, self.denied = _listed(options.allow), _listed(options.deny)
        self._trusted = tuple(glob.casefold() for glob in options.values)
        plain = [entry for entry in self._trusted if not set(entry) & set("*?[")]
        self._named = frozenset(address for entry in plain for address in addresses(entry))
        self.limit = _LEVELS.index(options.discloses)
        self._memories: BoundedDict[_Key, _Memory] = BoundedDict(options.conversations)
        self._forgotten: BoundedDict[_Key, bool] = BoundedDict(MAX_FORGOTTEN)
        self._lock = threading.Lock()

    def judge(self, action: Action) -> Decision | None:
        """Takes note of texts; gives the verdict on tool calls."""
        if action.point is Point.PRE_TOOL_CALL:
            return self._on_tool_call(action)
        if action.point is Point.INPUT:
            if action.text and action.parent_id is None and action.source in (None, "user", "system"):
                self._note_said(action, [action.text])
        elif action.point is Point.PRE_MODEL_CALL:
            self._note_said(action, _user_texts(action))
            if self.messages:
                self._note_said(action, _system_texts(action.arguments.get("messages")), "system")
        elif action.point is Point.POST_TOOL_CALL and action.text:
            self._note_result(action, action.text)
        return None

    def observe(self, event: Any) -> None:
        """Takes note of the result of a call, where no adapter shows it to `judge`."""
        if isinstance(event, ToolOutcome) and event.result and Point.POST_TOOL_CALL in self.listens_at:
            self._note_result(event.action, event.result)

    # ------------------------------------------------------------------ what is remembered

    def _note_said(self, action: Action, texts: Iterable[str], origin: str = "user") -> None:
        for text in texts:
            self._note(action, (origin, hash(text)), lambda _, text=text: _Text.of_user(text, origin))

    def _note_result(self, action: Action, text: str) -> None:
        values = self._values(action)
        used = [value for value in values if isinstance(value.form, Address) or len(value.loose) - 2 >= MIN_VALUE]

        def text_of(memories: Sequence[_Memory]) -> _Text:
            user_texts = [_Text.of_user(text) for text in _user_texts(action)]
            user_texts += [text for memory in memories for text in memory.user_texts.values() if text.origin == "user"]
            pointed = any(text.holds(value) for value in used for text in user_texts)
            results = (text for memory in memories for text in memory.results.values())
            tainted = action.kind in ("agent", "handoff") and not all(map(self._is_trusted, results))
            return _Text.of_result(action.name, text, pointed=pointed, tainted=tainted)

        self._note(action, (action.name, hash(text), hash(tuple(value.form for value in used))), text_of)

    def _note(self, action: Action, mark: Any, make: Callable[[Sequence[_Memory]], _Text]) -> None:
        with self._lock:
            memories = [self._memory(key) for key in _keys(action)]
            if not memories or all(mark in memory.user_texts or mark in memory.results for memory in memories):
                return
            text = make(memories)
            for memory in memories:
                memory.add(mark, text)
            while not text.is_users and sum(memory.size for memory in self._memories.values()) > MAX_ALL:
                self._forget(self._memories.values()[0])

    def _memory(self, key: _Key) -> _Memory:
        """The memory of a conversation, as the one used last."""
        memory = self._memories.get(key) or _Memory(key, lost=key in self._forgotten)
        if (dropped := self._memories.put(key, memory)) is not None:
            self._forget(dropped)
        return memory

    def _forget(self, memory: _Memory) -> None:
        self._memories.pop(memory.key)
        if memory.results or memory.lost:
            self._forgotten.put(memory.key, True)

    def continue_from(self, previous: object) -> None:
        """Goes on with the texts that ``previous`` remembers, which this one replaces."""
        if isinstance(previous, FlowPolicy):
            self._memories, self._forgotten = previous._memories, previous._forgotten

    # ------------------------------------------------------------------ the verdict

    def _values(self, action: Action, *, judged: bool = False) -> Iterator[_Value]:
        """The values in the arguments, for the verdict (``judged``) only of those that it is about.

        Raises `Unclear` there for what cannot be looked at.
        """
        try:
            for name, text in strings_in(action.arguments):
                strict = judged and matches_any(name, self.whole)
                if strict:
                    yield _Value(name, "value", words_of(text), text=text)
                if judged and not matches_any(name, self.arguments):
                    continue
                if len(text) > MAX_TEXT:
                    raise Unclear(f"{self.slug}-unscanned", f"{_place(name)} is longer than {MAX_TEXT} characters.")
                named = addresses(text, name)
                values = [_Value(name, address.kind, address) for address in named]
                if not named and text.strip():
                    kind = "number" if re.fullmatch(r"[\d.,+-]+", text) else "name"
                    kind = kind if len(text) <= MAX_VALUE else "text"
                    values = [_Value(name, kind, words_of(text), loose_words(text))]
                values = [value for value in values if value.kind in self.kinds or not judged]
                if judged and (values or strict) and INVISIBLE.search(text):
                    reason = f"{_place(name)} hides characters in an address. Write it plainly."
                    raise Unclear(f"{self.slug}-hidden", reason)
                yield from values
        except Unclear as error:
            if judged and error.rule == "arguments-unlookable":
                raise Unclear(f"{self.slug}-unscanned", f"{error}, so they were not looked at.") from error
            if judged:
                raise

    def _on_tool_call(self, action: Action) -> Decision:
        try:
            values = list(self._values(action, judged=True))
        except Unclear as error:
            return self.deny(error.rule, error.reason)
        if not values and self.limit == len(_LEVELS) - 1:
            return self.allow()
        with self._lock:
            user_texts, memories, lost = self._texts(action)
            leak = self._leak(action, user_texts, memories, lost=lost)
            return leak or self._verdict(action, values, user_texts, memories, lost=lost)

    def sources(self, action: Action) -> list[ValueSource]:
        """The texts that each judged value of a call is in."""
        with self._lock:
            user_texts, memories, _ = self._texts(action)
            sources: list[ValueSource] = []
            for value in self._values(action):
                labels = [source for source, _ in self._sources(value, user_texts, memories)]
                names = tuple(dict.fromkeys(name for _, name in labels))
                sources.append(ValueSource(value.argument, value.form, names, "pointed" in dict(labels)))
        return sources

    def _texts(self, action: Action) -> tuple[list[_Text], list[_Memory], bool]:
        """The texts of the user that a call knows, the memories with results, and whether some were forgotten."""
        keys = _own_keys(action) or _keys(action)
        own = [_Text.of_user(text) for text in _user_texts(action)]
        memories = [memory for memory in map(self._memories.get, keys) if memory is not None]
        user_texts = [*own, *dict.fromkeys(text for memory in memories for text in memory.user_texts.values())]
        lost = not (keys or own) or any(memory.lost for memory in memories) or any(map(self._forgotten.get, keys))
        return user_texts, memories, lost

    def _verdict(
        self,
        action: Action,
        values: Sequence[_Value],
        user_texts: Sequence[_Text],
        memories: Sequence[_Memory],
        *,
        lost: bool,
    ) -> Decision:
        taken: dict[tuple[_Text, str], set[Address | str]] = {}
        came: dict[str, None] = {}
        for value in values:
            sources = list(self._sources(value, user_texts, memories))
            names = list(dict.fromkeys(name for (_, name), _ in sources))
            allowed = [source for source in sources if self._matches(source[0], self.allowed)]
            pointed = [text for (label, _), text in allowed if label == "pointed"]
            came[f"{_place(value.argument)}: {', '.join(names[:4]) or 'the model'}"] = None
            if self._trusts(value) or len(pointed) < len(allowed):
                continue
            denied = lost or any(self._matches(source, self.denied) for source, _ in sources)
            if pointed:
                taken.setdefault((pointed[0], value.argument), set()).add(value.form)
            elif isinstance(value.form, Address) or denied or (not sources and {"*", "model"} & set(self.denied)):
                return self._refusal(
                    value, names, has_texts=bool(user_texts or any(memory.results for memory in memories))
                )
        for (text, argument), forms in taken.items():
            if not forms <= text.endorsed.get((action.name, argument), forms):
                reason = f"{_place(argument)} was already taken from {text.origin[:80]}, as another value. Ask the user for it"
                return self.deny(f"{self.slug}-endorsed", reason)
        for (text, argument), forms in taken.items():
            text.endorsed.setdefault((action.name, argument), frozenset(forms))
        return Decision(Effect.ALLOW, self.name, self.slug, "; ".join(came)[:MAX_NAME])

    def _sources(
        self, value: _Value, user_texts: Sequence[_Text], memories: Sequence[_Memory]
    ) -> Iterator[tuple[tuple[str, str], _Text]]:
        """The labels under which texts have a value, each with the name of the text or field, and the text."""
        results = dict.fromkeys(text for memory in memories for text in memory.results_with(value))
        for text in (*user_texts, *results):
            origin, fields = text.origin.replace(":", " "), text.fields.get(value.form, ())
            yield from ((("fields", f"{origin}:{name}"), text) for name in fields)
            if not fields and not text.holds(value):
                continue
            yield (origin if text.is_users else "trusted" if self._is_trusted(text) else "untrusted", origin), text
            if text.pointed and not text.opaque and text.alone(value.form):
                yield ("pointed", origin), text

    def _matches(self, source: tuple[str, str], entries: Sequence[str]) -> bool:
        label, name = source
        by_name = label in _OF_TOOLS and any(
            entry not in CLASSES and surely_matches(name, (entry,)) for entry in entries
        )
        return label in entries or "*" in entries or by_name

    def _is_trusted(self, text: _Text) -> bool:
        return not (text.opaque or text.tainted) and all(label.returns == "trusted" for label in self._labels(text))

    def _labels(self, text: _Text) -> list[Returns]:
        by_name = self.tools.get(text.origin)
        globs = () if by_name is not None else self.tools.items()
        labels = [label for glob, label in globs if matches_any(text.origin, [glob])]
        return [by_name] if by_name is not None else labels or [_UNKNOWN]

    def _leak(
        self, action: Action, user_texts: Sequence[_Text], memories: Sequence[_Memory], *, lost: bool
    ) -> Decision | None:
        """The denial of a call that would tell what is too confidential for it."""
        if self.limit == len(_LEVELS) - 1:
            return None
        too_much = _LEVELS[self.limit + 1 :]
        results = (text for memory in memories for text in memory.results.values())
        closed = [text for text in results if any(label.holds in too_much for label in self._labels(text))]
        for name, text in strings_in(action.arguments) if closed else ():
            words = loose_words(text).split()
            for result in closed if matches_any(name, self.arguments) else ():
                if result.shares(words, user_texts):
                    reason = f"{_place(name)} has words out of {result.origin[:80]}, whose results may not be told here"
                    return self.deny(f"{self.slug}-discloses", f"{reason}. Leave them out.")
        forgotten = "Results were forgotten that may not be told here. Ask the user to begin anew."
        return self.deny(f"{self.slug}-discloses", forgotten) if lost else None

    def _refusal(self, value: _Value, names: Sequence[str], *, has_texts: bool) -> Decision:
        where = f"The {value.kind} in {_place(value.argument)}"
        if not has_texts:
            return self.deny(
                f"{self.slug}-unknown",
                f"{_place(value.argument)} holds an address ({value.kind}), but what the user said is not known here; judge the"
                " user's input in the same agent run, session or rollout, or give it as user_text in the action's context",
            )
        if set(self.allowed) == {"user", "system"}:
            reason = f"{where} was not given by the user. Use only addresses the user has named, or ask them"
        else:
            came = f"comes from {', '.join(names[:4])[:200]}" if names else "is in no text that was read"
            reason = f"{where} {came}. Here it must come from: {', '.join(self.allowed)[:200]}. Otherwise ask the user"
        return self.deny(f"{self.slug}-unsaid", reason)

    def _trusts(self, value: _Value) -> bool:
        address = value.form
        if isinstance(address, str):
            return value.kind == "value" and bool(surely_matches(value.text.casefold(), self._trusted))
        form = address.form.casefold()
        if address.kind == "url":  # the host and the path are matched each on its own: a path may hold any host's name
            host, _, path = page_of(address).casefold().partition("/")
            for glob in self._trusted:
                host_glob, slash, path_glob = glob.removeprefix("https://").removeprefix("http://").partition("/")
                if "@" not in glob and fnmatchcase(host, host_glob) and (not slash or fnmatchcase(path, path_glob)):
                    return True
        elif address.kind == "email" and re.search(r"@.*@|[%!|].*@", form):  # which may lead by another host
            return False
        elif surely_matches(form, tuple(glob for glob in self._trusted if ("@" in glob) == (address.kind == "email"))):
            return True
        bare = address if address.kind != "url" else Address("url", page_of(address))
        return any(covers(named, variant) for named in self._named for variant in (address, bare))


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
    """Denies a tool call with an address that the user has not said: the flow of addresses with ``allow: [user, system]``.

    Addresses are e-mail addresses, URLs and host names, paths, account numbers and wallets, and phone numbers (``kinds``).
    They are looked for in the arguments whose key, at any depth, matches a glob of ``arguments``. An argument named in
    ``whole`` counts as one address as a whole. What a tool returned was not said by the user.

    What the user said is: ``Action.context["user_text"]`` of tool calls and model calls; texts at ``input`` whose
    ``source`` is not an agent or a tool; and, with ``messages``, the system messages at the beginning of a model call
    (not later ones, and not messages in the user's role, which agents write to each other). It is remembered by the
    rollout and session of the scope, by the outermost agent run, and by the conversation that the framework names (LangGraph's
    thread, the SDK's session, AutoGen's team), which then takes the place of the rollout; so the rule must cover ``input`` and
    ``pre_model_call`` too, as it does without ``on:``. Where nothing is known of the user, a call with an address is denied.

    Addresses are compared by what they name: hosts in lower case and ASCII form, paths without ``..``. A URL covers the
    pages below it and a folder its files. A host covers its pages, but no subdomain. A query string, a fragment or a user
    in a URL is covered by the whole URL only. ``trusted`` are globs for addresses that need not be said:
    ``*@example.org``, ``example.org/*``, ``/srv/data/*``.

    Remembers at most ``conversations`` rollouts, sessions and runs, the ones used last. May be called from several threads at
    once. Fails closed: what is forgotten was not said.
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


def _keys(action: Action) -> list[tuple[str, str]]:
    keys = [("rollout", action.rollout_id), ("session", action.session_id), ("run", action.run_id)]
    return [*_own_keys(action), *((kind, value) for kind, value in keys if value is not None)]


def _own_keys(action: Action) -> list[tuple[str, str]]:
    """The keys by which a call reads what the user said; none but the run's and the conversation's where a framework names it.

    Several such conversations may share one rollout, and another rollout may have one of that name.
    """
    scope = current_scope()
    if scope is None or action.rollout_id is None or action.session_id in (None, scope.session_id):
        return []
    run = [] if action.run_id is None else [("run", action.run_id)]
    return [("conversation", f"{action.rollout_id} {action.session_id}"), *run]


def _user_texts(action: Action) -> list[str]:
    raw = action.context.get("user_text")
    return [text for text in (raw if isinstance(raw, list | tuple) else [raw]) if isinstance(text, str)]


def _system_texts(messages: Any) -> Iterator[str]:
    """The text of the system's messages before all others; results of tools within them are left out."""
    for message in messages if isinstance(messages, list | tuple) else ():
        if not isinstance(message, Mapping) or str(message.get("role", "")).lower() not in _ROLES:
            return  # later ones are made in the conversation: pages out of a memory, summaries
        content = message.get("content")
        if isinstance(content, str):
            yield content
        for content_part in content if isinstance(content, list | tuple) else ():
            if (
                isinstance(content_part, Mapping)
                and content_part.get("type") in ("text", "input_text")
                and isinstance(content_part.get("text"), str)
            ):
                yield content_part["text"]


def _place(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 40 else "an argument"
