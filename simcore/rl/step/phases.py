"""Phases of a reinforcement-learning step of one class of ranks, in order: tensors that move, and the time of each.

[Note: the order of a step]
NeMo RL main of 2026-08-22 (7ea279ab); the parts of a policy that move are in `policy.py`. GRPO, `algorithms/grpo.py`
grpo_train and refit_policy_generation: the optimizer goes to the host (offload_before_refit), the engine's weights
wake, the policy's are streamed into them (`refit.py`), then the policy's parameters go to the host too
(offload_after_refit) and the cache is allocated. Tokens are generated; the engine sleeps. Parameters come back
(prepare_for_lp_inference), log-probabilities are made, unless their ratio is taken as 1 (grpo.py:2490); for the
reference policy the parameters are copied to pinned host memory, overwritten in place by the reference copy that is
kept on the host (use_reference_model), and written back. The optimizer comes back (prepare_for_training), and the
policy trains. With separate GPUs for generation the policy stays on its GPUs; `async_grpo_train` generates the next
step's sequences meanwhile, and before the weights are sent it waits for those that are not complete
(`async_utils/trajectory_collector.py` prepare_for_refit). DPO, `algorithms/dpo.py`: each batch passes the reference
policy first, in the same worker and in the same way; optimizer states stay where they are.

[Note: asleep]
vLLM `v1/worker/gpu_worker.py` sleep, `device_allocator/cumem.py`: at level 1 the tensors of `load_model` are copied to
pinned host memory, at level 2 they are freed, the cache is freed at both; at level 0 nothing is freed. CUDA graphs,
cuBLAS's workspace, the context and NCCL's buffers stay. NeMo RL sleeps at level 1 (`vllm_worker.py:1309`). SGLang:
`simcore/sglang/engine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.hardware.topology import Topology
from simcore.rl.step.journal import Journal, Space, Way
from simcore.rl.step.policy import PARAMS, Critic, Policy, Scorer
from simcore.rl.step.quantising import Quantising, quantising_of
from simcore.rl.step.refit import Buffers, Gathered, alternating, broadcast_buffers, ipc_buffers
from simcore.timing.collective import collective_ns
from simcore.vllm.protocol import InferenceEngine

__all__ = ["BROADCAST", "CRITIC", "DECODING", "ENGINE", "FIXED", "FORWARD", "GATHERS", "PACKING", "POLICY",
           "REFERENCE", "REFIT", "REWARD", "SCORING", "STEPS", "WAITING", "GrpoStep", "away", "back", "category_name",
           "dpo_step", "engine_step", "generate", "grpo_step", "host_ns", "is_outside", "outside", "packing_ns",
           "put_asleep", "put_to_sleep", "refer", "sample", "score", "serving_journal", "start", "train", "wake"]

POLICY, FIXED, ENGINE, REFERENCE, REFIT = "policy", "policy, fixed", "engine", "reference policy", "refit"
CRITIC, REWARD = "critic", "reward model"
FORWARD, STEPS, DECODING, SCORING = "forward passes", "training steps", "decoding", "scoring"
GATHERS, PACKING, BROADCAST, QUANTISING = "gathers", "packing", "broadcast", "quantising"
WAITING = "the ranks that train"
"""Parts of phases, besides copies between device and host."""
_GRADS: Final = "sharded_grad"
_TURNS: Final = 2
"""Buffers that take turns in a refit."""
_SWAPS: Final[tuple[Way, ...]] = ("to_host", "to_device", "to_device")
"""Copies around a reference policy's pass: the policy leaves, the reference comes in, the policy comes back."""
_OUTSIDE: Final = "outside the allocator: "
"""Prefix of categories of memory outside torch's allocator. Dispatchers and workspaces may be inside or outside."""
_COPIES: Final = 4
"""Times that streamed weights cross device memory: read and written into a buffer, read and written by the engine."""


@dataclass(frozen=True, slots=True)
class GrpoStep:
    """Inputs of one GRPO step besides its training: `engine` generates, `gathered`: of the weights sent to it.

    `has_reference`: log-probabilities of a reference policy are computed. `generate_ns`: ns in which one engine decodes
    all its sequences; `refit_share`: share of free memory for the buffers through which weights are sent, 0 to 1;
    `broadcast_ns`: ns in which weights are broadcast to engines on separate GPUs. `asynchronous`: engines generate
    while the policy trains, and `generate_ns` is what the policy waits for. `scores_policy`: log-probabilities of the
    policy itself are made before it trains. `chunks`: parts that are scored and trained on in turn.
    `offloads_states`: optimizer states wait on the host while log-probabilities are made. `critic`: on the policy's
    ranks, None without one; `scorer`: a reward model in an engine of its own there. `buffers`: sizes of those on a
    shared GPU.
    """

    engine: InferenceEngine
    gathered: Gathered
    has_reference: bool
    generate_ns: int
    refit_share: float
    broadcast_ns: int = 0
    asynchronous: bool = False
    scores_policy: bool = True
    chunks: int = 1
    offloads_states: bool = False
    critic: Critic | None = None
    scorer: Scorer | None = None
    buffers: Buffers = alternating

    @property
    def quantising(self) -> Quantising:
        """Matrices that the engine quantises as they arrive."""
        return quantising_of(self.engine)


def is_outside(category: str) -> bool:
    """Tells whether a journal's category is of memory outside torch's allocator, such as NCCL's buffers."""
    return category.startswith(_OUTSIDE)


def category_name(category: str) -> str:
    """Name of a journal's category as reports have it, without the prefix of memory outside the allocator."""
    return category.removeprefix(_OUTSIDE)


def outside(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes in bytes under the names that a journal gives to memory outside torch's allocator."""
    return {_OUTSIDE + category: size for category, size in sizes.items()}


def _copy(journal: Journal, topology: Topology, num_bytes: int, way: Way) -> None:
    journal.copy(way, num_bytes, host_ns(num_bytes, topology, way))


def host_ns(num_bytes: int, topology: Topology, way: Way) -> int:
    """Time in ns of one copy of `num_bytes` between device and host."""
    return collective_ns("copy", num_bytes, 1, topology.node.host_link.way(way))


def start(policy: Policy, *, has_reference: bool) -> Journal:
    """Journal before the first phase: the policy is on the device, a reference policy's copy on the host."""
    journal = Journal()
    for sizes in (outside(policy.outside), policy.params, policy.states):
        journal.put(POLICY, sizes)
    journal.put(FIXED, policy.fixed)
    journal.put(POLICY, policy.hosted, "host")
    if has_reference:
        journal.put(REFERENCE, policy.copied, "host")
    return journal


# ---- phases ----------------------------------------------------------------------------------------------------------
def score(journal: Journal, policy: Policy, *, beside_grads: bool = False) -> None:
    """Adds the passes that make log-probabilities; `beside_grads`: gradients of a part that was trained on are there.

    NeMo RL 7ea279ab `algorithms/single_controller.py` _train_pump: keep_train_buffers.
    """
    sizes = policy.scoring or policy.passing
    grads = {_GRADS: policy.all_grads} if beside_grads else {}
    journal.spike(POLICY, {**sizes, **grads}, "forward pass", {FORWARD: policy.passing_ns})


def refer(journal: Journal, policy: Policy, topology: Topology, *, is_away: bool = False,
          beside_grads: bool = False, offloads_states: bool = False) -> None:
    """Adds the reference policy's pass: the policy waits on the host while the reference replaces its parameters.

    `is_away`: the policy's parameters may still be on the host; `beside_grads`: as in `score`; `offloads_states`: so do
    optimizer states that have not left yet.
    """
    journal.begin("reference")
    if offloads_states:
        away(journal, policy.states, topology)
    if is_away:
        back(journal, policy.params, topology)
    size = sum(policy.copied.values()) - policy.hosted.get(PARAMS, 0)
    journal.put(f"{POLICY}, copied", policy.copied, "host", "policy copied to the host")
    for way in _SWAPS:
        _copy(journal, topology, size, way)
    score(journal, policy, beside_grads=beside_grads)
    journal.drop(f"{POLICY}, copied", "host")


def train(journal: Journal, policy: Policy) -> None:
    """Adds the training steps."""
    grads = f"{POLICY}, gradients"
    journal.put(grads, {_GRADS: policy.hosted_grads}, "host")
    journal.spike(POLICY, policy.training, "training step", {STEPS: policy.training_ns})
    journal.drop(grads, "host")


def dpo_step(policy: Policy, topology: Topology) -> Journal:
    """Memory and time of a DPO step on one class of ranks, in the phases "reference" and "training".

    "reference": forward passes of the reference policy; see [Note: the order of a step].
    """
    journal = start(policy, has_reference=True)
    refer(journal, policy, topology)
    journal.begin("training")
    train(journal, policy)
    return journal


def grpo_step(policy: Policy, step: GrpoStep, topology: Topology) -> Journal:
    """Memory and time of a steady GRPO step on one class of ranks that train, phase by phase.

    "refit" (weights go to the engine), "generation", "logprob", "reference" (if the step has them), "training": see
    [Note: the order of a step]. The engine is in it only if it shares the GPU (`colocated`).
    """
    journal = start(policy, has_reference=step.has_reference)
    sample(journal, policy, step, topology)
    if step.scores_policy:
        journal.begin("logprob")
        back(journal, policy.params, topology)
        if step.offloads_states:
            away(journal, policy.states, topology)
        score(journal, policy, beside_grads=step.chunks > 1)
    if step.has_reference:
        refer(journal, policy, topology, is_away=not step.scores_policy, beside_grads=step.chunks > 1,
              offloads_states=step.offloads_states)
    journal.begin("training")
    if not step.scores_policy:
        back(journal, policy.params, topology)
    back(journal, policy.states, topology)
    train(journal, policy)
    return journal


def sample(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology) -> None:
    """Adds the phases "refit" and "generation"; before and after them an engine on the same GPU sleeps.

    Beside a critic all of the policy is on the host while tokens are generated.
    """
    colocated = step.engine.generation.colocated
    if colocated:
        put_asleep(journal, step.engine)
    journal.begin("refit")
    (_refit if colocated else _broadcast)(journal, policy, step, topology)
    if step.critic is not None:
        away(journal, policy.params, topology)
        away(journal, policy.states, topology)
    journal.begin("generation")
    if colocated:
        generate(journal, step, topology)
    else:
        journal.take(DECODING, step.generate_ns)


def generate(journal: Journal, step: GrpoStep, topology: Topology) -> None:
    """Adds generation by an engine on the policy's GPU, which sleeps afterwards."""
    journal.spike(ENGINE, {"activation": step.engine.profile.highest}, "prefill of the most tokens")
    journal.take(DECODING, step.generate_ns)
    put_to_sleep(journal, step.engine, topology)


def back(journal: Journal, sizes: Mapping[str, int], topology: Topology, owner: str = POLICY) -> None:
    """Moves tensors from the host back to the device; 0 ns if they never left."""
    _copy(journal, topology, journal.move(owner, "host", "device", sizes), "to_device")


def away(journal: Journal, sizes: Mapping[str, int], topology: Topology, owner: str = POLICY) -> None:
    """Moves tensors of `owner` from the device to the host."""
    _copy(journal, topology, journal.move(owner, "device", "host", sizes), "to_host")


def _refit(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology) -> None:
    away(journal, policy.states, topology)
    wake(journal, step.engine, topology)
    free = topology.device.usable_bytes - journal.size("device")
    buffers = step.buffers(max(0, free), step.refit_share, step.gathered)
    batch = ipc_buffers(max(0, free), step.refit_share, 0)["buffer"] // _TURNS
    buffers["buffer"] += step.quantising.held_bytes(batch)
    _hosted_to(journal, policy, topology, "device")
    _stream(journal, step, topology, buffers)
    _hosted_to(journal, policy, topology, "host")
    away(journal, policy.params, topology)
    if step.engine.generation.sleep_level:
        journal.put(ENGINE, step.engine.cached, event="cache wakes")


def _broadcast(journal: Journal, policy: Policy, step: GrpoStep, topology: Topology) -> None:
    _hosted_to(journal, policy, topology, "device")
    _stream(journal, step, topology, broadcast_buffers(topology.device.usable_bytes, step.gathered.largest,
                                                        sends=True))
    _hosted_to(journal, policy, topology, "host")


def _hosted_to(journal: Journal, policy: Policy, topology: Topology, space: Space) -> None:
    """Moves parameters that rest on the host to the device for a refit, and back."""
    if PARAMS not in policy.hosted:
        return
    if space == "device":
        _copy(journal, topology, journal.move(POLICY, "host", "device", [PARAMS]), "to_device")
    else:
        _copy(journal, topology, journal.move(POLICY, "device", "host", [PARAMS]), "to_host")


def _stream(journal: Journal, step: GrpoStep, topology: Topology, buffers: Mapping[str, int]) -> None:
    sizes = {**buffers, "all_gather_output": step.gathered.transient}
    journal.spike(REFIT, sizes, "weights are streamed",
                  {GATHERS: step.gathered.ns, BROADCAST: step.broadcast_ns, **packing_ns(step, topology)})


def packing_ns(step: GrpoStep, topology: Topology, moved: int | None = None) -> dict[str, int]:
    """Time in ns, by part, in which a refit's weights cross device memory into buffers, and are quantised.

    `moved`: bytes that cross it, None for those of weights that are packed.
    """
    rate = topology.device.memory_bandwidth.si * topology.efficiency.kernels.copy_.memory.si
    return {PACKING: round((_COPIES * step.gathered.total if moved is None else moved) / rate * 1e9),
            QUANTISING: round(step.quantising.moved_bytes / rate * 1e9)}


# ---- the engine ------------------------------------------------------------------------------------------------------
def put_asleep(journal: Journal, engine: InferenceEngine, owner: str = ENGINE) -> None:
    """Adds the engine as the previous step left it."""
    journal.put(owner, {**outside(engine.outside()), **engine.stays})
    level = engine.generation.sleep_level
    if level < 2:
        journal.put(owner, engine.loaded, "host" if level else "device")
    if not level:
        journal.put(owner, engine.cached)


def wake(journal: Journal, engine: InferenceEngine, topology: Topology, owner: str = ENGINE) -> None:
    """Brings the engine's weights back, without its cache."""
    if engine.generation.sleep_level == 1:
        _copy(journal, topology, journal.move(owner, "host", "device", engine.loaded), "to_device")
    elif engine.generation.sleep_level == 2:
        journal.put(owner, engine.loaded, event="weights wake")


def put_to_sleep(journal: Journal, engine: InferenceEngine, topology: Topology, owner: str = ENGINE) -> None:
    """Takes from the device what the engine drops when it sleeps."""
    level = engine.generation.sleep_level
    if level:
        journal.drop(owner, "device", engine.cached)
    if level == 1:
        _copy(journal, topology, journal.move(owner, "device", "host", engine.loaded), "to_host")
    elif level == 2:
        journal.drop(owner, "device", engine.loaded)


def engine_step(step: GrpoStep, topology: Topology, waiting: Mapping[str, int]) -> Journal:
    """Memory and time of a steady GRPO step on a GPU that only generates, with the phases of those that train.

    `waiting`: duration in ns of each phase on the GPUs that train, by name, in their order.
    """
    held = broadcast_buffers(topology.device.usable_bytes, step.gathered.largest, sends=False)
    held["buffer"] += step.quantising.held_bytes(held["buffer"] // _TURNS)
    return serving_journal(step.engine, waiting, held, always=step.asynchronous)


def serving_journal(engine: InferenceEngine, waiting: Mapping[str, int], received: Mapping[str, int], *,
                    always: bool = False) -> Journal:
    """Memory and time of a step on a GPU that only generates, with the phases of those that train.

    `waiting`: duration in ns of each phase on the GPUs that train, by name, in their order. `received`: bytes that are
    held while weights are received, by kind. `always`: it generates in all other phases too.
    """
    journal = Journal()
    journal.put(ENGINE, {**outside(engine.outside()), **engine.loaded, **engine.stays, **engine.cached})
    for phase, ns in waiting.items():
        journal.begin(phase)
        if phase == "refit":
            journal.spike(REFIT, received, "weights are received")
        elif phase == "generation":
            journal.spike(ENGINE, {"activation": engine.profile.highest}, "prefill of the most tokens")
        journal.take(DECODING if phase == "generation" or (always and phase != "refit") else WAITING, ns)
    return journal
