"""Files of spans: one OTLP/JSON ``ExportTraceServiceRequest`` a line, as collectors write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lgov_core.errors import SpanFileError, TraceError
from lgov_core.trace.mapping.canonical import canonical
from lgov_core.trace.otlp.codec import decode_traces
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.types import Span

_HINT: Final = "each line is one ExportTraceServiceRequest in OTLP's JSON encoding"
#: Bytes of one line at most.
_LONGEST: Final = 1 << 30


def read_span_lines(lines: Iterable[bytes], name: str) -> tuple[list[Span], list[Diagnostic]]:
    """The spans of ``lines`` in lgov's names, and a diagnostic for each line with spans that could not be read.

    Empty lines are skipped. Raises `SpanFileError` (``name:line``) for a line that is not a request.
    """
    spans: list[Span] = []
    found: list[Diagnostic] = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        try:
            decoded = decode_traces(line, "application/json", max_inflated=_LONGEST)
        except TraceError as error:
            raise SpanFileError(error.message, path=name, line=number, hint=_HINT) from error
        if not decoded.spans and not decoded.rejected and not _is_empty_request(line):
            raise SpanFileError("no resourceSpans", path=name, line=number, hint=_HINT)
        if decoded.rejected:
            detail = f"{decoded.rejected} spans: {'; '.join(decoded.problems)}"
            found.append(Diagnostic(Finding.UNREADABLE_SPAN, f"{name}:{number}", detail))
        spans.extend(map(canonical, decoded.spans))
    return spans, found


def _is_empty_request(line: bytes) -> bool:
    return line.startswith(b"{") and (b"esourceSpans" in line or b"resource_spans" in line or line[1:-1].strip() == b"")
