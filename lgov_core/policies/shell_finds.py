"""What a search finds and hands on to a program that shows it: a secret so found is read as if it had been named."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import is_option, parse
from lgov_core.policies.shell_places import Places, Refused, shown
from lgov_core.policies.shell_secrets import finds_secret
from lgov_core.policies.shell_words import ANY, STAR, UNKNOWN

#: Commands that show nothing of what is in the files they are given; what they change is judged elsewhere.
_LOOKERS = frozenset(
    names(
        """
    ls dir stat du wc file basename dirname realpath readlink echo printf test [ true false : read sleep touch break
    continue exa eza lsd tree md5sum sha1sum sha224sum sha256sum sha384sum sha512sum cksum b2sum sum shasum md5
    chmod chown chgrp rm rmdir mkdir getfacl lsattr let local exit return
    """
    )
)
_GREPS = ("grep", "egrep", "fgrep", "rg")
#: What makes a search find more than the names it is given.
WIDER = frozenset({"-o", "-or", "!", "-not", ",", "-L", "-follow", "-files0-from"})


def looks_only(words: Sequence[str]) -> bool:
    """Whether a command shows nothing of the files it is given but their names, sizes and sums."""
    if not words:
        return True
    name = posixpath.basename(words[0])
    if name in _GREPS:
        return parse(words[1:], "-e -f -m -A -B -C").has("-l", "-L", "-c", "-q", "--count", "--files-with-matches")
    return name in _LOOKERS


def is_search(words: Sequence[str]) -> bool:
    """Whether a command looks for files by their names."""
    return bool(words) and posixpath.basename(words[0]) in ("find", "fd", "fdfind")


def check_handed_on(places: Places, words: Sequence[str]) -> None:
    """Refuses the search ``words`` (a whole command) when a secret may be among what it finds."""
    name = posixpath.basename(words[0]) if words else ""
    if name in ("fd", "fdfind"):
        for folder in parse(words[1:], "-e -E -t -d -S -x -X --extension --exclude --type --max-depth").operands[1:]:
            places.read_tree(folder)
    if name != "find":
        return
    args = words[1:]
    patterns = [args[at + 1] for at, word in enumerate(args[:-1]) if word in ("-name", "-iname")]
    narrow = bool(patterns) and not any(word in WIDER for word in args)
    for start in list(_starts(args)) or ["."]:
        places.work.spend(5 * len(places.folders) * len(patterns))
        if not narrow:
            places.read_tree(start)
        for folder in places.folders:
            path = posixpath.normpath(posixpath.join(folder, start))
            for pattern in patterns:
                if finds_secret(path, re.sub(f"[{STAR}{UNKNOWN}]", "*", pattern).replace(ANY, "?")):
                    raise Refused(
                        "shell-secret", f"What find hands on from {shown(start)} may be a secret; name the files."
                    )


def _starts(args: Sequence[str]) -> Iterator[str]:
    """The folders in which a find begins."""
    at = 0
    while at < len(args) and re.fullmatch(r"-[HLPD]|-O\d", args[at]):
        at += 2 if args[at] == "-D" else 1
    for word in args[at:]:
        if is_option(word) or word in ("(", "!"):
            return
        yield word
