"""StreamingRedactor: a streamed text that goes out piece by piece, but never a part of what must not go out."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import ClassVar, Final, Protocol

from lgov_core.policies.content.findings import Finding, merged
from lgov_core.policies.content.text_views import View, plain_view
from lgov_core.types import Decision, Effect, Severity

#: Characters that are held back at most. A text that gives no place to cut within them is stopped.
MAX_HELD: Final = 65_536
#: When more are held they are looked at again only once an eighth has come: a reply of small pieces would take minutes.
LONG: Final = 4096
#: Characters before the held ones that are kept, as they may say what a held number is.
KEPT: Final = 512
#: Characters from which no value that holds spaces reaches to the end of the text.
REACH: Final = 160

_MONTH = re.compile(r"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", re.IGNORECASE)
_TOKEN_BEFORE = re.compile(r"\S+\s+\Z")
#: As a look-ahead, because the dashes that end one marker may begin the next.
_KEY_BEGINS = re.compile(r"(?=(-----BEGIN(?: [A-Z0-9]{0,12}){0,5}(?:-----|-{0,5}\Z)))")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,48}-----")
_WORD_ENDS = re.compile(r"\s")
_RUN = re.compile(r"[^\W_]+")
_ASCII_END = re.compile(r"[A-Za-z0-9]+\Z")
#: A sign that joins the words of an address, as a word of its own; and what may become one, or a word that begins with one.
_JOINT = re.compile(r"@|\.|[\[({<]?(?:at|dot)[\])}>]?", re.IGNORECASE)
_JOINT_NEXT = re.compile(r"\Z|[@.\[({<]|at?(?:\s|\Z)|d(?:ot?)?(?:\s|\Z)", re.IGNORECASE)


class _Scanner(Protocol):
    """What is used of `ContentPolicy`, which imports this module."""

    slug: ClassVar[str]
    noun: ClassVar[str]
    severity: ClassVar[Severity]

    @property
    def name(self) -> str: ...
    @property
    def action(self) -> str: ...
    def find(self, text: str, start: int = 0) -> list[Finding]: ...
    def replacement(self, kind: str) -> str: ...


_Hit = tuple[Finding, _Scanner]


class StreamingRedactor:
    """Takes a text chunk by chunk and gives back what may go out.

    A word goes out once it is complete and nothing that ``policies`` look for can go on over its end; prose is held back
    by a word (and the one before it where the two may become an address), a row of digit groups until it is clear what
    it is, a private key until it is over. What a policy replaces goes out replaced. When one denies, the text before the
    place goes out, nothing after it, and ``denied`` holds the decision. However the text is cut into chunks, the same
    characters go out, those that the policies would have made of the whole text (as long as that needs no more than
    `MAX_HELD` characters held; a text that does is stopped).

    One object serves one text, from one thread at a time. Fails closed: after an exception nothing more goes out.
    """

    def __init__(self, *policies: _Scanner) -> None:
        self.policies = policies
        self.denied: Decision | None = None
        self.replaced: dict[str, int] = {}
        self._context = ""
        self._held = ""
        self._enough = 0
        self._over = False

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def feed(self, chunk: str) -> str:
        """Takes the next chunk; what may go out now, which may be nothing."""
        if self._over or not chunk:
            return ""
        self._held += chunk
        if len(self._held) < min(self._enough, MAX_HELD + 1):
            return ""
        self._over = True  # until this went well
        cut = self._cut()
        out = self._release(cut) if cut else ""
        if len(self._held) > MAX_HELD and self.denied is None:
            reason = f"The text gave no place to look at it in {MAX_HELD} characters."
            self.denied = Decision(Effect.DENY, "held-text", "text-unscanned", reason, Severity.HIGH)
            self._held = ""
        self._enough = len(self._held) * 9 // 8 if len(self._held) > LONG else 0
        self._over = self.denied is not None
        return out

    def finish(self) -> str:
        """Ends the text; the rest that may go out. Nothing may be fed after it."""
        if self._over:
            return ""
        self._over = True
        return self._release(len(self._held))

    def _release(self, cut: int) -> str:
        text, start = self._context + self._held[:cut], len(self._context)
        hits = self._hits(text, start)
        out: list[str] = []
        last = start
        for finding, policy in hits:
            out.append(text[last : finding.start])
            kind = finding.kind
            if policy.action == "deny":
                rule = f"{policy.slug}-{kind.replace('_', '-')}"
                reason = f"There is {policy.noun} in it: {kind} in text. The text ends before it."
                self.denied = Decision(Effect.DENY, policy.name, rule, reason, policy.severity)
                self._held = ""
                return "".join(out)
            out.append(policy.replacement(kind))
            self.replaced[kind] = self.replaced.get(kind, 0) + 1
            last = finding.end
        out.append(text[last:])
        self._context = plain_view(text[-4 * KEPT :]).text[-KEPT:]
        self._held = self._held[cut:]
        return "".join(out)

    def _hits(self, text: str, start: int) -> list[_Hit]:
        """The findings of all policies; where two overlap, both are covered, and a denial prevails."""
        hits: list[_Hit] = []
        found = ((finding, policy) for policy in self.policies for finding in policy.find(text, start))
        for finding, policy in sorted(found, key=lambda hit: (hit[0].start, -hit[0].end)):
            if not hits or finding.start >= hits[-1][0].end:
                hits.append((finding, policy))
                continue
            (both,) = merged([hits[-1][0], finding])
            hits[-1] = (both, policy if policy.action == "deny" else hits[-1][1])
        return hits

    def _cut(self) -> int:
        """How many of the held characters may be judged now: none of them can belong to what is still to come."""
        end = _word_start(self._held)
        found = cache(lambda: self._found(end))  # needed for few pieces, and for some more than once
        cut = self._before_groups(end, found)
        if "BEGIN" in self._held or not self._held.isascii():
            view = plain_view(self._held)
            while (earlier := self._before_key(cut, view)) < cut:
                cut = self._before_groups(earlier, found)
        return cut

    def _found(self, end: int) -> list[tuple[int, int]]:
        """Where what is found in the held text before ``end`` begins and ends."""
        offset = len(self._context)
        hits = self._hits(self._context + self._held[:end], offset)
        return [(finding.start - offset, finding.end - offset) for finding, _ in hits]

    def _before_groups(self, end: int, found: Callable[[], list[tuple[int, int]]]) -> int:
        """``end``, or where the words begin that may belong to one value with what follows ``end``.

        ``found`` gives the beginnings and ends of what is found in the held text.
        """
        held, cut = self._held, end
        while cut and end - cut <= 2 * REACH:
            word = _TOKEN_BEFORE.search(held, max(0, cut - REACH), cut)
            if word is None or not _goes_on(held, word.start(), word.group()):
                return cut
            if word.start() and not held[word.start() - 1].isspace():
                # A word longer than any part of a spaced value: one may begin at its end, or end where it begins.
                cut = _word_start(held[: word.start()])
                break
            cut = word.start()
        else:  # a long row of digit groups: what begins far enough from the end is complete
            cut = _word_start(held[: end - REACH]) if cut else 0
        for first, last in reversed(found() if cut else []):
            if first < cut < last:
                cut = _word_start(held[: first + 1])
        return cut

    def _before_key(self, cut: int, view: View) -> int:
        """``cut``, or where a private key begins that is not over before it; ``view`` is the plain one of what is held."""
        for match in _KEY_BEGINS.finditer(view.text):
            marker = match.group(1)
            begin = view.span(match.start(), match.start() + 1)[0]
            if begin >= cut:
                break
            public = marker.endswith("-----") and len(marker) > 15 and "PRIVATE KEY" not in marker
            if not public and _KEY_ENDS.search(view.text, match.end(1), view.place(cut)) is None:
                return _word_start(self._held[: begin + 1])
        return cut


def _word_start(text: str) -> int:
    """Where the last word of ``text`` begins, which may not be complete; the end when it ends in white space."""
    ends = _WORD_ENDS.search(text[::-1])
    return len(text) - ends.start() if ends is not None else 0


def _goes_on(text: str, begin: int, word: str) -> bool:
    """Whether a value that holds spaces may go on after ``word``, which begins at ``begin``."""
    plain = plain_view(word).text
    runs = _RUN.findall(plain)
    # Behind a letter with an accent a number may begin: its own letters are ASCII.
    last = _ASCII_END.search(runs[-1]) if runs else None
    letters = len(last.group()) if last is not None else len("".join(runs[-1:]))
    if any(c.isdigit() for c in plain) or letters <= 2 or _MONTH.search(plain) or "BEGIN" in plain:
        return True
    if _JOINT_NEXT.match(text, begin + len(word)) or _JOINT.fullmatch(plain.strip()):
        return True
    if letters > 4:
        return False
    before = _TOKEN_BEFORE.search(text, max(0, begin - REACH), begin)  # a group of letters within an account number
    return before is not None and any(c.isdigit() for c in before.group())
