"""What reading and writing a checkpoint takes of hosts: words of a framework's table.

Which rule is whose, with its source, is in `frameworks/_files.py`; what it comes to on a node in `host.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Files", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a checkpoint takes of the host's memory on its way, and of the device's beside what rests there.

    `whole_on`: ranks that hold all of the model. `params`, `states`: how many copies of what a rank holds itself lie on
    the host at once; `shared`: (dense, expert) axes whose ranks share what all of them hold. `in_flight`: at least so
    many whole tensors. `trained_only`: frozen parameters are left out. `on_device`: a whole "tensor" or "unit" for a
    moment, or all of the "model" as it rests, before any of it is cut.
    """

    source: str
    whole_on: Literal["", "rank0", "every_rank"] = ""
    trained_only: bool = False
    params: int = 0
    states: int = 0
    shared: tuple[str, str] | None = None
    in_flight: int = 1
    on_device: Literal["", "tensor", "unit", "model"] = ""


@dataclass(frozen=True, slots=True)
class Files:
    """How a job's checkpoint is read and written; None: it is not."""

    load: Transfer | None = None
    save: Transfer | None = None
