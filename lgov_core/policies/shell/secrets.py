"""Which paths hold keys, credentials or private history, by their names and places."""

from __future__ import annotations

import os.path
import re
from fnmatch import translate
from functools import lru_cache
from itertools import pairwise

from lgov_core.policies.content.credential_names import CREDENTIAL_NAMES
from lgov_core.policies.shell.table import globs, names
from lgov_core.policies.shell.values import ANY, BELOW, PIPE, STAR, UNKNOWN, is_wild, literal

#: Wildcards of one word beyond which it may be anything.
MAX_WILD = 24
_CREDENTIALS = re.compile("|".join(map(translate, CREDENTIAL_NAMES)))


def is_secret(word: str) -> bool:
    """Whether a path names a secret by its name or place, or may do so through a wildcard."""
    if word == PIPE:  # its commands are judged by themselves
        return False
    path = re.sub(f"{STAR}{{2,}}", STAR, re.sub(r"/{2,}", "/", word.replace(BELOW, "")))
    if len(path) - len(literal(path)) > MAX_WILD:
        return True
    if "/./" in path or "/../" in path or path.startswith("./"):
        path = os.path.normpath(path)
    path = re.sub(r"^(?:/proc/(?:self|thread-self|\d+)/(?:root|cwd)|file:/+)(?=/)", "", path)
    parts = path.split("/")
    called = [*parts, *("/".join(pair) for pair in pairwise(parts))]
    if globs("templates").match(parts[-1]):
        called = [name for name in called if name not in (parts[-1], ".ssh") and not name.startswith(".ssh/")]
    if any(_is_secret_name(name) for name in called if name):
        return True
    if path.startswith("/") and globs("secret_places").match(path) is not None:
        return True
    return is_wild(path) and _may_be_secret(path, hidden=BELOW in word)


@lru_cache(4096)
def _is_secret_name(name: str) -> bool:
    return any(known.match(name.lower()) for known in (_CREDENTIALS, globs("secret_names")))


def _may_be_secret(path: str, *, hidden: bool) -> bool:
    """Whether a path with wildcards may be one of the examples; ``hidden``: a search matches a leading dot with a wildcard."""
    name = path.rpartition("/")[2]
    if len(literal(path).replace("/", "")) < 2:
        return path.startswith("/")
    if not path.startswith(("/", ".")) and len(literal(name).replace(".", "")) < 2:
        return False
    steps = {UNKNOWN: ".*", STAR: "[^/]*", ANY: "[^/]"}
    pattern = re.compile("".join(steps.get(letter, re.escape(letter)) for letter in path), re.DOTALL)
    for example in names("files", "secret_examples"):
        dotted = example.rpartition("/")[2].startswith(".") and name[:1] in (STAR, ANY)
        if (hidden or not dotted) and pattern.fullmatch(example) is not None:
            return True
    return False
