"""Which names and places hold keys, credentials or private history, and which files are protected or made again."""

from __future__ import annotations

import os.path
import re
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.content.credential_names import CREDENTIAL_NAMES
from lgov_core.policies.shell.table import default_table
from lgov_core.policies.shell.values import ANY, BELOW, PIPE, STAR, UNKNOWN, is_wild

#: Folders with secrets somewhere below.
HOLDING_SECRETS = re.compile(
    r"//?|/~|/(?:etc|home|Users|root|proc|run|dev|var|var/run)|/home/[^/]+|/Users/[^/]+|/~/\.config|/etc/ss[hl]"
)
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.test", "*.pub", "known_hosts")
#: Stand-ins of one word beyond which it may be anything.
MAX_WILD = 24
_HOLE = re.compile(f"[{STAR}{ANY}{UNKNOWN}]")


@lru_cache(8)
def listed(name: str) -> tuple[str, ...]:
    """A list of globs in the table's ``files``."""
    return tuple(default_table().files[name].split())


@lru_cache(8)
def pattern_of(name: str) -> re.Pattern[str]:
    """A list of globs in the table's ``files`` as one pattern."""
    extra = CREDENTIAL_NAMES if name == "secret_names" else ()
    return re.compile("|".join(map(translate, (*extra, *listed(name)))))


def is_secret(word: str) -> bool:
    """Whether a path names a secret by its name or place, or may do so through a stand-in."""
    if word == PIPE:  # its commands are judged by themselves
        return False
    path = re.sub(f"{STAR}{{2,}}", STAR, re.sub(r"/{2,}", "/", word.replace(BELOW, "")))
    if len(_HOLE.findall(path)) > MAX_WILD:
        return True
    if "/./" in path or "/../" in path or path.startswith("./"):
        path = os.path.normpath(path)
    path = re.sub(r"^(?:/proc/(?:self|thread-self|\d+)/(?:root|cwd)|file:/+)(?=/)", "", path)
    parts = path.split("/")
    called = [*parts, *("/".join(pair) for pair in pairwise(parts))]
    if any(fnmatchcase(parts[-1], glob) for glob in _TEMPLATES):
        called = [name for name in called if name not in (parts[-1], ".ssh") and not name.startswith(".ssh/")]
    if any(_is_secret_name(name) for name in called if name):
        return True
    if path.startswith("/") and pattern_of("secret_places").match(path) is not None:
        return True
    return is_wild(path) and _may_be_secret(path, hidden=BELOW in word)


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return pattern_of("secret_names").match(name.lower()) is not None


def _may_be_secret(path: str, *, hidden: bool) -> bool:
    """Whether a path with stand-ins may be one of the examples; ``hidden``: a search matches a leading dot with a wildcard."""
    name = path.rpartition("/")[2]
    if len(_HOLE.sub("", path).replace("/", "")) < 2:
        return path.startswith("/")
    if not path.startswith(("/", ".")) and len(_HOLE.sub("", name).replace(".", "")) < 2:
        return False
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]"}
    pattern = re.compile("".join(steps.get(letter, re.escape(letter)) for letter in path), re.DOTALL)
    for example in listed("secret_examples"):
        dotted = example.rpartition("/")[2].startswith(".") and name[:1] in (STAR, ANY)
        if (hidden or not dotted) and pattern.fullmatch(example) is not None:
            return True
    return False
