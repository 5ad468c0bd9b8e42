"""The texts of conversations, and which of them has a value: what the user said, and what tools returned."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from lgov_core._util.containers import BoundedDict
from lgov_core.policies.network.addresses import (
    Address,
    account_form,
    addresses,
    covers,
    leaves_of,
    loose_words,
    words_of,
)
from lgov_core.scope import current_scope
from lgov_core.types import Action

#: Characters of one text that is looked into; a longer result is opaque.
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
#: Words in a row that show that a text was copied out of another.
_RUN: Final = 4
#: What a text that may hold any value is looked up by.
_ANYTHING: Final = ""
_MAY_HOLD_AN_ADDRESS: Final = re.compile(r"[@./:\\]|\d\d")
_ROLES: Final = ("system", "developer")

_Key: TypeAlias = tuple[str, str]


class UsedValue(NamedTuple):
    """A value of an argument: the address that it is, or its words, and these as they are looked for in results."""

    argument: str
    kind: str
    form: Address | str
    loose: str = ""
    text: str = ""

    @property
    def is_sought(self) -> bool:
        """True where the value is looked for within texts; a shorter one is found as a field only."""
        return isinstance(self.form, Address) or len(self.loose) - 2 >= MIN_VALUE


@dataclass(slots=True, eq=False)
class KnownText:
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
    def of_user(cls, text: str, origin: str = "user") -> KnownText:
        """A text that the user or the developer wrote."""
        words, named = words_of(text[:MAX_WORDS]), addresses(text[:MAX_TEXT])[:MAX_ADDRESSES]
        return cls(origin, words, loose_words(words), addresses=frozenset(named), is_users=True, size=len(words))

    @classmethod
    def of_result(cls, origin: str, text: str, *, pointed: bool, tainted: bool) -> KnownText:
        """The result of a tool."""
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

    def holds(self, value: UsedValue) -> bool:
        """Returns whether the value is in the text: for an address of the user's also when it is covered by one there."""
        form = value.form
        if isinstance(form, str):
            if self.is_users:
                return bool(form.strip()) and form in self.words
            first = value.loose.split(maxsplit=1)[:1]
            is_inside = value.is_sought and first[0] in self.vocabulary and value.loose in self.loose
            return self.opaque or is_inside
        if form in self.addresses or (self.is_users and any(covers(address, form) for address in self.addresses)):
            return True
        # A file named as it is: without a folder, or with blanks in its name.
        is_name = self.is_users and form.kind == "path" and ("/" not in form.form or " " in form.form)
        return is_name and bool(words := words_of(form.form).strip()) and f" {words} " in self.words

    def index_keys(self) -> Iterator[Address | str]:
        """Yields the keys of a result in an index: its words, its addresses and the values of its fields, each once."""
        if self.is_users:
            return
        yield from (_ANYTHING,) if self.opaque else self.vocabulary
        yield from self.addresses
        yield from (form for form in self.fields if form not in self.addresses)

    def alone(self, form: Address | str) -> bool:
        """Returns whether an address is the only one of its kind here, so that who points at the text means this one.

        Another reading of the same characters is no other: of an account its digits, of a path the name in it.
        """
        others = [] if isinstance(form, str) else [other.form for other in self.addresses if other.kind == form.kind]
        return isinstance(form, str) or all(other in form.form or form.form in other for other in others)

    def shares(self, words: Sequence[str], user_texts: Sequence[KnownText]) -> bool:
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


class ConversationTexts:
    """The texts of one conversation. ``lost``: some were forgotten, and nobody knows what was in them.

    ``request`` is what the user wrote last.
    """

    def __init__(self, key: _Key, *, lost: bool) -> None:
        self.key, self.lost, self.request = key, lost, ""
        self.user_texts: dict[Any, KnownText] = {}
        self.results: dict[Any, KnownText] = {}
        #: The results by what they are looked up by.
        self.index: dict[Address | str, list[KnownText]] = {}
        #: Characters of the results.
        self.size = 0

    def add(self, mark: Any, text: KnownText) -> None:
        """Remembers a text under ``mark``, and forgets the oldest beyond what may be remembered."""
        kept = self.user_texts if text.is_users else self.results
        if mark in kept:
            return
        kept[mark] = text
        for key in text.index_keys():
            self.index.setdefault(key, []).append(text)
        while len(kept) > MAX_TEXTS or (len(kept) > 1 and sum(text.size for text in kept.values()) > MAX_KEPT):
            dropped = kept.pop(next(iter(kept)))
            self.lost = self.lost or not dropped.is_users
            for key in dropped.index_keys():
                self.index[key].remove(dropped)
                if not self.index[key]:
                    del self.index[key]
        self.size = sum(text.size for text in self.results.values())

    def results_with(self, value: UsedValue) -> Sequence[KnownText]:
        """The results that may have a value; some more than once."""
        index = self.index
        results = [*index.get(value.form, ()), *index.get(_ANYTHING, ())]
        if len(value.loose) - 2 >= MIN_VALUE:
            rarest: Sequence[KnownText] | None = None
            for word in value.loose.split():
                texts = index.get(word)
                if texts is None:
                    return results
                if rarest is None or len(texts) < len(rarest):
                    rarest = texts
            results += rarest or ()
        return results


@dataclass(frozen=True, slots=True)
class KnownTexts:
    """The texts that a call knows: those of the user, and conversations with results; ``lost`` where some were forgotten."""

    user_texts: Sequence[KnownText]
    conversations: Sequence[ConversationTexts]
    lost: bool

    @property
    def results(self) -> Iterator[KnownText]:
        """Each result that is remembered."""
        return (text for conversation in self.conversations for text in conversation.results.values())

    def which_may_have(self, value: UsedValue) -> Iterable[KnownText]:
        """The texts that may have a value, each once."""
        texts = [*self.user_texts]
        for conversation in self.conversations:
            texts += conversation.results_with(value)
        return dict.fromkeys(texts)


class Conversations:
    """The conversations of a process, at most ``limit`` of them: the ones used last. `lock` guards what they hold."""

    def __init__(self, limit: int) -> None:
        self._conversations: BoundedDict[_Key, ConversationTexts] = BoundedDict(limit)
        self._forgotten: BoundedDict[_Key, bool] = BoundedDict(MAX_FORGOTTEN)
        self.lock = threading.Lock()

    def known_to(self, action: Action) -> KnownTexts:
        """The texts that a call knows. To be called under the lock."""
        keys = _own_keys(action) or _keys(action, ())
        own = [KnownText.of_user(text) for text in user_texts_of(action)]
        conversations = self._known(keys)
        user_texts = dict.fromkeys([*own, *(text for each in conversations for text in each.user_texts.values())])
        lost = not (keys or own) or any([each.lost for each in conversations])
        if len(conversations) < len(keys):
            lost = lost or any(map(self._forgotten.get, keys))
        return KnownTexts(tuple(user_texts), conversations, lost)

    def note_said(self, action: Action, texts: Iterable[str], origin: str = "user") -> None:
        """Remembers what the user or the developer wrote, the last text last."""
        for text in texts:
            self._note(action, (origin, hash(text)), lambda _, text=text: KnownText.of_user(text, origin))
            with self.lock:
                for conversation in self._known(_keys(action, _own_keys(action))) if origin == "user" else ():
                    conversation.request = text

    def request_of(self, action: Action) -> str:
        """The last text of the user before a call, in its run where that is known; empty where nothing is known."""
        if own := user_texts_of(action):
            return own[-1]
        keys = sorted(_own_keys(action) or _keys(action, ()), key=lambda key: key[0] != "run")
        with self.lock:
            return next((each.request for each in self._known(keys) if each.request), "")

    def note_result(
        self, action: Action, text: str, used: Sequence[UsedValue], is_trusted: Callable[[KnownText], bool]
    ) -> None:
        """Remembers what a tool returned, which was called with the values ``used``."""

        def text_of(conversations: Sequence[ConversationTexts]) -> KnownText:
            user_texts = [KnownText.of_user(text) for text in user_texts_of(action)]
            user_texts += [text for each in conversations for text in each.user_texts.values() if text.origin == "user"]
            pointed = any(text.holds(value) for value in used for text in user_texts)
            results = (text for each in conversations for text in each.results.values())
            tainted = action.kind in ("agent", "handoff") and not all(map(is_trusted, results))
            return KnownText.of_result(action.name, text, pointed=pointed, tainted=tainted)

        self._note(action, (action.name, hash(text), hash(tuple(value.form for value in used))), text_of)

    def _note(self, action: Action, mark: Any, make: Callable[[Sequence[ConversationTexts]], KnownText]) -> None:
        with self.lock:
            conversations = [self._conversation(key) for key in _keys(action, _own_keys(action))]
            if not conversations or all(mark in each.user_texts or mark in each.results for each in conversations):
                return
            text = make(conversations)
            for each in conversations:
                each.add(mark, text)
            while not text.is_users and sum(each.size for each in self._conversations.values()) > MAX_ALL:
                self._forget(self._conversations.values()[0])

    def _known(self, keys: Iterable[_Key]) -> list[ConversationTexts]:
        return [each for each in map(self._conversations.get, keys) if each is not None]

    def _conversation(self, key: _Key) -> ConversationTexts:
        """The conversation of a key, as the one used last."""
        conversation = self._conversations.get(key) or ConversationTexts(key, lost=key in self._forgotten)
        if (dropped := self._conversations.put(key, conversation)) is not None:
            self._forget(dropped)
        return conversation

    def _forget(self, conversation: ConversationTexts) -> None:
        self._conversations.pop(conversation.key)
        if conversation.results or conversation.lost:
            self._forgotten.put(conversation.key, True)


def _keys(action: Action, own: Sequence[_Key]) -> list[_Key]:
    keys = [("rollout", action.rollout_id), ("session", action.session_id), ("run", action.run_id)]
    return [*own, *[(kind, value) for kind, value in keys if value is not None]]


def _own_keys(action: Action) -> list[_Key]:
    """The keys by which a call reads what the user said; none but the run's and the conversation's where a framework names it.

    Several such conversations may share one rollout, and another rollout may have one of that name.
    """
    scope = current_scope()
    if scope is None or action.rollout_id is None or action.session_id in (None, scope.session_id):
        return []
    run = [] if action.run_id is None else [("run", action.run_id)]
    return [("conversation", f"{action.rollout_id} {action.session_id}"), *run]


def user_texts_of(action: Action) -> list[str]:
    """The user's texts in the context of an action."""
    raw = action.context.get("user_text")
    return [text for text in (raw if isinstance(raw, list | tuple) else [raw]) if isinstance(text, str)]


def system_texts(messages: Any) -> Iterator[str]:
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
