"""StreamingRedactor: however a text is cut, the same goes out, and no part of what must stay."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lgov_core.policies import PIIPolicy, SecretsPolicy, StreamingRedactor
from lgov_core.policies.content.streaming_redactor import MAX_HELD

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7xyz\nQUJDREVGR0g\n-----END RSA PRIVATE KEY-----"
LONG = "ops_eyJ" + "a1B2c3D4" * 25  # longer than any value that holds spaces
SECRETS = [
    LONG,
    "AKIAQ4W7R2T9K3M5N8P1",
    "hunter2abc",
    "4111 1111 1111 1111",
    "GB29 NWBK 6016 1331 9268 19",
    "ann@firma.de",
    "jane [at] acme (dot) io",
    "jane @ acme . com",
    "jane at acme dot com",
    "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    PEM,
]
PIECES = [
    *SECRETS,
    "password: ",
    "\npassword=",
    "born on ",
    "12 March 1980",
    "+44 20 7946 0958",
    "hello",
    " ",
    "  ",
    "\n",
    ", ",
    "the ",
    "12 34 56 78 90 ",
    "1 2 3 ",
    "to ",
    "AB 12 34 56 C",
    "\u200b",
    "\u00a0",
    "Bearer ",
    "abcDEF123456789xyzABC",
    "passport ",
    "A1234567",
    "2024-01-02",
    "%40",
    "b.org",
    "x",
    " GB",
    "28",
    " 3000",
    "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN ",
    "-----END RSA PRIVATE KEY-----",
    "536-90-4399",
    "ssn ",
    " [at] ",
    " dot ",
    " . ",
    "com",
    "0",
    "\\n",
    "é",
    "c2stcHJvai1BYmMxMjNkZWY0NTZnaGk3ODlqa2wwMTI=",
]
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=30).map("".join)
CHUNKS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def streamed(held: StreamingRedactor, text: str, sizes: list[int]) -> list[str]:
    out: list[str] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        out.append(held.feed(text[at : at + size]))
        at, turn = at + size, turn + 1
    return [*out, held.finish()]


def redacting() -> StreamingRedactor:
    return StreamingRedactor(SecretsPolicy(action="redact"), PIIPolicy(action="redact"))


NESTED = "-----BEGIN -----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7xyz\nQUJDREVGR0g\n-----END RSA PRIVATE KEY-----"


@settings(max_examples=250, deadline=None)
@example(NESTED, [1])
@given(TEXTS, CHUNKS)
def test_any_chunking_gives_what_the_whole_gives(text: str, sizes: list[int]) -> None:
    whole = StreamingRedactor(SecretsPolicy(action="redact"), PIIPolicy(action="redact"))
    assert "".join(streamed(redacting(), text, sizes)) == whole.feed("") + "".join(streamed(whole, text, [len(text)]))


@settings(max_examples=150, deadline=None)
@example("a1B2c3D4" * 30 + "%404111 1111 1111 1111", [1])
@example("4111 1111 1111 1111%40" + "a1B2c3D4" * 30 + "4111 1111 1111 1111", [1])
@example("éAB 12 34 56 C", [1])
@given(TEXTS, CHUNKS)
def test_one_policy_makes_of_a_stream_what_it_makes_of_the_text(text: str, sizes: list[int]) -> None:
    policy = PIIPolicy(action="redact")
    expected, last = "", 0
    for finding in policy.find(text):
        expected += text[last : finding.start] + policy.replacement(finding.kind)
        last = finding.end
    assert "".join(streamed(policy.stream(), text, sizes)) == expected + text[last:]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SECRETS), CHUNKS, st.sampled_from(["and so it is ", "password: ", "x = 12 "]))
def test_no_beginning_of_a_secret_goes_out_before_it_is_known(secret: str, sizes: list[int], before: str) -> None:
    if secret == "hunter2abc":
        before = "password: "
    held = StreamingRedactor(SecretsPolicy(), PIIPolicy())
    out = ""
    for piece in streamed(held, f"{before}{secret} and more text after it", sizes):
        out += piece
        assert before.startswith(out[: len(before)])
        assert len(out) <= len(before)
    assert held.denied is not None
    assert held.denied.blocks
    assert secret not in held.denied.reason
    assert out == before
    assert held.feed("anything") == ""
    assert held.finish() == ""


def test_prose_is_held_back_by_a_word_only() -> None:
    held = redacting()
    out = ""
    for at, character in enumerate("Nothing here waits longer than one word does, whatever comes next."):
        out += held.feed(character)
        assert held.held <= 12, at
    assert out + held.finish() == "Nothing here waits longer than one word does, whatever comes next."


def test_memory_is_bounded_and_a_text_without_a_place_to_cut_is_stopped() -> None:
    held = redacting()
    for _ in range(MAX_HELD // 100 + 2):
        assert held.feed("x" * 100) == ""
    assert held.denied is not None
    assert held.denied.rule == "text-unscanned"
    assert held.finish() == ""
    digits = redacting()
    out = 0
    for _ in range(5_000):
        out += len(digits.feed("12 34 "))
        assert digits.held < 1_000
    assert out > 25_000


@pytest.mark.parametrize(
    ("piece", "length"), [("-----BEGIN ", 1_000), ("1 ", 1_000), ("-----BEGIN PRIVATE KEY-----\nab cd 12 ", 4_000)]
)
def test_the_time_is_linear_in_the_text_also_where_little_or_nothing_can_go_out(piece: str, length: int) -> None:
    took: list[float] = []
    for characters in (length, 8 * length):
        text, held = piece * (characters // len(piece)), redacting()
        began = time.process_time()
        for at in range(0, len(text), 4):
            held.feed(text[at : at + 4])
        took.append(time.process_time() - began)
    # Quadratic time would be sixty-four times. The sum lets small times be small.
    assert took[1] < 24 * took[0] + 0.5, took


def test_after_an_exception_nothing_goes_out() -> None:
    class Broken(SecretsPolicy):
        def find(self, text: str, start: int = 0) -> list[object]:  # type: ignore[override]
            raise RuntimeError

    held = StreamingRedactor(Broken())
    with pytest.raises(RuntimeError):
        held.feed("some words that go out ")
    assert held.feed("more words ") == ""
    assert held.finish() == ""
