"""The emitter on the real flight recorders of agent-os-kernel 3.7 and of its successor, each in its own environment."""

from __future__ import annotations

import json

import pytest

from tests.engines.test_agent_os import ENGINES
from tests.peers import PeerUnavailable, peer_python, run_there
from tests.slow import slow

pytestmark = slow  # installs packages into an environment of its own


@pytest.mark.parametrize("engine", ENGINES)
def test_every_entry_of_their_recorder_is_a_span(engine: str) -> None:
    try:
        python = peer_python(engine)
    except PeerUnavailable as error:
        pytest.skip(str(error))
    done = run_there(python, "-m", "tests.engines.recording")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "entries": 150,
        "spans": 150,
        "ids": 150,
        "names": ["agent_os.policy_check"],
        "first": ["agentos-agent-0", "denied"],
        "summary": {
            "total_entries": 150,
            "total_violations": 50,
            "violation_rate": 1 / 3,
            "policies_violated": {"unknown": 50},  # their recorder does not say which policy it was
        },
        "exported": 150,
        "new": [150, 0],
        "late": ["agentos-late"],
    }
