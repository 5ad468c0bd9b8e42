"""A PostgreSQL server for the tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.postgres_server import PostgresServer, shared_server


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def address(server: PostgresServer) -> str:
    """The address of a store in which nothing is."""
    return server.empty_store()


@pytest.fixture
def database(server: PostgresServer) -> Any:
    """The name of a database in which nothing is, not even tables."""
    name = server.new_database()
    yield name
    server.drop(name)
