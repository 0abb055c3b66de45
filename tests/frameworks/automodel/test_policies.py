"""Workers of NeMo RL: what rests in fp32, which layers run, what its pin wraps and replays."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet
from simcore.frameworks.automodel.policies import NEMO_RL, OLDER
from simcore.models.blocks import Attention, Mamba2, Moe
from simcore.program.outline import Phase
from simcore.program.tile import AUX, OP
from simcore.recording.tape import Op
from simcore.simulate import simulate

LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "exclude_modules": ["*out_proj*"]}}
HUB: dict[str, Any] = {"version": NEMO_RL, "implementation": "hub"}


def test_a_frozen_base_and_adapters_rest_in_fp32() -> None:
    """0.7.0 stores a frozen base in the compute dtype; releases before it leave it as it was loaded."""
    given: dict[str, Any] = {"implementation": "hf", "model": "llama-tiny", "precision": {"params": "fp32"},
                             "method": "lora"}
    widths = {}
    for version in ("0.7.0", "0.4.0", NEMO_RL):
        (rest,) = (small.plan_of("automodel", {"dp_shard": 2}, version=version, **given).at_rest()["mlp"],)
        widths[version] = rest.params_bytes // rest.num_params
    assert widths == {"0.7.0": 2, "0.4.0": 4, NEMO_RL: 4}
    auto = small.plan_of("automodel", {"dp_shard": 2}, version=NEMO_RL, model="llama-tiny", implementation="hf", **LORA)
    assert all(p.policy.at_rest.dtype == "fp32" for layer in auto.layers for p in auto.of_layer(layer)
               if not p.spec.is_buffer)


def test_every_expert_is_a_module_with_an_adapter() -> None:
    job, table = small.prepared("automodel", {"dp_shard": 2}, **HUB, **LORA)
    experts = [spec for kind in job.graph.tensors for spec in kind if ".experts." in f".{spec.name}"
               and spec.module == "adapter"]
    assert experts
    assert all(spec.copies > 1 for spec in experts)
    assert not any("out_proj.lora" in spec.name for kind in job.graph.tensors for spec in kind)
    (root,) = (unit for unit in table.units if unit.is_root)
    held = {job.graph.kinds[job.graph.layers[layer].kind].name for layer, _ in root.members}
    assert held == {"embedding", "final_norm", "head"}


def test_it_runs_as_the_same_layers_do_under_plain_fsdp2() -> None:
    """force_hf is fully_shard around layers and root, in fp32, reduced in fp32 after each microbatch."""
    named = {"rank": 8, "target_modules": ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj",
                                           "lm_head"], "dtype": "fp32"}
    policy = simulate(small.scenario("automodel", {"dp_shard": 2}, microbatches=2, **HUB, **LORA))
    plain = simulate(small.scenario(
        "fsdp2", {"dp_shard": 2}, microbatches=2, implementation="hub", method="lora", lora=named,
        precision={"params": "fp32", "grad_reduce": "fp32"}, options={"sync_gradients": "every"}))
    (ours,), (theirs,) = policy.ranks, plain.ranks
    assert ours.peak is not None
    assert theirs.peak is not None
    assert ours.peak.allocated_bytes == theirs.peak.allocated_bytes
    assert ours.at_rest == theirs.at_rest
    assert ours.traffic == theirs.traffic


def test_only_layers_of_mamba_and_mlp_are_replayed() -> None:
    job, table = small.prepared("automodel", {"dp_shard": 2}, recompute="full", **HUB)
    kinds = [[branch.block for branch in job.graph.kinds[layer.kind].branches] for layer in job.graph.layers]
    kept = {number for number, blocks in enumerate(kinds) if any(isinstance(b, Attention | Moe) for b in blocks)}
    assert set(table.kept_whole) == kept
    assert any(isinstance(b, Mamba2) for number, blocks in enumerate(kinds) if number not in kept for b in blocks)


def test_a_dense_hybrid_of_its_repository_has_wide_logits_and_automodel_s_own_loss() -> None:
    """0.7.0 with force_hf and trust_remote_code: its file ends in `lm_head(hidden).float()`."""
    model = {"config": "nemotron-nano-9b-v2", "overrides": {"num_hidden_layers": 8}}
    asked: dict[str, Any] = {"model": model, "implementation": "hub"}
    for loss in ("masked", "masked_fp32"):
        program = small.program_of("automodel", {"dp_shard": 2}, loss=loss, seq_len=512, **asked)
        found = [amount for _, _, amount in small.postings(program, "hidden_states")]
        assert max(found) == 4 * 512 * 131072


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"dp_shard": 2}, {"implementation": "hub"}, "not yet: layers of a checkpoint's repository with experts under"),
    ({"dp_shard": 2}, {"implementation": "hub", "model": "nemotron-nano-9b-v2", "loss": "cut"}, "with loss cut"),
    ({"dp_shard": 2}, {"version": NEMO_RL}, "has no attribute backbone"),
    ({"dp_shard": 2}, {"version": NEMO_RL, "model": "llama-tiny"}, "NeMo RL sets force_hf for llama, whose adapter"),
    ({"dp_shard": 2}, {"version": NEMO_RL, "model": "qwen3-8b"}, "no layers of Qwen3ForCausalLM: transformers' run"),
    ({"dp_shard": 2}, {"version": NEMO_RL, "model": "mixtral-8x7b", "implementation": "automodel"}, "mixtral"),
    ({"dp_shard": 2, "cp": 2}, HUB, "not yet: layers of a checkpoint's repository over more than data"),
    ({"dp_shard": 2, "tp": 2}, HUB, "not yet: tensor and expert parallelism"),
    ({"dp_shard": 2}, {**HUB, "method": "qlora"}, "do not support BnB quantization natively")])
def test_what_it_does_not_run_is_refused(mesh: dict[str, int], given: Any, told: str) -> None:
    report = simulate(small.scenario("automodel", mesh, **given))
    assert told in report.problems[0].message
    assert len(report.problems) == 1


# ---- cpu_offload -----------------------------------------------------------------------------------------------------
HOST = {"params": "host", "gradients": "host", "optimizer": "host"}
DENSE: dict[str, Any] = {"model": "llama-tiny", "implementation": "hf", "version": NEMO_RL}


@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_is_sharded_rests_on_the_host(method: str) -> None:
    """In memory that is not pinned: parameters, gradients, and two states of each trained element, all in fp32."""
    lora = {"lora": {"rank": 8, "target_modules": ["*q_proj"]}} if method == "lora" else {}
    given: dict[str, Any] = {"method": method, "seq_len": 256, "loss": "masked_fp32", **lora}
    away, kept = (simulate(small.scenario("automodel", {"dp_shard": 2}, offload=offload, **DENSE, **given))
                  for offload in (HOST, {}))
    assert away.status == kept.status == "ok", (away.problems, kept.problems)
    there, here = (report.ranks[0].peak for report in (away, kept))
    assert there is not None
    assert here is not None
    for name in ("sharded_param", "sharded_grad", "opt_state"):
        assert there.by_category.get(name, 0) == 0
        assert here.by_category.get(name, 0) > 0 or name == "sharded_grad"
    assert away.time is not None
    assert "copy" in {row.collective for row in away.time.communication}
    plan = small.plan_of("automodel", {"dp_shard": 2}, offload=HOST, **DENSE, **given)
    placed = [p for layer in plan.layers for p in plan.of_layer(layer) if not p.spec.is_buffer]
    trained = sum(p.local for p in placed if p.trainable)
    assert plan.elsewhere() == {"host": 4 * (sum(p.padded for p in placed) + 3 * trained)}


def test_units_on_the_host_are_those_of_plain_fsdp2() -> None:
    """The same layers and units under both frameworks: peak, traffic and copies are equal."""
    named = {"rank": 8, "target_modules": ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj",
                                           "lm_head"], "dtype": "fp32"}
    policy = simulate(small.scenario("automodel", {"dp_shard": 2}, microbatches=2, offload=HOST, **HUB, **LORA))
    plain = simulate(small.scenario(
        "fsdp2", {"dp_shard": 2}, microbatches=2, implementation="hub", method="lora", lora=named, offload=HOST,
        precision={"params": "fp32", "grad_reduce": "fp32"}, options={"sync_gradients": "every"}))
    (ours,), (theirs,) = policy.ranks, plain.ranks
    assert ours.peak is not None
    assert theirs.peak is not None
    assert ours.peak.by_category == theirs.peak.by_category
    assert ours.traffic == theirs.traffic


@pytest.mark.parametrize(("mesh", "given", "error", "message"), [
    ({}, {"offload": HOST}, IllegalLayout, "CPUOffload doesn't work on single GPU"),
    ({"dp_shard": 2}, {"offload": {"params": "host"}}, IllegalLayout, "which offloads parameters, gradients, and"),
    ({"dp_shard": 2}, {"offload": HOST | {"activations": "host"}}, IllegalLayout, "no setting by which saved"),
    ({"dp_shard": 2}, {"offload": HOST, "version": "0.7.0"}, NotYet, "params outside the device under automodel"),
    ({"dp_shard": 2}, {"offload": {"params": "disk"}}, InputError, "disk")])
def test_an_offload_that_no_worker_has(mesh: dict[str, int], given: dict[str, Any], error: type[Exception],
                                       message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", mesh, **(DENSE | given))


# ---- outputs in fp32, and the older worker ---------------------------------------------------------------------------
@pytest.mark.parametrize(("version", "kept"), [(NEMO_RL, 4), (OLDER, 8), ("auto", 2)])
def test_a_replayed_layer_keeps_what_its_checkpoint_is_given(version: str, kept: int) -> None:
    """Bytes for each number of a hidden state that a further layer adds.

    transformers 5.5.4, which NeMo RL pins, replays FSDP2's hooks too, so that inputs in fp32 are kept; the older worker
    keeps inputs of both norms, of attention and of the MLP in 16 bits. Held to torch 2.13 on two ranks of a CPU: 65,536
    and 131,072 bytes of 256 tokens x 64 numbers, and with transformers 5.23, whose hooks are outside, 32,768.
    """
    given: dict[str, Any] = {"recompute": "full", "seq_len": 4096, "implementation": "hf", "version": version,
                             "precision": {"params": "fp32", "grad_reduce": "fp32"}}
    two, three = (simulate(small.scenario("automodel", {"dp_shard": 2}, model=_tiny(layers), **given))
                  for layers in (4, 5))
    assert two.status == three.status == "ok", two.problems
    sizes = [report.ranks[0].peak.by_category["activation"] for report in (two, three) if report.ranks[0].peak]
    assert sizes[1] - sizes[0] == kept * 4096 * 256  # hidden size


def _tiny(layers: int) -> dict[str, Any]:
    return {"config": "llama-tiny", "overrides": {"num_hidden_layers": layers}}


def test_the_older_worker_reshards_every_layer_and_gathers_all_before_a_pass() -> None:
    given: dict[str, Any] = {"implementation": "hf", "model": "llama-tiny"}
    (_, older), (_, newer) = (small.prepared("automodel", {"dp_shard": 2}, version=version, **given)
                              for version in (OLDER, NEMO_RL))
    kept = [[unit.name for unit in table.units if not unit.reshard_after_forward] for table in (older, newer)]
    assert kept == [["root"], ["root", newer.units[-1].name]]
    assert (older.strategy.gathers_before_passes, newer.strategy.gathers_before_passes) == (True, False)


def test_the_older_worker_wraps_one_gpu_as_fsdp2_does() -> None:
    """Parameters rest in fp32 and are used in 16 bits, also on one GPU."""
    given: dict[str, Any] = {"model": "llama-tiny", "implementation": "hf"}
    older = simulate(small.scenario("automodel", {}, version=OLDER, **given))
    plain = simulate(small.scenario("fsdp2", {}, options={"sync_gradients": "every"},
                                    precision={"params": "fp32", "grad_reduce": "fp32"}, **given))
    (ours,), (theirs,) = older.ranks, plain.ranks
    assert ours.at_rest == theirs.at_rest
    assert ours.traffic == theirs.traffic
    assert ours.peak is not None
    assert theirs.peak is not None
    for name in ("unsharded_param", "sharded_param", "opt_state"):
        assert ours.peak.by_category.get(name) == theirs.peak.by_category.get(name)


@pytest.mark.parametrize(("mesh", "given", "error", "message"), [
    ({"dp_shard": 2}, {"implementation": "automodel"}, IllegalLayout, "transformers' layers"),
    ({"dp_shard": 2}, {"method": "lora"}, IllegalLayout, "LoRA is not supported for DTensorPolicyWorker V1"),
    ({"dp_shard": 2, "dp_replicate": 2}, {}, IllegalLayout, "HSDP is not supported"),
    ({"dp_shard": 2}, {"model": "mixtral-8x7b"}, NotYet, "the older worker of mixtral")])
def test_what_the_older_worker_does_not_run(mesh: dict[str, int], given: dict[str, Any], error: type[Exception],
                                            message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", mesh, **(DENSE | {"version": OLDER} | given))


# ---- tensor parallelism ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("mesh", "given", "error", "message"), [
    ({"dp_shard": 2, "tp": 2}, {"sequence_parallel": True}, NotYet, "sequences cut over tp"),
    ({"dp_shard": 5, "tp": 2}, {"model": "llama-3.2-1b"}, NotYet, "a tied table of 128256 rows with tp 2 that dp_sha"),
    ({"dp_shard": 2, "tp": 2}, {"model": "llama-3.2-1b", "offload": HOST}, NotYet, "a tied table with tp on the host"),
    ({"dp_shard": 2, "tp": 2}, {"model": "llama-3.2-1b", "version": "0.7.0"}, NotYet, "a tied table with tp under"),
    ({"dp_shard": 2, "tp": 2}, {"method": "lora"}, NotYet, "adapters of layers that tp splits"),
    ({"tp": 2}, {"model": "mixtral-8x7b"}, NotYet, "get_hf_tp_shard_plan"),
    ({"tp": 2}, {"model": "mistral-7b-v0.3", "sequence_parallel": True}, NotYet, "tp .*_get_parallel_plan"),
    ({"tp": 2}, {"model": "mistral-7b-v0.3", "sequence_parallel": True, "version": OLDER}, IllegalLayout,
     "sequence_parallel is not support in HF tp plan"),
    ({"tp": 16}, {"topology": "dgx-h100", "model": "llama-3-8b"}, IllegalLayout,
     r"num_key_value_heads \(8\) must be divisible by TP size \(16\)"),
    ({"tp": 2, "cp": 2}, {"sequence_parallel": True}, IllegalLayout, "known issue that context parallel"),
    ({"tp": 2}, HUB | {"model": small.TINY, "sequence_parallel": True}, IllegalLayout,
     "not supported for NemotronHForCausalLM"),
    ({"tp": 2, "ep": 2}, {"model": small.TINY, "implementation": "automodel"}, IllegalLayout,
     "Tensor parallelism not supported for custom MoE models")])
def test_tensor_parallelism_is_refused_by_the_worker_s_own_rules(mesh: dict[str, int], given: dict[str, Any],
                                                                error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", mesh, **(DENSE | given))


@pytest.mark.parametrize("model", ["llama-tiny", {"config": "qwen3-8b", "overrides": {
    "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 512}}])
@pytest.mark.parametrize("version", [NEMO_RL, OLDER])
def test_sums_over_tp_are_those_of_dtensors_plan(version: str, model: Any) -> None:
    """Held to torch 2.13 on two ranks of a CPU (CommDebugMode): sums of embedding, o and down; of q, k, v, gate, up.

    The head sums the gradient of its input, in fp32; the loss maxima, exponentials and log-probabilities of 64 tokens.
    """
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "tp": 2}, **(DENSE | {
        "version": version, "model": model}), microbatches=1))
    assert report.status == "ok", report.problems
    found = {(row.phase, row.dtype): (row.calls, row.payload_bytes) for row in report.ranks[0].traffic
             if row.axis == "tp"}
    state = 2 * 64 * 256
    assert found == {("forward", "bf16"): (9, 9 * state), ("backward", "bf16"): (20, 20 * state),
                     ("forward", "fp32"): (3, 3 * 4 * 64), ("backward", "fp32"): (1, 2 * state)}


def test_a_loss_over_tp_holds_three_copies_of_its_part_and_keeps_one() -> None:
    """NeMo RL's DistributedLogprob in fp32: logits, less their maximum, exponentials; then the softmax alone."""
    peaks = {}
    for vocab in (64000, 128000):
        model = {"config": "llama-tiny", "overrides": {"vocab_size": vocab}}
        report = simulate(small.scenario("automodel", {"dp_shard": 2, "tp": 2}, seq_len=1024, **(DENSE | {
            "model": model}), microbatches=1))
        assert report.ranks[0].peak is not None
        assert report.ranks[0].peak.phase == "loss"
        peaks[vocab] = report.ranks[0].peak.by_category["activation"]
    assert peaks[128000] - peaks[64000] == 3 * 4 * 1024 * 32000


# ---- clipping --------------------------------------------------------------------------------------------------------
def test_without_a_limit_gradients_are_passed_over_as_a_worker_does() -> None:
    """Kernels of an update: the first moves gradients alone, by norm and product or by the norm, or there is none."""
    given: dict[str, Any] = {"implementation": "hf", "model": "llama-tiny",
                             "precision": {"params": "fp32", "grad_reduce": "fp32"}}
    moved = []
    for version, options in ((NEMO_RL, {}), (OLDER, {}), (OLDER, {"clip_grad_norm": False}),
                             (NEMO_RL, {"clip_grad_norm": True}), (NEMO_RL, {"clip_grad_norm": False})):
        program = small.program_of("automodel", {"dp_shard": 2}, version=version, options=options, **given)
        updates = (program.columns[:, OP] == Op.COMPUTE) & (program.phase == Phase.OPTIMIZER)
        moved.append(program.columns[updates, AUX].tolist())
    (clipped, update), *others = moved
    assert others == [[clipped, update], [clipped // 3, update], [clipped, update], [update]]
    with pytest.raises(IllegalLayout, match=r"clipped at 1\.0 where no norm is given"):
        small.prepared("automodel", {"dp_shard": 2}, options={"clip_grad_norm": False}, model="llama-tiny")
