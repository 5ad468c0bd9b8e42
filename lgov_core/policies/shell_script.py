"""A shell text, parsed and judged command by command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from lgov_core.policies.shell_call import NO_INPUT, Call, Input, wild
from lgov_core.policies.shell_finds import is_search, looks_only
from lgov_core.policies.shell_handed_on import words_of
from lgov_core.policies.shell_known import JUDGES, PROGRAM_FOLDERS, asks_for_help, check_names, plain_name
from lgov_core.policies.shell_places import Places, Refused
from lgov_core.policies.shell_syntax import Node, check_gaps, check_letters, nodes_of, parse_shell
from lgov_core.policies.shell_trail import Trail
from lgov_core.policies.shell_unseen import Unseen, check_applied, check_seen
from lgov_core.policies.shell_values import Values
from lgov_core.policies.shell_walk import Walk
from lgov_core.policies.shell_words import UnclearWord, Words
from lgov_core.policies.shell_work import Work

#: Shells within shells.
MAX_DEPTH = 5
#: How many characters a judge of a command reads in a step; those of programs (``python -c``) take the longest.
CHARACTERS_A_STEP = 2


class Script:
    """One shell text on its way through the judges. Made for one judgement, by one thread."""

    def __init__(
        self, text: str, *, folder: str, writable: Sequence[str], commands: frozenset[str], outer: Script | None = None
    ) -> None:
        self.depth = outer.depth + 1 if outer is not None else 0
        self.commands = commands
        self._folder, self._writable = folder, writable
        self._outermost = outer is None
        self.work = outer.work if outer is not None else Work()
        self.trail = outer.trail if outer is not None else Trail(folder, self.work)
        if self.depth > MAX_DEPTH:
            raise Refused("shell-too-deep", "Shells within shells are nested too deeply; write the commands out.")
        if outer is not None:
            self.work.spend(3 * len(text) + len(outer.variables))
        check_letters(text)
        self.root = parse_shell(text.encode())
        check_gaps(self.root, text.encode())
        self.trail.holds(text)
        # The lists are shared with the outer text: what eval gives to a variable holds there too.
        self.variables: dict[str, list[str]] = dict(outer.variables) if outer is not None else {}
        #: Variables that were given what a variable of the environment with a secret holds.
        self.holding: set[str] = outer.holding if outer is not None else set()
        kept = outer.words.kept if outer is not None else None
        self.words = Words(text.encode(), self.variables, folder, kept, self.work)
        #: Whether words may be texts that are fetched or decoded on the way.
        self.unseen = Unseen(self.root, self.words)
        self.hides = self.unseen.hides_words() or (outer is not None and outer.hides)
        self.functions = {
            self.words.text(node.named_children[0]) for node in nodes_of(self.root, "function_definition")
        }
        self.values = Values(self.words, self.variables, self.work)
        self.values.collect(self.root)
        start = outer.places.folders if outer is not None else (folder,)
        self.places = Places(self.values.folders(self.root, start), writable, self.work)
        self.trail.stands(self.places.folders)

    def judge(self) -> None:
        """Raises `Refused` for the first thing in the text that may not be."""
        try:
            Walk(self).walk(self.root, NO_INPUT)
        except UnclearWord as unclear:
            raise Refused("shell-unclear", f"The word of kind {unclear} is not understood; write it plainly.") from None
        if self._outermost:
            self.trail.check()

    @cached_property
    def searches(self) -> bool:
        """Whether there can be a search in the text at all; most have none."""
        plain = self.words.source.replace(b"'", b"").replace(b'"', b"")
        return b"fd" in plain or b"find" in plain or b"\\" in plain

    @cached_property
    def searchers(self) -> list[Node]:
        """The commands of the text that look for files by name."""
        return [node for node in nodes_of(self.root, "command") if is_search(words_of(self, node))]

    @cached_property
    def showing(self) -> list[Node]:
        """The commands of the text that may show what is in the files they are given."""
        return [node for node in nodes_of(self.root, "command") if not looks_only(words_of(self, node))]

    # ------------------------------------------------------------------ what the judges call

    def run(self, words: Sequence[str], given: Input) -> None:
        """Judges a command given as evaluated words."""
        self.work.run()
        if not words:
            return
        self.work.spend(len(words) + sum(map(len, words)) // CHARACTERS_A_STEP)
        self._check_words(words)
        name = first = words[0]
        if "/" in first:
            folder, _, name = first.rpartition("/")
            if folder not in PROGRAM_FOLDERS:
                if not self.trail.built(first):
                    self.places.script(first)
                self.trail.starts(first)
                if not (folder.endswith("/bin") and plain_name(name) in JUDGES):
                    self.places_read(words[1:])
                    return
        elif first in self.commands:
            self.places_read(words[1:])
            return
        base = plain_name(name)
        judge = JUDGES.get(base)
        if judge is None:
            why = (
                f"{name[:60]!r} is not a command that is known here; add it to commands of the policy if it should be."
            )
            raise Refused("shell-unknown-command", why)
        if given.hidden:
            check_applied(base, words[1:])
        self.trail.runs(base, words[1:], self.places.folders)
        call = Call(base, tuple(words[1:]), given, self)
        if not asks_for_help(call):
            check_names(call)
            judge(call)

    def _check_words(self, words: Sequence[str]) -> None:
        if any(re.match(r"stratum\d?\+?\w*://", word) for word in words):
            raise Refused("shell-network", "Mining for others is not allowed.")
        if wild(words[0]) or not words[0]:
            raise Refused("shell-unclear", "It is not clear which command is run; write its name out.")
        if self.hides:
            check_seen(words[0].rpartition("/")[2], words[1:])

    def script(self, text: str) -> None:
        """Judges a text that another shell reads."""
        inner = Script(text, folder=self._folder, writable=self._writable, commands=self.commands, outer=self)
        inner.judge()

    def writes(self, word: str) -> None:
        """Takes note of a file that is written, for what runs it in the same text."""
        self.trail.writes(word)

    def builds(self, word: str, sources: Iterable[str] = ()) -> None:
        """Takes note of a program that is built, which the same text may run wherever it lies."""
        self.trail.builds(word, sources)

    def places_read(self, words: Sequence[str]) -> None:
        """Refuses words that name secrets."""
        for word in words:
            self.places.read(word)
