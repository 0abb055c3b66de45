"""The answer to one scenario, frozen, JSON in and out.

Names are those of the published interface; units are in the names (`_bytes`, `_s`), bytes are `int`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from simcore.results.detail import Detail, MemorySeries
from simcore.results.engine import Serving
from simcore.results.evidence import Evidence
from simcore.results.phases import PhaseName, PhaseReport
from simcore.results.quantiles import Drawn, DrawnLengths, DrawnPeak
from simcore.results.time import StepTime
from simcore.results.verdict import SEVERITY, Verdict
from simcore.units import format_bytes, format_seconds

__all__ = [
    "ASKED_PHASES",
    "BESIDE_STEPS",
    "HOSTED_PHASES",
    "NO_STEP",
    "REPORTS",
    "SCHEMA_VERSION",
    "Advice",
    "Assumption",
    "AtRest",
    "Communicator",
    "Host",
    "HostPhase",
    "MemorySeries",
    "Owner",
    "Peak",
    "ProblemRow",
    "RankReport",
    "Report",
    "StepTime",
    "TrafficRow",
]

SCHEMA_VERSION = "1.0"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemRow(_Frozen):
    """One problem of the input, as `simcore.errors.Problem`: place, message, rule ("" if none)."""

    where: str
    message: str
    rule: str = ""


class Assumption(_Frozen):
    """One value that the report relies on and that is neither in the scenario nor proved.

    `kind`: derived from code, calibrated on measurements, assumed, or the framework's default. `source`: where it is
    from.
    """

    what: str
    value: str
    kind: Literal["derived", "calibrated", "assumed", "default"]
    source: str


class Communicator(_Frozen):
    """One process group that the job opens: its mesh axis and its number of ranks."""

    axis: str
    size: int


class AtRest(_Frozen):
    """Bytes and parameters of one component (such as routed_experts) on one rank.

    Bytes that live across layers, just before `optimizer.step` of a steady step; parameters that the rank owns.
    """

    params_bytes: int = 0
    grads_bytes: int = 0
    optimizer_bytes: int = 0
    num_params: int = 0
    num_trainable_params: int = 0


class Owner(_Frozen):
    """A tensor of one layer that holds bytes at the peak, with its category; `owner`: "layer/tensor"."""

    owner: str
    category: str
    bytes: int


class Peak(_Frozen):
    """The moment of the step with most allocated bytes on this rank, and its memory by several measures.

    `first_step_bytes`: allocated in the very first step, in which the optimizer allocates its states, and Mamba's
    kernels are tuned with a buffer of 256 MiB. `allocated_bytes`: tensors, and under Megatron the workspaces of
    libraries. `reserved_bytes`: what torch's allocator most likely holds, with its range; where parameters are
    gathered, much of that is cache, which it gives back before it fails. `device_bytes`: memory that the step needs,
    with fragmentation and without cache, plus memory outside the allocator (`outside`: `context`, `nccl`, `dispatcher`,
    paged optimizer states, and where parameters are gathered `workspace`: allocated is then what a trace of tensors
    counts). `host_bytes`: what the job moved to the host's memory, for this rank. `band_bytes`: range of device memory
    by measured runs of such layouts. `event`: the last hook of the framework before that moment; `microbatch`: index in
    the step, from 0. `by_category`: of allocated bytes; `top`: largest owners first. `by_phase`: highest allocated
    bytes in each phase.
    """

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    host_bytes: int = 0
    step: Literal["first", "steady"] = "steady"
    first_step_bytes: int | None = None
    phase: str
    event: str
    layer: str
    microbatch: int
    by_category: dict[str, int]
    by_phase: dict[str, int]
    top: tuple[Owner, ...]
    reserved_band_bytes: tuple[int, int]
    outside: dict[str, int]
    band_bytes: tuple[int, int]


class TrafficRow(_Frozen):
    """All `calls` of one collective with an equal axis, phase and dtype in one step of one rank; bytes are sums.

    `payload_bytes`: full gathered output (all-gather), full input (reduce-scatter), buffer (all-reduce, all-to-all),
    message (send_recv), copied tensor (copy, whose axis is its direction: to_host or to_device). `wire_bytes`: bytes
    that leave the rank, over NVLink or over the network, or are copied. `timing`: source of the calls' times,
    "measured" if that of each is; see `docs/collectives.md`.
    """

    collective: str
    axis: str
    group_size: int
    phase: str
    dtype: str
    calls: int
    payload_bytes: int
    wire_bytes: int
    nvlink_bytes: int = 0
    network_bytes: int = 0
    algorithm: str = "ring"
    timing: Literal["measured", "model"] = "model"


class HostPhase(_Frozen):
    """The fullest host and the fullest GPU in one phase besides the steady step.

    Reading the model, the first step, evaluation, generation in it, saving, merging adapters, exporting. `host_bytes`:
    memory of that host, `by_owner` its parts; `device_bytes`: memory of that GPU, `by_category` its allocated bytes
    where they are known. `seconds`: duration, None where it is not modelled. `change`: keys with new values, tried,
    under which a phase fits that does not; {} if none was found. `source`: the framework's code; "" for the step.
    """

    phase: Literal["load", "first_step", "evaluation", "generate", "save", "merge", "export"] | PhaseName
    host_bytes: int
    device_bytes: int
    host_verdict: Literal["fits", "oom"]
    device_verdict: Verdict
    by_owner: dict[str, int]
    source: str = ""
    by_category: dict[str, int] = {}
    seconds: float | None = None
    change: dict[str, Any] = {}


ASKED_PHASES = ("evaluation", "generate", "merge", "export")
"""Phases that a job has only if its scenario asks for them."""
HOSTED_PHASES = ("first_step", *ASKED_PHASES)
"""Phases in which a job runs out of memory on a host as well as on a GPU."""
NO_STEP = "no step"
"""Name of the assumption of a report that is placed only: its value says why its step is not simulated."""
BESIDE_STEPS = ("load", "save", *ASKED_PHASES)
"""Phases beside the steps of a training, in which it runs out of memory as well as in a step."""


class Host(_Frozen):
    """Memory of the hosts in each phase, each host shared by `ranks_per_host` ranks.

    See `simcore.simulation.hosts`.
    """

    capacity_bytes: int = Field(gt=0)
    ranks_per_host: int = Field(gt=0)
    phases: tuple[HostPhase, ...]


class RankReport(_Frozen):
    """One class of ranks with equal memory and work; all bytes are those of one of its ranks.

    `ranks`: their numbers, such as `7`, `0-62` or `0-131071:64` (every 64th). `coordinates`: on each mesh axis of
    several ranks, a text such as "0-3" where they differ. `stage`: pipeline rank. `at_rest`: by component, the elements
    that a rank owns; `padding_bytes` is the padding of parameters, and `grads_padding_bytes` that of gradients.
    `apportioned`: the ranks have equal parts of flat buffers, of which `at_rest` has the mean; a part holds more of one
    tensor and less of another. `grads_persist`: storage of gradients survives into the next forward. `end_bytes`:
    allocated at the end of the step. `drawn`: peaks of any rank of the class over all draws of random routing; `peak`
    is then that of balanced routing. `phases`: of a step with phases, one after the other.
    """

    ranks: tuple[str, ...]
    num_ranks: int
    coordinates: dict[str, int | str]
    stage: int
    at_rest: dict[str, AtRest]
    apportioned: bool = False
    padding_bytes: int
    grads_padding_bytes: int = 0
    grads_persist: bool
    peak: Peak | None = None
    end_bytes: int | None = None
    drawn: DrawnPeak | None = None
    traffic: tuple[TrafficRow, ...] = ()
    memory: MemorySeries | None = None
    phases: tuple[PhaseReport, ...] = ()

    @property
    def trains(self) -> bool:
        """True if the ranks hold the model that is trained; False for GPUs that only generate."""
        return bool(self.at_rest)

    def has_rank(self, rank: int) -> bool:
        """True if number `rank` is in `ranks`, which has texts such as `7`, `0-62` or `0-131071:64`."""
        for text in self.ranks:
            ends, _, step = text.partition(":")
            first, _, last = ends.partition("-")
            if rank in range(int(first), int(last or first) + 1, int(step or 1)):
                return True
        return False

    def at_rest_bytes(self) -> int:
        """Bytes of parameters, gradients and optimizer states of all components on one rank, without padding."""
        return sum(c.params_bytes + c.grads_bytes + c.optimizer_bytes for c in self.at_rest.values())


class Adapters(_Frozen):
    """LoRA's coverage of the model.

    `adapted`: number of layers in which a module has an adapter, by the module's path in a layer. `unmatched_targets`:
    patterns without a match by the framework's own rule. `without_gradient`: as `adapted`, for adapters that a fused
    kernel bypasses; they are stored and stepped, and never learn.
    """

    adapted: dict[str, int]
    unmatched_targets: tuple[str, ...] = ()
    without_gradient: dict[str, int] = {}


class Advice(_Frozen):
    """One tried change of a scenario: its keys with new values (as `--set` takes them), and the result.

    `peak_bytes`, `headroom_bytes`: on the fullest rank. `step_s`: time of a step with the changes, None if it is not
    timed. `num_gpus`: ranks with the changes. `warning`: how the job's numbers come out differently; "" if they do not.
    """

    changes: dict[str, Any]
    verdict: Verdict
    peak_bytes: int
    headroom_bytes: int
    step_s: float | None = None
    num_gpus: int | None = None
    warning: str = ""


class Report(_Frozen):
    """The result of one scenario; `ranks` has an entry for each class of equal ranks.

    `status`: ok, illegal (the framework refuses the layout) or error, with `problems`. `verdict`: fits, oom (out of
    memory) or unsure (the limit is within the band of measured errors), None without a peak. `capacity_bytes`: usable
    device memory; `headroom_bytes`: what the fullest rank leaves of the part that may be filled. `advice`: for one that
    does not fit, the smallest changes first. `drawn`: for random routing; the verdict and `headroom_bytes` are then
    those of the highest draw, because a step that does not fit ends the job. `lengths`: for random lengths; all other
    fields are then at the longest. `evidence`: known runs and recipes of the layout, None without training. `detail`:
    for figures, on request. `phases`: of a step with phases, on the fullest ranks that train.
    """

    schema_version: str = SCHEMA_VERSION
    name: str
    scenario: dict[str, Any]
    status: Literal["ok", "illegal", "error"]
    problems: tuple[ProblemRow, ...] = ()
    verdict: Verdict | None = None
    capacity_bytes: int | None = Field(default=None, gt=0)
    headroom_bytes: int | None = None
    evidence: Evidence | None = None
    assumptions: tuple[Assumption, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    adapters: Adapters | None = None
    ranks: tuple[RankReport, ...] = ()
    time: StepTime | None = None
    advice: tuple[Advice, ...] = ()
    drawn: Drawn | None = None
    lengths: DrawnLengths | None = None
    host: Host | None = None
    detail: Detail | None = None
    serving: Serving | None = None
    phases: tuple[PhaseReport, ...] = ()

    @property
    def peak_rank(self) -> RankReport | None:
        """Class of ranks with the highest device memory; None if no class has a peak."""
        with_peak = [r for r in self.ranks if r.peak is not None]
        return max(with_peak, key=lambda r: r.peak.device_bytes if r.peak else 0, default=None)

    @property
    def trained_rank(self) -> RankReport | None:
        """Class of ranks that train with the highest device memory; without peaks with most bytes at rest.

        Of all ranks where none trains; None without ranks.
        """
        among = [rank for rank in self.ranks if rank.trains] or list(self.ranks)
        if all(rank.peak is None for rank in among):
            return max(among, key=RankReport.at_rest_bytes, default=None)
        return max(among, key=lambda rank: rank.peak.device_bytes if rank.peak else 0)

    @property
    def generating_rank(self) -> RankReport | None:
        """Ranks that only generate, on GPUs beside those that train; None if engines share the GPUs."""
        return next((rank for rank in self.ranks if rank.phases and not rank.trains), None)

    @property
    def job_verdict(self) -> Verdict | None:
        """Worst verdict of the step and of all phases beside it, on the device; None without peaks.

        Of hosts the step counts, and the phases that the scenario asks for: how a model is read and written varies.
        """
        if self.verdict is None or self.host is None:
            return self.verdict
        phases = [phase for phase in self.host.phases if phase.phase in BESIDE_STEPS]
        hosts: list[Verdict] = [phase.host_verdict for phase in self.host.phases if phase.phase in HOSTED_PHASES]
        return max((self.verdict, *(phase.device_verdict for phase in phases), *hosts), key=lambda one: SEVERITY[one])

    @property
    def worse_phases(self) -> tuple[str, ...]:
        """Phases with a worse verdict than the step's on the device, in words: the step itself is one on the host."""
        found: dict[str, None] = {}
        for phase in self.host.phases if self.host and self.job_verdict != self.verdict else ():
            if phase.phase in BESIDE_STEPS and self.job_verdict == phase.device_verdict:
                found[phase.phase] = None
            elif phase.phase in HOSTED_PHASES and self.job_verdict == phase.host_verdict:
                found["a step on the host" if phase.phase == "first_step" else phase.phase] = None
        return tuple(found)

    @property
    def band_bytes(self) -> tuple[int, int] | None:
        """Range of device memory that decides the verdict, by measured runs of such layouts; None without peaks."""
        if self.drawn:
            return self.drawn.band_bytes
        bands = [rank.peak.band_bytes for rank in self.ranks if rank.peak]
        return (max(low for low, _ in bands), max(high for _, high in bands)) if bands else None

    @property
    def highest_bytes(self) -> int | None:
        """Bytes of device memory that decide the verdict; None without peaks.

        Those of the fullest rank, with random routing in its highest draw.
        """
        rank = self.peak_rank
        peak = rank.peak.device_bytes if rank and rank.peak else None
        return self.drawn.hottest.device_bytes.max if self.drawn else peak

    def __repr__(self) -> str:
        """One line for a terminal; `model_dump_json` has everything."""
        used, step, end = self.highest_bytes, self.time and self.time.step_s, self.capacity_bytes
        peak = f"peak {format_bytes(used)}" + (f" of {format_bytes(end)}" if end else "") if used is not None else ""
        word = (self.verdict or "ok") if self.status == "ok" else self.status
        words = (word, peak, f"step {format_seconds(step)}" if step else "", *(p.message for p in self.problems[:1]))
        return f"<Report {self.name!r}: {', '.join(filter(None, words))}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """HTML that a notebook shows; `viz`, which draws reports, is imported only here."""
        from viz.notebook.report import report_html

        return report_html(self)


REPORTS: Final = TypeAdapter(tuple[Report, ...])
"""Reader of a JSON list of reports."""
