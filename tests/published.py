"""Sizes that others published, beside ours: in GiB as everything here, with the figure that its source has."""

from __future__ import annotations

__all__ = ["in_gib_too"]

from simcore.units import in_gib


def in_gib_too(gigabytes: str) -> str:
    """Cell of a figure that its source gives in GB of 1e9 bytes, such as `58.9 (63.2 GB)`; an empty one stays so."""
    return f"{in_gib(float(gigabytes) * 1e9, 1)} ({gigabytes} GB)" if gigabytes else ""
