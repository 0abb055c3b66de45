"""Executor over Dask (dask.distributed): a scheduler by its address, or worker processes of this machine.

[Note: Dask and lost workers]
The scheduler gives a chunk of a lost worker to others by itself; when more workers than
`distributed.scheduler.allowed-failures` (3) were lost at it, it ends with `KilledWorker`, and `driver` cuts it.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.cluster import PATIENCE, Chunks, answering, expect_reached, first_line, library, own_signals
from simcore.executors.executor import Lost, Open, Result
from simcore.executors.interrupts import Interrupts, withheld
from simcore.executors.remote import result_of, served

__all__ = ["dask_cluster"]

_LOST: Final = ("KilledWorker", "WorkerCrashedError")


def dask_cluster(address: tuple[str, int] | None, size: int, place: str) -> Open[Any]:
    """Function that opens an executor over the scheduler at (host, port), or over `size` processes without one.

    `place`: name of the place for messages. InputError when it is opened if dask.distributed is not installed, if the
    cluster cannot be reached, and if it has no worker.
    """

    @contextmanager
    def opened(work: Callable[[Any], Any], asked: Interrupts) -> Iterator[_Dask]:
        distributed = library("distributed", "dask", place)
        for name in ("distributed", "distributed.client"):  # tracebacks of what is an error of one line here
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        if address is not None:
            expect_reached(*address, place, speaks=True)  # else a client waits for its greeting for ever
        with own_signals(), _client(distributed, address, size, place) as client:
            executor = _Dask(client, work, asked, place)
            try:
                yield executor
            finally:
                executor.cancel()

    return opened


@contextmanager
def _client(distributed: Any, address: tuple[str, int] | None, size: int, place: str) -> Iterator[Any]:
    """Client of a cluster with at least one worker; a local cluster ends with it."""
    with _cluster(distributed, address, size) as where:
        try:
            client = distributed.Client(where, timeout=PATIENCE, set_as_default=False)
        except Exception as error:  # noqa: BLE001 - whatever answers there is no scheduler
            raise InputError(Problem(place, f"the cluster cannot be reached: {first_line(error)}")) from None
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            client.close(timeout=PATIENCE)
            raise InputError(Problem(place, f"the cluster has no worker after {PATIENCE:.0f} s")) from None
        try:
            yield client
        finally:
            with suppress(Exception):  # it may have gone
                client.close(timeout=PATIENCE)


@contextmanager
def _cluster(distributed: Any, address: tuple[str, int] | None, size: int) -> Iterator[Any]:
    """Address of a scheduler, or a local cluster."""
    if address is not None:
        yield f"tcp://{address[0]}:{address[1]}"
        return
    with withheld():
        cluster = distributed.LocalCluster(n_workers=size, threads_per_worker=1, processes=True, host="127.0.0.1",
                                           dashboard_address=None, silence_logs=50)
    try:
        yield cluster
    finally:
        with suppress(Exception):
            cluster.close(timeout=PATIENCE)


class _Dask:
    """Executor over a client of dask.distributed; futures are told by their callbacks."""

    def __init__(self, client: Any, work: Callable[[Any], Any], asked: Interrupts, place: str) -> None:
        self._client, self._place = client, place
        self._futures: dict[int, Any] = {}
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._chunks = Chunks(work, self._num_workers, asked, place)

    @property
    def capacity(self) -> int:
        """Chunks that keep all workers busy."""
        return self._chunks.room

    def submit(self, chunk: int, tasks: Sequence[Any]) -> None:
        """Sends a chunk to the scheduler."""
        packed = self._chunks.packed(chunk, tasks)
        if packed is None:
            return
        with answering(self._place):
            future = self._client.submit(served, packed, pure=False)
        self._futures[chunk] = future
        future.add_done_callback(lambda _: self._came.put(chunk))

    def results(self) -> Sequence[Result[Any]]:
        """Results that have come, at least one unless a signal was received."""
        return self._chunks.results(self._ready)

    def cancel(self) -> None:
        """Takes back all chunks; workers end those at which they are."""
        with suppress(Exception):  # the scheduler may have gone
            self._client.cancel([*self._futures.values()], force=True)
        self._futures.clear()

    def _ready(self, seconds: float) -> list[Result[Any]]:
        found: list[Result[Any]] = []
        with suppress(queue.Empty):
            if seconds:
                found.append(self._result(self._came.get(timeout=seconds)))
            while True:
                found.append(self._result(self._came.get_nowait()))
        return found

    def _result(self, chunk: int) -> Result[Any]:
        future = self._futures.pop(chunk)
        if future.status == "cancelled":
            raise InputError(Problem(self._place, "the cluster has gone"))
        try:
            sent = future.result(timeout=PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever the cluster says
            if type(error).__name__ in _LOST or isinstance(error, TimeoutError):
                return Lost(chunk)
            raise InputError(Problem(self._place, f"a worker fails: {first_line(error)}")) from None
        return result_of(chunk, sent, self._place)

    def _num_workers(self) -> int:
        with answering(self._place):
            threads = self._client.sync(self._client.scheduler.ncores, callback_timeout=PATIENCE)
        return len(threads)
