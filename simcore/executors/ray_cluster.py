"""Executor over Ray: a cluster through Ray Client, the cluster that this machine is in, or a new one on this machine.

[Note: Ray and lost workers]
Ray's own retries are off (`max_retries=0`): a chunk whose worker or node ends, or whose answer is lost with its node,
comes back as lost, and `driver` gives it out again.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.cluster import PATIENCE, Chunks, answering, expect_reached, first_line, library, own_signals
from simcore.executors.executor import Lost, Open, Result
from simcore.executors.interrupts import Interrupts, withheld
from simcore.executors.remote import result_of, served

__all__ = ["ray_cluster"]

_STORE: Final = 256 * 2**20
"""Bytes of the object store of a local cluster: chunks in flight are far smaller."""


def ray_cluster(address: tuple[str, int] | str | None, size: int, place: str) -> Open[Any]:
    """Function that opens an executor over Ray.

    `address`: (host, port) of Ray Client; "auto": the cluster of this machine; None: a new cluster of `size` processes
    on this machine, which ends with the context. `place`: name of the place for messages. InputError when it is opened
    if Ray is not installed or the cluster cannot be reached.
    """

    @contextmanager
    def opened(work: Callable[[Any], Any], asked: Interrupts) -> Iterator[_Ray]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
        ray = library("ray", "ray", place)
        if isinstance(address, tuple):
            expect_reached(*address, place)
        with own_signals():
            _connect(ray, address, size, place)
        try:
            executor = _Ray(ray, work, asked, place)
            try:
                yield executor
            finally:
                executor.cancel()
        finally:
            with own_signals(), suppress(Exception):  # it may have gone
                ray.shutdown()

    return opened


def _connect(ray: Any, address: tuple[str, int] | str | None, size: int, place: str) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same in many words, before the error
            _init(ray, address, size, quiet)
    except Exception as error:  # noqa: BLE001 - whatever answers there is no cluster
        raise InputError(Problem(place, f"the cluster cannot be reached: {first_line(error)}")) from None


def _init(ray: Any, address: tuple[str, int] | str | None, size: int, quiet: dict[str, Any]) -> None:
    if address is None:
        with withheld():
            ray.init("local", num_cpus=size, include_dashboard=False, object_store_memory=_STORE, **quiet)
        return
    ray.init(address if isinstance(address, str) else f"ray://{address[0]}:{address[1]}", **quiet)


class _Ray:
    """Executor over the cluster to which this process is connected."""

    def __init__(self, ray: Any, work: Callable[[Any], Any], asked: Interrupts, place: str) -> None:
        self._ray, self._place = ray, place
        self._served = ray.remote(num_cpus=1, max_retries=0)(served)
        self._sent: dict[Any, int] = {}
        self._chunks = Chunks(work, self._num_workers, asked, place)
        errors = ray.exceptions
        self._lost = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError,
                      errors.GetTimeoutError)

    @property
    def capacity(self) -> int:
        """Chunks that keep all CPUs busy."""
        return self._chunks.room

    def submit(self, chunk: int, tasks: Sequence[Any]) -> None:
        """Sends a chunk to the cluster."""
        packed = self._chunks.packed(chunk, tasks)
        if packed is None:
            return
        with answering(self._place):
            self._sent[self._served.remote(packed)] = chunk

    def results(self) -> Sequence[Result[Any]]:
        """Results that have come, at least one unless a signal was received."""
        return self._chunks.results(self._ready)

    def cancel(self) -> None:
        """Ends all chunks at once."""
        for reference in self._sent:
            with suppress(Exception):  # the cluster may have gone
                self._ray.cancel(reference, force=True)
        self._sent.clear()

    def _ready(self, seconds: float) -> list[Result[Any]]:
        if not self._sent:
            return []
        with answering(self._place):
            ready, _ = self._ray.wait([*self._sent], num_returns=1 if seconds else len(self._sent), timeout=seconds)
        return [self._result(reference) for reference in ready]

    def _result(self, reference: Any) -> Result[Any]:
        chunk = self._sent.pop(reference)
        try:
            sent = self._ray.get(reference, timeout=PATIENCE)
        except self._lost:
            return Lost(chunk)
        except Exception as error:  # noqa: BLE001 - whatever the cluster says
            raise InputError(Problem(self._place, f"a worker fails: {first_line(error)}")) from None
        return result_of(chunk, sent, self._place)

    def _num_workers(self) -> int:
        with answering(self._place):
            return int(self._ray.cluster_resources().get("CPU", 0))
