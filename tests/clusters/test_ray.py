"""Searches over Ray with two nodes on loopback: the bytes of this machine, whatever ends on the way."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.driven import (
    ASKED,
    ENVIRONMENT,
    command,
    ended,
    expect_interruptible,
    lines,
    scenario,
    waited_for,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Files and sockets that the libraries leave open."""


@pytest.fixture
def nodes() -> Iterator[tuple[Any, Any, str]]:
    """(cluster, its second node, its name for `--on`)."""
    os.environ.update({name: ENVIRONMENT[name] for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED")})
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "ray_client_server_port": port,
                                                            "include_dashboard": False})
    second = cluster.add_node(**small)
    cluster.wait_for_nodes()
    yield cluster, second, f"ray://127.0.0.1:{port}"
    cluster.shutdown()


def test_a_node_that_is_killed_costs_nothing_of_the_answer(nodes: tuple[Any, Any, str], whole: tuple[str, bytes],
                                                           tmp_path: Path) -> None:
    cluster, second, name = nodes
    process = command("search", scenario(tmp_path), *ASKED, "--on", name, "-o", "kept", folder=tmp_path)
    waited_for(lambda: lines(tmp_path / "kept" / "journal.jsonl") > 100, process)
    cluster.remove_node(second, allow_graceful=False)
    code, out, err = ended(process)
    assert (code, err) == (0, "")
    assert (out, (tmp_path / "kept" / "answer.json").read_bytes()) == whole


def test_ctrl_c_ends_a_local_cluster_with_its_processes(tmp_path: Path) -> None:
    expect_interruptible("ray", tmp_path)


def test_what_listens_and_is_no_cluster_is_said_in_bounded_time(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        start = time.monotonic()
        code, out, err = ended(command("search", scenario(tmp_path), "--on", f"ray://127.0.0.1:{other.getsockname()[1]}",
                                       folder=tmp_path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "cannot be reached" in err
    assert time.monotonic() - start < 120
