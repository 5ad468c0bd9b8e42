"""A library of passages that can be searched, and the F1 of an answer."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

#: Words that say nothing about what is looked for.
_SMALL_WORDS = frozenset(
    ("the", "of", "is", "a", "an", "in", "and", "to", "was", "were", "who", "what", "which", "did", "on", "by")
)


class Library:
    """Passages, found by the words they share with a query (BM25: Robertson and Zaragoza 2009, k1 = 1.2, b = 0.75)."""

    def __init__(self, passages: Sequence[str], *, count: int = 2) -> None:
        self.passages = list(passages)
        self.count = count
        self._words = [Counter(words(text)) for text in self.passages]
        self._lengths = [sum(found.values()) for found in self._words]
        seen = Counter(word for found in self._words for word in found)
        total = len(self.passages)
        self._weights = {word: math.log(1 + (total - n + 0.5) / (n + 0.5)) for word, n in seen.items()}

    def best(self, query: str) -> list[str]:
        """The passages that fit best, the best first; earlier ones where several fit alike."""
        asked = [word for word in set(words(query)) if word in self._weights]
        mean = sum(self._lengths) / max(len(self._lengths), 1)
        scores = [0.0] * len(self.passages)
        for number, found in enumerate(self._words):
            norm = 1.2 * (0.25 + 0.75 * self._lengths[number] / mean)
            scores[number] = sum(self._weights[word] * found[word] * 2.2 / (found[word] + norm) for word in asked)
        order = sorted(range(len(scores)), key=lambda number: (-round(scores[number], 9), number))
        return [self.passages[number] for number in order[: self.count] if scores[number] > 0] or ["nothing found"]


def read_library(path: Path) -> Library:
    """The passages of a file, a JSON object a line with ``title`` and ``text``, cut at 300 characters."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Library([f"{row['title']}: {row['text']}"[:300] for row in rows])


def words(text: str) -> list[str]:
    """The words of a text that count, in lower case."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in _SMALL_WORDS]


def f1(said: str, expected: str) -> float:
    """The harmonic mean of precision and recall over words, without articles and punctuation (Rajpurkar et al. 2016)."""
    mine, theirs = _answer_words(said), _answer_words(expected)
    if not mine or not theirs:
        return float(mine == theirs)
    shared = sum((Counter(mine) & Counter(theirs)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(mine), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _answer_words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")]
