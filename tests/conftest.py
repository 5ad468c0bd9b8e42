"""What every test needs."""

from __future__ import annotations

import os
import signal
import tempfile

# A shell that starts the tests in the background makes them ignore SIGINT, and every process they start would inherit that.
# With a handler of our own here, children begin with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that a test records or signs goes to, or depends on, what the user has in their own folders.
_HOME = tempfile.TemporaryDirectory(prefix="lgov-tests-")
os.environ["XDG_CONFIG_HOME"] = f"{_HOME.name}/config"
os.environ["XDG_STATE_HOME"] = f"{_HOME.name}/state"
