"""Records of the memory that reading and writing a checkpoint needs: `Framework.files`.

Each framework's values, with their sources, are in `frameworks/common/checkpoint_files.py`; `simulation/hosts.py` adds
them up for a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Files", "Transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Extra memory that a checkpoint needs while it is read or written: on the host, and on the device.

    `one_process`: rank 0 alone reads or writes all files. `whole_on`: ranks that hold the whole model on the host.
    `params`, `states`: number of copies of a rank's own parameters and optimizer states that are on the host at once;
    `shared`: (dense, expert) mesh axes whose ranks divide among themselves what each of them holds unsharded.
    `in_flight`: least number of whole tensors on the host. `trained_only`: frozen parameters are left out of the files,
    and of the host unless `gathers_all`. `packed`: what is packed at rest is so on the host. `file_bytes`: of the
    largest file, all of whose tensors are copied to the host before it is written; 0: all of the model is there. `cut`:
    ending of the names of tensors that rank 0 copies, cut into those of the files, "" if none: on the host if
    `cut_on_host`, else on its device. `on_device`: a whole "tensor", all of a "module" or "unit" for a moment, or all
    of the "model" in its layout at rest, before any of it is cut. `source`: upstream file and version.
    """

    source: str
    one_process: bool = False
    whole_on: Literal["", "rank0", "every_rank"] = ""
    trained_only: bool = False
    gathers_all: bool = False
    packed: bool = False
    file_bytes: int = 0
    cut: str = ""
    cut_on_host: bool = False
    params: int = 0
    states: int = 0
    shared: tuple[str, str] | None = None
    in_flight: int = 1
    on_device: Literal["", "tensor", "module", "unit", "model"] = ""

    @property
    def leaves_frozen(self) -> bool:
        """True if frozen parameters do not come to the host."""
        return self.trained_only and not self.gathers_all


@dataclass(frozen=True, slots=True)
class Files:
    """Memory to read a job's checkpoint (`load`) and to write it (`save`); None if that is not done."""

    load: Transfer | None = None
    save: Transfer | None = None
