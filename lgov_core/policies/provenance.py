"""ProvenancePolicy: an agent may only use addresses that its user has named."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

from lgov_core._util.containers import BoundedDict
from lgov_core.governor.patterns import matches_any, surely_matches
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.content.text_views import INVISIBLE, written_number
from lgov_core.policies.network.addresses import KINDS, Address, AddressKind, addresses, covers, page_of
from lgov_core.policies.options import Count, PolicyOptions, Text, Texts, YesOrNo, takes
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Point

#: Characters of one argument, and of one thing the user said, in which addresses are looked for.
MAX_TEXT: Final = 200_000
#: Addresses of one conversation that are remembered; later ones are not, and count as not said.
MAX_SAID: Final = 2_000
#: Characters of what the user said that are kept, for arguments that must have been said as a whole.
MAX_WORDS: Final = 20_000
#: Texts of one conversation that are known to be repetitions.
MAX_TEXTS: Final = 512
MAX_DEPTH: Final = 32
#: Characters of the name of an argument.
MAX_NAME: Final = 1_000
_ROLES: Final = ("system", "developer")


class _Said:
    """The addresses and words that the users of one conversation have said."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.addresses: set[Address] = set()
        self.words: deque[str] = deque()
        self.length = 0
        self.texts: BoundedDict[int, bool] = BoundedDict(MAX_TEXTS)
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        mark = hash(text)
        if mark in self.texts:
            return
        self.texts.put(mark, True)
        for address in addresses(text[:MAX_TEXT]):
            if len(self.addresses) < MAX_SAID:
                self.addresses.add(address)
        words = _words(text[:MAX_WORDS])
        self.words.append(words)
        self.length += len(words)
        while self.length > MAX_WORDS and len(self.words) > 1:
            self.length -= len(self.words.popleft())

    def says(self, value: str) -> bool:
        words = _words(value)
        return bool(words.strip()) and any(words in text for text in self.words)

    def covers(self, used: Address) -> bool:
        """Returns whether an address was said, or a file named as it is: without a folder, or with blanks in its name."""
        if used in self.addresses or any(covers(address, used) for address in self.addresses):
            return True
        return used.kind == "path" and ("/" not in used.form or " " in used.form) and self.says(used.form)


class ProvenanceOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `ProvenancePolicy`."""

    arguments: Texts = ("*",)
    kinds: Sequence[AddressKind] = KINDS
    whole: Texts = ()
    trusted: Texts = ()
    messages: YesOrNo = True
    conversations: Count = 1_000
    name: Text = "provenance"


class ProvenancePolicy(BoundedPolicy):
    """Denies a tool call with an address that the user has not said.

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

    @takes(ProvenanceOptions)
    def __init__(self, options: ProvenanceOptions) -> None:
        self.name = options.name
        self.arguments = tuple(options.arguments)
        self.kinds: frozenset[str] = frozenset(options.kinds)
        self.whole = tuple(options.whole)
        self._trusted = tuple(glob.casefold() for glob in options.trusted)
        plain = [entry for entry in self._trusted if not set(entry) & set("*?[")]
        self._named = frozenset(address for entry in plain for address in addresses(entry))
        self.messages = options.messages
        self.conversations = options.conversations
        self._said: BoundedDict[tuple[str, str], _Said] = BoundedDict(self.conversations)
        self._lock = threading.Lock()

    def judge(self, action: Action) -> Decision | None:
        """Takes note of what the user says; gives the verdict on tool calls."""
        if action.point is Point.INPUT:
            if action.text and action.parent_id is None and action.source in (None, "user", "system"):
                self._note(action, [action.text])
            return None
        if action.point is Point.PRE_MODEL_CALL:
            system = _system_texts(action.arguments.get("messages")) if self.messages else ()
            self._note(action, [*_user_texts(action), *system])
            return None
        return self._on_tool_call(action) if action.point is Point.PRE_TOOL_CALL else None

    def _on_tool_call(self, action: Action) -> Decision:
        used: list[tuple[str, Address | str]] = []
        try:
            strings = list(strings_in(action.arguments))
        except Unclear as error:
            return self.deny("provenance-unscanned", f"{error}, so they were not looked at.")
        for name, text in strings:
            if matches_any(name, self.whole):
                used.append((name, text))
            if not matches_any(name, self.arguments):
                continue
            if len(text) > MAX_TEXT:
                return self.deny("provenance-unscanned", f"{_place(name)} is longer than {MAX_TEXT} characters.")
            used += [(name, address) for address in addresses(text, name) if address.kind in self.kinds]
            if INVISIBLE.search(text) and used and used[-1][0] == name:
                return self.deny(
                    "provenance-hidden", f"{_place(name)} hides characters in an address. Write it plainly."
                )
        if not used:
            return self.allow()
        texts = _user_texts(action)
        sources = [_Said(texts)] if texts else []
        with self._lock:
            for key in _own_keys(action) or _keys(action):
                source = self._said.get(key)
                if source is not None:
                    self._said.put(key, source)  # as the one used last
                    sources.append(source)
            return self._verdict(sources, used)

    def _verdict(self, sources: list[_Said], used: list[tuple[str, Address | str]]) -> Decision:
        for name, value in used:
            if isinstance(value, Address):
                if self._trusts(value) or any(source.covers(value) for source in sources):
                    continue
                what = value.kind
            else:
                if any(source.says(value) for source in sources) or surely_matches(value.casefold(), self._trusted):
                    continue
                what = "value"
            if not sources:
                return self.deny(
                    "provenance-unknown",
                    f"{_place(name)} holds an address ({what}), but what the user said is not known here; judge the user's"
                    " input in the same agent run, session or rollout, or give it as user_text in the action's context",
                )
            return self.deny(
                "provenance-unsaid",
                f"The {what} in {_place(name)} was not given by the user. Use only addresses the user has named, or ask them",
            )
        return self.allow()

    def _trusts(self, address: Address) -> bool:
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

    def _note(self, action: Action, texts: list[str]) -> None:
        keys = _keys(action)
        if not keys or not texts:
            return
        with self._lock:
            for key in keys:
                source = self._said.get(key) or _Said()
                self._said.put(key, source)
                for text in texts:
                    source.add(text)


def _words(text: str) -> str:
    """The words of ``text`` with a space around each, so that a part of a word is not the word."""
    plain = INVISIBLE.sub("", text).casefold().replace("\\", "/")
    for mark in ",;:!?\"'()[]{}<>`":
        plain = plain.replace(mark, " ")
    return " " + " ".join(word.strip(".") for word in plain.split()) + " "


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


def strings_in(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every string with the key it stands under; keys themselves, and numbers as they are written."""
    if depth > MAX_DEPTH:
        raise Unclear("arguments-unlookable", f"The arguments are nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and len(key) > MAX_NAME:
                raise Unclear("arguments-unlookable", f"The arguments have a name longer than {MAX_NAME} characters")
            if isinstance(key, str) and not key.isidentifier():
                yield name, key
            yield from strings_in(item, str(key), depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from strings_in(item, name, depth + 1)
    elif isinstance(value, bytes | bytearray):
        yield name, bytes(value).decode("utf-8", "replace")
    elif isinstance(value, str):
        yield name, value
    elif value is not None and not isinstance(value, bool):
        written = written_number(value) if isinstance(value, int | float) else str(value)
        if written is not None:
            yield name, written


def _place(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 40 else "an argument"
