"""The studio as an application, with one set of worker processes for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from simcore.studio.server import app
from studio_jobs import HERE, JOB, Asked


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with TestClient(app(), base_url=HERE) as made:
        yield made


@pytest.fixture
def job() -> dict[str, Any]:
    return JOB


@pytest.fixture
def asked(client: TestClient) -> Asked:
    """Asks a question of a kind; the answer's JSON, or with `status` that of a refusal."""

    def ask(kind: str, status: int = 200, /, **fields: Any) -> Any:
        answer = client.post(f"/api/{kind}", json=fields)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask
