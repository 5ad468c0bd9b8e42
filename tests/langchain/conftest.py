from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lc_agents import Database
from scripted import ModelServer, Witness, serve_model


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    with serve_model() as server:
        yield server


@pytest.fixture
def chat(model_server: ModelServer) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="scripted", base_url=f"{model_server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "company.db")
