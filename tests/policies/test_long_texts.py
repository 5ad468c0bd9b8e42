"""A long text is searched by another engine, so that other threads run meanwhile: it finds what the usual one finds."""

from __future__ import annotations

import re
import threading
import time

import pytest

from lgov_core.policies import PIIPolicy, SecretsPolicy
from lgov_core.policies.content import text_views
from tests.policies.key_encodings import ENCODINGS
from tests.policies.test_policies_bounded import UNITS
from tests.policies.test_policies_secrets import KEYS

PATTERNS = {
    **{name: value for name, value in vars(text_views).items() if isinstance(value, re.Pattern)},
    **{
        f"{pattern.kind} {number}": pattern.regex
        for policy in (PIIPolicy(), SecretsPolicy())
        for number, pattern in enumerate(policy._patterns)  # pyright: ignore[reportPrivateUsage]
    },
}
TEXTS = [
    *((unit * 400)[:400] for unit in UNITS),
    *(f"send {encoded(key)}, and quickly" for encoded in ENCODINGS.values() for key in KEYS.values()),
    "mail 'ada'@example.org or call +49 30 901820-12 on 1990-02-03; IBAN DE89 3704 0044 0532 0130 00, 4111-1111-1111-1111",
]


@pytest.mark.parametrize("name", PATTERNS)
def test_both_engines_find_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pattern = PATTERNS[name]
    usual = [[match.span(0) for match in pattern.finditer(text)] for text in TEXTS]
    monkeypatch.setattr(text_views, "_MOST_HELD", 0)
    other = text_views.searching(pattern, "long")
    assert other is not pattern
    assert [[match.span(0) for match in other.finditer(text)] for text in TEXTS] == usual


def test_a_key_at_the_end_of_a_long_text_is_found_and_others_run_meanwhile() -> None:
    text = "lorem a.b@c 12-34 " * 50_000 + KEYS["aws"]
    ended = threading.Event()
    pauses: list[float] = []

    def tick() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            pauses.append(time.perf_counter() - began)

    other = threading.Thread(target=tick)
    other.start()
    findings = SecretsPolicy().find(text)
    ended.set()
    other.join()
    assert [text[finding.start : finding.end] for finding in findings] == [KEYS["aws"]]
    assert sum(pause for pause in pauses if pause > 0.03) < sum(pauses) / 2
