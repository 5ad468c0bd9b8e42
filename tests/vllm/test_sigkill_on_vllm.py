"""Server, client, workers and the server's vLLM are killed at random moments of one run, as in tests/e2e/test_sigkill.py.

Once each here; five times each with LGOV_TEST_SLOW=1. What is killed of a vLLM is one of its processes, at random.
"""

from __future__ import annotations

import pytest

from tests.e2e import test_sigkill
from tests.e2e.killing import Parts, run_with_kills
from tests.slow import SLOW
from tests.vllm.conftest import PYTHON

KILLS = 5 if SLOW else 1
DEADLINE_S = 600 * KILLS

pytestmark = pytest.mark.timeout(DEADLINE_S + 120)

# They ask here about the run below.
test_every_call_was_sampled_with_the_weights_of_the_trainer = (
    test_sigkill.test_every_call_was_sampled_with_the_weights_of_the_trainer
)
test_every_update_was_made_once = test_sigkill.test_every_update_was_made_once_and_the_weights_are_those_of_the_batches
test_no_rollout_is_lost = test_sigkill.test_no_rollout_is_lost_and_none_is_trained_on_twice
test_the_metrics_say_what_was_lost = test_sigkill.test_the_metrics_say_what_was_lost


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("killed")
    return run_with_kills(folder, dict.fromkeys(["server", "client", "worker", "vllm"], KILLS), DEADLINE_S, PYTHON)


def test_no_vllm_outlived_the_server_that_started_it(killed: Parts) -> None:
    assert killed.kills["server"] == KILLS
    assert killed.orphans == []
