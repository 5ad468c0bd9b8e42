"""What every test needs."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background makes them ignore SIGINT, and every process they start would inherit that.
# With a handler of our own here, children begin with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
