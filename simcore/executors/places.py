"""Places by the names that users give them: `dask`, `ray`, each alone or with the address of a cluster."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.dask_cluster import dask_cluster
from simcore.executors.executor import Open
from simcore.executors.ray_cluster import ray_cluster

__all__ = ["place_named"]

_NAMES: Final = "dask, ray, dask://HOST:PORT, ray://HOST:PORT or ray://auto"


def place_named(name: str, jobs: int | None) -> Open[Any]:
    """Function that opens the executor of that name. `jobs`: processes of a local cluster, None: one for each core.

    InputError for a name that is none, and for `jobs` with the address of a cluster.
    """
    place = f"--on {name}"[:120]
    library, scheme, address = name.partition("://")
    if library not in ("dask", "ray") or (scheme and not address):
        raise InputError(Problem(place, f"expected {_NAMES}"))
    if address and jobs is not None:
        raise InputError(Problem("-j", f"the cluster of {place} has its own workers: expected no -j with an address"))
    size = jobs or os.cpu_count() or 1
    if library == "dask":
        return dask_cluster(_parsed(address, place), size, place)
    return ray_cluster("auto" if address == "auto" else _parsed(address, place), size, place)


def _parsed(address: str, place: str) -> tuple[str, int] | None:
    """(host, port) of an address, None without one."""
    if not address:
        return None
    found = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})/?", address)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise InputError(Problem(place, f"expected {_NAMES}"))
    return found[1].strip("[]"), int(found[2])
