"""Which files a pipeline prints the names of (``grep -rl``, ``git ls-files``, ``find``)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from lgov_core.policies.shell_call import is_option, parse
from lgov_core.policies.shell_finds import WIDER
from lgov_core.policies.shell_words import STAR, UNKNOWN

_GREP_VALUES = (
    "-e -f -m -A -B -C --include --exclude --exclude-dir --regexp --file --max-count -g --glob -t --type -T --type-not"
)
_NAMES_ONLY = ("-l", "-L", "--files-with-matches", "--files-without-match", "--name-only")
#: Commands that print some of the lines they are given, where their words are options and numbers.
_KEEPING = frozenset({"head", "tail", "sort", "uniq", "tac", "shuf"})
#: Words of find with which it prints something else, follows links, or finds more than the names it is given.
_NOT_FOLLOWED = re.compile(r"-(?:printf|ls|exec|execdir|ok|okdir|L|follow|files0-from|fprint\w*)")


def listed(stages: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Words that stand for the files whose names ``stages`` (commands as words) print; none where nobody can say."""
    if not stages or not stages[0] or not all(_keeps(words) for words in stages[1:]):
        return ()
    name, args = posixpath.basename(stages[0][0]), list(stages[0][1:])
    if any(UNKNOWN in word for word in args):
        return ()
    if name == "find":
        return _found(args)
    if name in ("grep", "egrep", "fgrep", "rg"):
        return _matching(name, args)
    if name in ("fd", "fdfind") and not any(is_option(word) for word in args):
        return _below(args[1:])
    if name == "git" and _git_names(args):
        return () if any(".." in word.split("/") for word in args) else _below(())
    if name == "ls" and all(re.fullmatch(r"-[1dtrS]+", word) for word in args if is_option(word)):
        files = [word for word in args if not is_option(word)]
        return tuple(files) if all(re.search(r"\.\w+$", word) for word in files) else ()
    return ()


def _keeps(words: Sequence[str]) -> bool:
    """Whether a command prints no more than some of the lines that it reads."""
    name, args = "".join(words[:1]), list(words[1:])
    if name == "grep":
        return len(args) in (1, 2) and all(re.fullmatch(r"-[viEFGwxP]+", word) for word in args[:-1])
    return name in _KEEPING and all(re.fullmatch(r"-[\w=]*|\+?\d+", word) and word != "-c" for word in args)


def _below(roots: Sequence[str], name: str = STAR) -> tuple[str, ...]:
    return tuple(posixpath.join(root, *([STAR] if name != STAR else []), name) for root in roots or ["."])


def _found(args: Sequence[str]) -> tuple[str, ...]:
    at = next((at for at, word in enumerate(args) if is_option(word) or word in ("(", "!")), len(args))
    if any(_NOT_FOLLOWED.fullmatch(word) for word in args):
        return ()
    patterns = [args[at + 1] for at, word in enumerate(args[:-1]) if word in ("-name", "-iname")]
    narrow = len(patterns) == 1 and not WIDER.intersection(args)
    return _below(args[:at], patterns[0].replace("*", STAR) if narrow else STAR)


def _matching(name: str, args: Sequence[str]) -> tuple[str, ...]:
    given = parse(args, _GREP_VALUES)
    files = given.has("--files") and name == "rg"
    if not (given.has(*_NAMES_ONLY) or files):
        return ()
    operands = given.operands if files or given.has("-e", "-f", "--regexp", "--file") else given.operands[1:]
    if name == "rg" or given.has("-r", "-R", "--recursive"):
        return _below(operands)
    return operands


def _git_names(args: Sequence[str]) -> bool:
    verb = "".join(args[:1])
    return verb == "ls-files" or (verb == "grep" and parse(args, _GREP_VALUES).has(*_NAMES_ONLY))
