"""Searches and runs over Dask on loopback: the bytes of this machine, whatever ends on the way."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusters.driven import (
    ASKED,
    ENVIRONMENT,
    alive,
    below,
    command,
    ended,
    expect_interruptible,
    lines,
    scenario,
    waited_for,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Files and sockets that the libraries leave open."""


@dataclass
class Cluster:
    """A scheduler and workers, each a process."""

    port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def start(self, *arguments: str) -> None:
        self.processes.append(subprocess.Popen(
            [sys.executable, "-m", *arguments], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def worker(self) -> None:
        self.start("distributed.cli.dask_worker", f"tcp://127.0.0.1:{self.port}", "--no-nanny", "--nthreads", "1",
                   "--no-dashboard")

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        one = Cluster(free.getsockname()[1])
    one.start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(one.port), "--no-dashboard")
    one.worker()
    one.worker()
    waited_for(lambda: _is_open(one.port))
    yield one
    one.end()


def _is_open(port: int) -> bool:
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", port)) == 0


def test_a_worker_that_is_killed_costs_nothing_of_the_answer(cluster: Cluster, whole: tuple[str, bytes],
                                                             tmp_path: Path) -> None:
    process = command("search", scenario(tmp_path), *ASKED, "--on", cluster.name, "-o", "kept", folder=tmp_path)
    waited_for(lambda: lines(tmp_path / "kept" / "journal.jsonl") > 100, process)
    cluster.processes[1].kill()
    code, out, err = ended(process)
    assert (code, err) == (0, "")
    assert (out, (tmp_path / "kept" / "answer.json").read_bytes()) == whole


def test_a_driver_that_is_killed_goes_on_from_its_journal(cluster: Cluster, whole: tuple[str, bytes],
                                                          tmp_path: Path) -> None:
    asked = ("search", scenario(tmp_path), *ASKED, "--on", cluster.name, "-o", "kept")
    process, journal = command(*asked, folder=tmp_path), tmp_path / "kept" / "journal.jsonl"
    waited_for(lambda: lines(journal) > 150, process)
    process.kill()
    process.wait()
    code, out, err = ended(command(*asked, folder=tmp_path))
    assert (code, err) == (0, "")
    assert (out, (tmp_path / "kept" / "answer.json").read_bytes()) == whole


def test_a_scheduler_that_is_killed_ends_the_search_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    process = command("search", scenario(tmp_path), *ASKED, "--on", cluster.name, "-o", "kept", folder=tmp_path)
    waited_for(lambda: lines(tmp_path / "kept" / "journal.jsonl") > 100, process)
    cluster.processes[0].kill()
    start = time.monotonic()
    code, out, err = ended(process)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "cluster has gone" in err
    assert time.monotonic() - start < 90


def test_ctrl_c_ends_a_local_cluster_with_its_processes(tmp_path: Path) -> None:
    expect_interruptible("dask", tmp_path)


def test_workers_of_a_driver_that_is_killed_end(tmp_path: Path) -> None:
    process = command("search", scenario(tmp_path), *ASKED, "--on", "dask", "-j", "2", "-o", "kept", folder=tmp_path)
    waited_for(lambda: lines(tmp_path / "kept" / "journal.jsonl") > 50, process)
    children = below(process.pid)
    process.kill()
    process.wait()
    waited_for(lambda: not any(map(alive, children)))


def test_a_batch_has_the_same_bytes(cluster: Cluster, tmp_path: Path) -> None:
    sweep = ["run", scenario(tmp_path), "--set", "sweep={training.micro_batch_size: [1, 2, 4], mesh.ep: [1, 2, 4, 8],"
             " mesh.dp_shard: [8], training.recompute: [none, full]}"]
    here = ended(command(*sweep, "-o", "here", folder=tmp_path))
    there = ended(command(*sweep, "-o", "there", "--on", cluster.name, folder=tmp_path))
    assert there == here
    assert (tmp_path / "there/results.jsonl").read_bytes() == (tmp_path / "here/results.jsonl").read_bytes()


def test_what_listens_and_is_no_scheduler_is_said_in_bounded_time(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        start = time.monotonic()
        code, out, err = ended(command("search", scenario(tmp_path), "--on", f"dask://127.0.0.1:{other.getsockname()[1]}",
                                       folder=tmp_path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "cannot be reached" in err
    assert time.monotonic() - start < 90


def test_a_cluster_without_workers_is_said_in_bounded_time(cluster: Cluster, tmp_path: Path) -> None:
    for worker in cluster.processes[1:]:
        worker.kill()
        worker.wait()
    code, out, err = ended(command("search", scenario(tmp_path), "--on", cluster.name, folder=tmp_path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "no worker" in err
