"""What the running code is the inside of: a span, a judged tool call and a model call that a governor has judged.

It is one context variable for all of them, as a call makes itself known by all at once: to set a context variable and put
it back takes as long as several calls of Python. `lgov_core.trace.live` and `lgov_core.coverage` say what it means.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lgov_core.coverage import CoveredCall
    from lgov_core.governor import Governor
    from lgov_core.trace.live import LiveSpan

Inside: TypeAlias = "tuple[LiveSpan | None, CoveredCall | None, Governor | None]"

INSIDE: contextvars.ContextVar[Inside] = contextvars.ContextVar("lgov_inside", default=(None, None, None))
