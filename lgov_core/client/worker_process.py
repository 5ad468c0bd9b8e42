"""A worker process of a client: reads assignments from standard input, runs the agent, reports on standard output.

Started by `lgov_core.client.workers.ProcessWorkers`, never by hand. Ends when its input ends. What agents print goes to
standard error: the real standard input and output carry the protocol.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import replace
from typing import Any, BinaryIO

from lgov_core import air
from lgov_core.client.agent_name import load_agent
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment
from lgov_core.errors import LgovError
from lgov_core.governance import Governance
from lgov_core.train.workers.lines import send, take_standard_streams


def main() -> None:
    """Entry point of ``python -m lgov_core.client.worker_process``."""
    jobs, output = take_standard_streams()
    # A module that starts a training when it is imported must not do so again.
    os.environ["LIGHTNING_CLIENT_WORKER"] = "1"
    lines = os.fdopen(jobs, "rb")
    options: dict[str, Any] = json.loads(lines.readline())
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines, waiting), daemon=True).start()
    broker = next((word.partition("=")[2] for word in sys.argv[1:]), None)  # in a box: see `command_in_box`
    _serve(options, waiting, output, broker)


def _read_lines(lines: BinaryIO, waiting: queue.SimpleQueue[bytes]) -> None:
    """Keeps reading while an agent runs, so that the process ends when the client is gone."""
    for line in lines:
        waiting.put(line)
    sys.stderr.flush()
    os._exit(0)


def _serve(options: dict[str, Any], waiting: queue.SimpleQueue[bytes], output: int, broker: str | None) -> None:
    governance = replace(Governance.of_json(options["governance"]), broker=broker)
    os.environ.setdefault("OPENAI_API_KEY", "not-used")
    os.environ.setdefault("ANTHROPIC_API_KEY", "not-used")
    try:
        # The set in use: rules that the agent's module registers when it is imported are in it.
        rules = air.use(governance.reward_rules()) if options["rules"] else None
        agent = load_agent(options["agent"])
        runner = AgentRunner(
            agent,
            endpoint=options["endpoint"],
            governance=governance,
            rules=rules,
            instrument=options["instrument"],
        )
    except LgovError as error:
        send(output, {"error": error.message, "hint": error.hint})
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - the client reports whatever the agent's module raises
        send(output, {"error": f"the agent's module raised {type(error).__name__}: {error}", "hint": None})
        sys.exit(1)
    send(output, {"ready": True})
    while True:
        given = Assignment(**json.loads(waiting.get()))
        # For programs that take the address of the model from here.
        os.environ["OPENAI_BASE_URL"] = given.model_api
        report = runner.run(given)
        send(output, {"report": report.as_json(), "key": list(given.key)})


if __name__ == "__main__":
    main()
