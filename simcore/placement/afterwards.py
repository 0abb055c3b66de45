"""Records of what a trainer does between and after its steps: evaluation, merging of adapters, export.

Each framework's values, with their sources, are in `frameworks/common/afterwards.py`; `simulation/evaluation.py` and
`simulation/conversion.py` count their memory.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Afterwards", "Copies", "EvaluationLoop", "Export", "Merge"]


@dataclass(frozen=True, slots=True)
class EvaluationLoop:
    """The evaluation loop of a trainer.

    `micro_batch`: sequences of a pass by default, 0 for the training's. `logits`: dtype of the logits that it can
    gather and keep, "" if it keeps none. `source`: upstream file and version.
    """

    source: str
    micro_batch: int = 0
    logits: str = ""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one weight matrix that exist at one moment of a conversion, by the type of their elements.

    `adapters`: copies in the type of the adapters; `compute`: in that of the products; `wide`: in the wider of the two;
    `fp32`: in fp32; `packed`: as the base is packed. `low_rank_fp32`: copies in fp32 of the matrix's adapters.
    """

    adapters: int = 0
    compute: int = 0
    wide: int = 0
    fp32: int = 0
    packed: int = 0
    low_rank_fp32: int = 0


@dataclass(frozen=True, slots=True)
class Merge:
    """Memory of merging adapters into their base, linear by linear: the fullest of these moments counts.

    `device`, `host`: moments of one linear on the device and on the host. `whole_on_host`: the base and the adapters
    are on the host, in a process that trains nothing. `rewrites`: the merged model is the base's files in 16 bits with
    other linears; else the model is written as the device holds it. `file_bytes`: of the largest file that is
    collected on the host before it is written, 0 if none is. `source`: upstream file and version.
    """

    source: str
    device: tuple[Copies, ...] = ()
    host: tuple[Copies, ...] = ()
    whole_on_host: bool = False
    rewrites: bool = False
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Export:
    """Memory of the conversion of a trained model to files of Hugging Face.

    `whole_on_host`: one process on the host holds the whole model; else the job's ranks gather tensor by tensor, and
    rank 0 collects files on the host. `copies`: of a whole tensor on a rank's device meanwhile. `source`: upstream
    file and version.
    """

    source: str
    copies: int = 0
    whole_on_host: bool = False


@dataclass(frozen=True, slots=True)
class Afterwards:
    """Evaluation, merge and export of one job; None for those that it does not ask for."""

    evaluation: EvaluationLoop | None = None
    merge: Merge | None = None
    export: Export | None = None
