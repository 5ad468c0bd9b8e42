"""ContentPolicy: looks at every string of an action for the patterns of a table, and denies it or takes out what it found."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Final, Literal

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import PolicyError
from lgov_core.governor.options import DataFile
from lgov_core.governor.patterns import surely_matches
from lgov_core.policies.base import BoundedPolicy
from lgov_core.policies.content.text_views import readings, searching, written_number
from lgov_core.policies.options import Count, PolicyOptions, Texts, takes
from lgov_core.types import Action, Decision, Point, Severity

#: A value given to a name: ``name = value``, ``"name": "value"``, ``--name value``, ``name: value``. The name is found by its
#: last word; what follows it is anchored there, so nothing is tried twice.
_NAMED_VALUE: Final = (
    r"(?i)(?:%s)s?(?:_(?:prod|dev|staging|stage|live|test|main|\d{1,2})|\d{1,2})?"
    r"(?:\s{0,4}[\"'\]`]){0,2}(?:\s{0,3}(?:=>|:=|==?|:)\s{0,3}(?:[bru]{0,2}[\"'`])?|>)([^\s\"'`<]{6,160})"
)
_BODY: Final = r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])"


@cache
def load_patterns(file: str, check_of: Callable[[Mapping[str, Any]], Check | None]) -> tuple[Pattern, ...]:
    """The patterns of a file beside this module, read once; ``check_of`` gives the check of a row."""
    data = DataFile("lgov_core.policies.content", file)
    patterns: list[Pattern] = []
    for row in data.content["patterns"]:
        if "regex" in row:
            regex = data.written_out(row["regex"])
        else:
            body = data.written_out(row.get("body") or row["names"])
            regex = (_BODY if "body" in row else _NAMED_VALUE) % body
        hints = tuple(row.get("hints", ()))
        patterns.append(Pattern(row["kind"], re.compile(regex), hints, "body" not in row, check_of(row)))
    return tuple(patterns)


#: Characters to the left of a value in which the word that gives it its meaning may stand.
CONTEXT = 64
#: Characters before a value at which the shape that it is a part of may begin.
LOOK_BACK = 320


@dataclass(frozen=True, slots=True, order=True)
class ContentFinding:
    """``text[start:end]`` is something of ``kind``."""

    start: int
    end: int
    kind: str


_DIGIT = re.compile(r"\d")

#: Gets (text, start, end) of a match; returns the end of what is really there (it may be shorter), or None for nothing.
Check = Callable[[str, int, int], int | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape that values of a kind have.

    Runs in linear time: ``regex`` begins with a literal or a look-behind that keeps it from starting anew inside a run of
    its own characters, and no repeat in it is nested in another that takes the same characters. It is only tried when one
    of ``hints`` (lower case) occurs in the lower-cased text; none means that a digit must. The value is group 1 where
    there is one.
    """

    kind: str
    regex: re.Pattern[str]
    hints: tuple[str, ...] = ()
    named: bool = False
    check: Check | None = None

    @property
    def is_format(self) -> bool:
        """True if no text of another kind has this shape by chance: a format of keys that begins with letters of its own."""
        return bool(self.hints) and min(map(len, self.hints)) > 2 and not self.named

    def find(self, text: str, start: int) -> Iterator[ContentFinding]:
        """The values from ``start`` on, from left to right."""
        group = 1 if self.regex.groups else 0
        # The name that a value is given to may stand before `start`.
        position = max(0, start - LOOK_BACK) if group else start
        search = searching(self.regex, text).search
        while (match := search(text, position)) is not None:
            begin = match.start(group)
            # The next match may begin one character on, so that what is found at a place depends on no other match.
            position = match.start() + 1
            if begin < start:
                continue
            end = match.end(group) if self.check is None else self.check(text, begin, match.end(group))
            if end is not None:
                yield ContentFinding(begin, end, self.kind)
                position = position if group else end


def _find_all(patterns: Sequence[Pattern], text: str, start: int) -> Iterator[ContentFinding]:
    """Everything that any of the patterns finds in ``text`` from ``start`` on."""
    lowered, has_digit = text.lower(), _DIGIT.search(text) is not None
    for pattern in patterns:
        if any(map(lowered.__contains__, pattern.hints)) if pattern.hints else has_digit:
            yield from pattern.find(text, start)


def left_of(text: str, start: int, characters: int = CONTEXT) -> str:
    """The text before ``start``, at most ``characters`` of it."""
    return text[max(0, start - characters) : start]


def look_through(text: str, patterns: Sequence[Pattern], start: int = 0) -> list[ContentFinding]:
    """Returns the findings in all readings of ``text`` from ``start`` on, as places in ``text``, merged where they overlap."""
    findings: list[ContentFinding] = []
    formats: list[Pattern] | None = None
    for reading in readings(text):
        if reading.garbled and formats is None:
            formats = [pattern for pattern in patterns if pattern.is_format]
        for finding in _find_all(patterns if formats is None or not reading.garbled else formats, reading.text, 0):
            begin, end = reading.span(finding.start, finding.end)
            if begin >= start or (reading.depth and end > start):
                findings.append(ContentFinding(begin, end, finding.kind))
    return merged(findings)


def merged(findings: Iterable[ContentFinding]) -> list[ContentFinding]:
    """The findings in order, overlapping ones as one: it is called what the first, and of those the longest, is called."""
    together: list[ContentFinding] = []
    for finding in sorted(findings, key=lambda f: (f.start, -f.end)):
        if together and finding.start < together[-1].end:
            last = together[-1]
            together[-1] = ContentFinding(last.start, max(last.end, finding.end), last.kind)
        else:
            together.append(finding)
    return together


ContentAction = Literal["deny", "redact"]

#: Characters of one action, over all its strings. More is denied: what was not looked at is not let through.
MAX_CHARACTERS: Final = 1_000_000
#: Texts without findings that a policy remembers.
_MOST_CLEAN: Final = 65_536
#: How deep the arguments may be nested.
MAX_DEPTH: Final = 64
_KEY_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")


class ContentOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of a `ContentPolicy`; without a ``name`` it has its usual one."""

    action: ContentAction = "deny"
    kinds: Texts | None = None
    allow: Texts = ()
    max_characters: Count = MAX_CHARACTERS
    name: str = ""


class ContentPolicy(BoundedPolicy):
    """Base of the policies that look at what is written in an action rather than at what it does.

    Every string counts: the text, and the arguments at any depth with the keys of mappings, bytes, and whole numbers. A
    string under a key is read as the value given to it. ``kinds`` are the kinds to look for; ``allow`` are globs (letter
    case ignored) for values that may pass. With ``redact`` each value is replaced by its kind in brackets; a number becomes
    a string then, and what cannot be replaced (an object that is not JSON) is denied.

    Pictures, recordings and files are not read; the reason of an allow names their kinds.

    Time is linear in the action's characters; more than ``max_characters`` are denied. A reason names kinds and places,
    never the value. May be called from several threads at once. Fails closed.
    """

    default_points: ClassVar[tuple[Point, ...]] = (
        Point.INPUT,
        Point.PRE_MODEL_CALL,
        Point.POST_MODEL_CALL,
        Point.PRE_TOOL_CALL,
        Point.POST_TOOL_CALL,
        Point.OUTPUT,
    )
    #: What begins the rule of a denial and the name of its file of patterns, and what such a thing is called in a reason.
    slug: ClassVar[str]
    noun: ClassVar[str]
    severity: ClassVar[Severity] = Severity.HIGH
    #: Its usual name; what makes the check of a row.
    usual_name: ClassVar[str]
    check_of: ClassVar[Callable[[Mapping[str, Any]], Check | None]]

    @takes(ContentOptions)
    def __init__(self, options: ContentOptions) -> None:
        self.name = name = options.name or self.usual_name
        patterns = load_patterns(f"{self.slug}_formats.yaml", self.check_of)
        all_kinds = sorted({pattern.kind for pattern in patterns})
        chosen = all_kinds if options.kinds is None else options.kinds
        for kind in chosen:
            if kind not in all_kinds:
                raise PolicyError(
                    f"{name}: kinds holds {kind!r}, which is unknown", hint=f"write one of: {', '.join(all_kinds)}"
                )
        if not chosen:
            raise PolicyError(f"{name}: kinds is empty, so nothing would be looked for", hint="leave kinds out for all")
        self.action: ContentAction = options.action
        self.kinds = frozenset(chosen)
        self.max_characters = options.max_characters
        self._allow = tuple(glob.casefold() for glob in options.allow)
        self._patterns = [pattern for pattern in patterns if pattern.kind in self.kinds]
        self._clean: BoundedDict[tuple[int, bytes], bool] = BoundedDict(_MOST_CLEAN)

    def judge(self, action: Action) -> Decision | None:
        """The verdict on whatever the action's text and arguments hold."""
        walk = _Walk(self, self.max_characters)
        try:
            arguments = walk.value(action.arguments, "", "arguments", 0)
            text = walk.text(action.text, "", "text") if action.text is not None else None
        except _Unlookable as error:
            return self.deny(f"{self.slug}-unscanned", str(error), self.severity)
        if not walk.found:
            unread = action.context.get("media")
            return replace(self.allow("unread"), reason=f"It did not read: {unread}.") if unread else self.allow()
        what = "; ".join(f"{kind} in {where}" for kind, where in list(walk.found)[:5])
        if self.action == "deny" or walk.fixed:
            advice = "Leave it out" if self.action == "deny" else "It cannot be replaced there; leave it out"
            kind = next(iter(walk.found))[0]
            return self.deny(
                f"{self.slug}-{kind.replace('_', '-')}", f"There is {self.noun} in it: {what}. {advice}.", self.severity
            )
        return self.transform(
            f"{self.slug}-redacted",
            f"Replaced {self.noun}: {what}.",
            arguments=arguments if arguments is not action.arguments else None,
            text=text if text != action.text else None,
        )

    def find(self, text: str, start: int = 0) -> list[ContentFinding]:
        """Returns the findings in ``text`` from ``start`` on, in order and without overlaps; the text before it is context."""
        # A conversation comes again with each of its calls: what was clean is known by its digest.
        key = start, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if self._clean.get(key):
            return []
        findings = look_through(text, self._patterns, start)
        if not findings:
            self._clean.put(key, True)
        return [f for f in findings if not surely_matches(text[f.start : f.end].casefold(), self._allow)]

    def replacement(self, kind: str) -> str:
        """The text that stands in place of a value of ``kind``."""
        return f"[{kind.upper()}]"


class _Unlookable(Exception):
    """An action that is too large or too deep to be looked at."""


@dataclass(slots=True)
class _Walk:
    """One way through the strings of an action. ``found`` keeps (kind, place) in the order of finding."""

    policy: ContentPolicy
    left: int
    found: dict[tuple[str, str], None] = field(default_factory=dict)
    fixed: bool = False

    def value(self, value: Any, key: str, where: str, depth: int) -> Any:
        """``value`` as it is after redaction: the same object when nothing was found in it."""
        if depth > MAX_DEPTH:
            raise _Unlookable(f"The arguments are nested deeper than {MAX_DEPTH} levels, so they were not looked at.")
        if isinstance(value, str):
            return self.text(value, key, where)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self.number(value, key, where)
        if isinstance(value, Mapping):
            return self.mapping(value, where, depth)
        if isinstance(value, list | tuple):
            items = [self.value(item, key, where, depth + 1) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return self.other(value, key, where)

    def mapping(self, mapping: Mapping[Any, Any], where: str, depth: int) -> Any:
        changed: dict[Any, Any] = {}
        same = True
        for key, item in mapping.items():
            new_key = self.text(key, "", f"a key of {where}") if isinstance(key, str) else self.other(key, "", where)
            named = new_key is key and isinstance(key, str) and _PLAIN_KEY.fullmatch(key) is not None
            new_item = self.value(
                item, key if isinstance(key, str) else "", f"{where}.{key}" if named else where, depth + 1
            )
            while new_key in changed:  # two keys that held a value each, now called the same
                new_key = f"{new_key}_"
            changed[new_key] = new_item
            same = same and new_key is key and new_item is item
        return mapping if same else changed

    def text(self, text: str, key: str, where: str) -> str:
        self.left -= len(text)
        if self.left < 0:
            raise _Unlookable(f"It is longer than {self.policy.max_characters} characters, so it was not looked at.")
        before = f'"{_KEY_WORDS.sub("_", key[:60])}": "' if key else ""
        findings = self.policy.find(f'{before}{text}"', len(before)) if before else self.policy.find(text)
        if not findings:
            return text
        parts: list[str] = []
        last = 0
        for finding in findings:
            start, end = max(finding.start - len(before), last), min(finding.end - len(before), len(text))
            self.found[finding.kind, where] = None
            parts += [text[last:start], self.policy.replacement(finding.kind)]
            last = end
        return "".join([*parts, text[last:]])

    def number(self, number: float, key: str, where: str) -> Any:
        written = written_number(number)
        redacted = self.text(written, key, where) if written is not None else None
        return number if redacted == written else redacted

    def other(self, value: Any, key: str, where: str) -> Any:
        """Looks at a value that is not JSON as it would be printed; it cannot be replaced."""
        if isinstance(value, bytes | bytearray | memoryview):
            written = bytes(value).decode("utf-8", "replace")
        elif isinstance(value, set | frozenset):
            written = "\n".join(str(item) for item in value)
        else:
            written = str(value)
        if self.text(written, key, where) != written:
            self.fixed = True
        return value
