"""A shell text, parsed and judged command by command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lgov_core.policies.shell_call import NO_INPUT, Call, Input, wild
from lgov_core.policies.shell_known import JUDGES, PROGRAM_FOLDERS, asks_for_help, check_names, plain_name
from lgov_core.policies.shell_places import Places, Refused
from lgov_core.policies.shell_syntax import check_gaps, check_letters, nodes_of, parse_shell
from lgov_core.policies.shell_trail import Trail
from lgov_core.policies.shell_unseen import check_seen, hides_words
from lgov_core.policies.shell_values import Values
from lgov_core.policies.shell_walk import Walk
from lgov_core.policies.shell_words import UnclearWord, Words

#: Shells within shells.
MAX_DEPTH = 5
#: Commands of one text, those in the texts within it among them.
MAX_RUNS = 2000


class Script:
    """One shell text on its way through the judges. Made for one judgement, by one thread."""

    def __init__(
        self, text: str, *, folder: str, writable: Sequence[str], commands: frozenset[str], outer: Script | None = None
    ) -> None:
        self.depth = outer.depth + 1 if outer is not None else 0
        self.commands = commands
        self._folder, self._writable = folder, writable
        self._budget = outer._budget if outer is not None else [MAX_RUNS]
        self.trail = outer.trail if outer is not None else Trail(folder)
        if self.depth > MAX_DEPTH:
            raise Refused("shell-too-deep", "Shells within shells are nested too deeply; write the commands out.")
        check_letters(text)
        self.root = parse_shell(text.encode())
        if self.root.has_error:
            raise Refused("shell-unparsable", "The command is not complete or not understood; write it more simply.")
        check_gaps(self.root, text.encode())
        # The lists are shared with the outer text: what eval gives to a variable holds there too.
        self.variables: dict[str, list[str]] = dict(outer.variables) if outer is not None else {}
        #: Variables that were given what a variable of the environment with a secret holds.
        self.holding: set[str] = outer.holding if outer is not None else set()
        self.words = Words(text.encode(), self.variables, folder)
        #: Whether words may be texts that are fetched or decoded on the way.
        self.hides = hides_words(self.root, self.words) or (outer is not None and outer.hides)
        self.functions = {
            self.words.text(node.named_children[0]) for node in nodes_of(self.root, "function_definition")
        }
        self.values = Values(self.words, self.variables)
        self.values.collect(self.root)
        start = outer.places.folders if outer is not None else (folder,)
        self.places = Places(self.values.folders(self.root, start), writable)
        self.trail.stands(self.places.folders)

    def judge(self) -> None:
        """Raises `Refused` for the first thing in the text that may not be."""
        try:
            Walk(self).walk(self.root, NO_INPUT)
        except UnclearWord as unclear:
            raise Refused("shell-unclear", f"The word of kind {unclear} is not understood; write it plainly.") from None
        self.trail.check(self.words.source.decode("utf-8", "replace"))

    # ------------------------------------------------------------------ what the judges call

    def run(self, words: Sequence[str], given: Input) -> None:
        """Judges a command given as evaluated words."""
        self.counts()
        if not words:
            return
        first = words[0]
        if any(re.match(r"stratum\d?\+?\w*://", word) for word in words):
            raise Refused("shell-network", "Mining for others is not allowed.")
        if wild(first) or not first:
            raise Refused("shell-unclear", "It is not clear which command is run; write its name out.")
        if self.hides:
            check_seen(first.rpartition("/")[2], words[1:])
        name = first
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
        self.trail.runs(base, words[1:], self.places.folders)
        call = Call(base, tuple(words[1:]), given, self)
        if not asks_for_help(call):
            check_names(call)
            judge(call)

    def counts(self) -> None:
        """Counts a command. Raises `Refused` beyond `MAX_RUNS`."""
        self._budget[0] -= 1
        if self._budget[0] < 0:
            raise Refused("shell-too-deep", "The command holds too many commands; write fewer.")

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
