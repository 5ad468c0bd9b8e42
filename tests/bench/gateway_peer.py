"""Serves agentlightning 1's server for `tests.bench.gateway`; runs in an environment that has it (Python 3.12)."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys

import structlog
import uvicorn
from agentlightning.schemas import Model, RolloutCreate
from agentlightning.server.app import create_app
from agentlightning.server.routes.models import register_models
from agentlightning.server.routes.rollouts import enqueue_rollouts

CONFIG = {
    "host": "127.0.0.1",
    "port": 0,
    "key": "",
    "default_proxy": {"model_name": "m", "train": {"temperature": 0.7}, "val": {"temperature": 0.7}},
}


async def prepare(upstream: str) -> None:
    """Registers one model server and the rollout ``r1``, to which the requests belong."""
    await register_models([Model(model="m", endpoint=upstream)])
    await enqueue_rollouts([RolloutCreate(input={}, rollout_id="r1")])


def main() -> None:
    # Its log would cost it more than it has to: warnings only, and not on standard output, where the port is read.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(prepare(sys.argv[1]))
    app = create_app(CONFIG)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, access_log=False, log_config=None, timeout_keep_alive=120)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
