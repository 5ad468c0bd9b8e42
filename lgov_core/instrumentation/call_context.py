"""What the running code is the inside of: a span, a judged tool call and a model call that a governor has judged.

It is one context variable for all of them, as a call makes itself known by all at once: to set a context variable and put
it back takes as long as several calls of Python. `lgov_core.instrumentation.live_span` and
`lgov_core.instrumentation.evaluated_call` say what it means.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lgov_core.governor import Governor
    from lgov_core.instrumentation.evaluated_call import CoveredCall
    from lgov_core.instrumentation.live_span import LiveSpan

Inside: TypeAlias = "tuple[LiveSpan | None, CoveredCall | None, Governor | None]"

CALL_CONTEXT: contextvars.ContextVar[Inside] = contextvars.ContextVar("lgov_inside", default=(None, None, None))
