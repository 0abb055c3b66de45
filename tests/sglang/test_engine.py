"""SGLang's engine beside a trainer: its own rules for the pool and its defaults, what stays, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from checkout import ROOT
from rl.verl.test_step import BASE
from simcore.inputs.document import parse_document
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import parse_scenario
from simcore.models.graph import architecture_of, model_config
from simcore.results.report import Report
from simcore.rl.step.refit import Gathered, flattened
from simcore.rl.verl.streams import cloned
from simcore.sglang.engine import Engine
from simcore.sglang.settings import RELEASES, Settings, settings_of
from simcore.simulate import simulate
from simcore.vllm.vision import tower_weights
from vllm.test_engine import H100

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/sglang/0.5.6.json").read_text(encoding="utf-8"))
LATER: dict[str, Any] = json.loads((ROOT / "tests/truth/sglang/0.5.12.post1.json").read_text(encoding="utf-8"))
MIB, GIB = 2**20, 2**30
QWEN = architecture_of(model_config("qwen2.5-7b", None, ""))
CONTEXT = 32768


NEMO_RL: dict[str, Any] = {"framework": "fsdp2", "rl": {"prompts": 4, "generations": 8}, "training": {
    "seq_len": 256, "global_batch_size": 16}}


def engine(tp: int = 1, fraction: float = 0.5, **given: object) -> Engine:
    asked = Generation.model_validate({"engine": "sglang", "tp": tp, "max_num_seqs": 256, **given})
    return Engine(QWEN, asked, H100, 4096, CONTEXT, settings_of(H100.device.usable_bytes, tp), fraction,
                  buffers=16 * MIB)


def found(generation: dict[str, Any] | None = None, **changed: Any) -> Report:
    data = {**json.loads(json.dumps(BASE)), **changed}
    data["generation"] |= {"engine": "sglang", "gpu_memory_utilization": 0.5, **(generation or {})}
    return simulate(parse_scenario(parse_document(json.dumps(data), "s.json")))


def test_defaults_are_sglangs_own() -> None:
    for case in TRUTH["settings"]:
        assert settings_of(case["memory_mib"] * MIB, case["tp"]) == Settings(case["tokens"], case["graphs"]), case
        assert case["largest"] == case["graphs"], case


def test_the_pool_has_as_many_tokens_as_sglang_gives_it() -> None:
    """SGLang counts in GiB as floats, so that the last token may differ."""
    base = engine()
    for case in TRUTH["tokens"]:
        made = replace(base, fraction=case["fraction"])
        others = sum(made.outside().values()) + case["free"]
        made = replace(made.beside(H100.device.usable_bytes - others), buffers=case["weights"] - made.weight_bytes
                       + made.buffers)
        assert made.weight_bytes == case["weights"]
        assert abs(made.cache.num_bytes - max(0, case["tokens"]) * case["cell"]) <= case["cell"] + 57344, case


def test_later_versions_bound_the_sequences_that_are_asked_for() -> None:
    for case in LATER["settings"]:
        assert settings_of(case["memory_mib"] * MIB, case["tp"]) == Settings(case["tokens"], case["graphs"]), case
    base = replace(engine(), release=RELEASES["0.5.12.post1"])
    for case in LATER["sequences"]:
        made = replace(base, context=case["context"], generation=base.generation.model_copy(
            update={"max_num_seqs": case["asked"]}))
        room = 2 * (made.weight_bytes + case["tokens"] * made.pages.block_bytes + made.pages.block_bytes // 2)
        made = made.beside(made.free_bytes - room)
        assert made.cache.num_blocks == case["tokens"], case
        assert made.limits.seqs == case["sequences"], case
        rows = made.cache_bytes - made.cache.num_bytes - made.pages.block_bytes
        assert rows == (case["sequences"] + 1) * (case["context"] + 4) * 4, case


def test_graphs_go_with_the_pool_where_the_trainer_asks_for_it() -> None:
    stays, goes = engine(), replace(engine(), frees_graphs=True)
    inputs = 256 * (QWEN.vocab * 4 + CONTEXT * 4) + CONTEXT * 8
    assert stays.cached == {"kv_cache": stays.cache_bytes}
    assert goes.cached == {"kv_cache": goes.cache_bytes, "graph_pool": goes.graph_bytes - inputs}
    assert goes.stays["buffer"] == goes.buffers + inputs
    assert "graph_pool" not in goes.stays
    assert replace(goes, generation=engine(enforce_eager=True).generation).cached == {"kv_cache": goes.cache_bytes}


def test_log_probabilities_that_are_asked_for_take_memory() -> None:
    plain, scored = engine().profile, replace(engine(), scores=True).profile
    assert scored.sampler - plain.sampler == 256 * QWEN.vocab * 4


def test_what_others_hold_takes_its_fraction_from_the_pool() -> None:
    alone, beside = engine(), engine().beside(10 * GIB)
    assert abs(alone.cache.num_bytes - beside.cache.num_bytes - 5 * GIB) <= 2 * alone.pages.block_bytes
    assert beside.weight_bytes == alone.weight_bytes


def test_a_released_engine_keeps_buffers_graphs_and_free_tokens() -> None:
    made = engine()
    assert made.loaded == {"sharded_param": sum(made.by_component.values())}
    assert made.stays["buffer"] == made.buffers
    assert made.stays["workspace"] == 32 * MIB + 8 * made.cache.num_blocks
    places = 256 * (CONTEXT + 4) * 4
    assert made.cache_bytes == (made.cache.num_blocks + 1) * made.pages.block_bytes + places


def test_a_tower_is_padded_to_eights_and_its_images_are_kept() -> None:
    """Qwen 2.5 VL: 3,420 elements of each MLP become 3,424; 32 layers of 1,280."""
    seen, read = (architecture_of(model_config(name, None, "")) for name in ("qwen2.5-vl-7b", "qwen2.5-7b"))
    for tp in (1, 4):
        one, other = (replace(engine(tp), architecture=model) for model in (seen, read))
        vllm = sum(weight.num_bytes for weight in tower_weights(seen, tp))
        more = 2 * 32 * (3 * 4 * 1280 + 2 * 4) // tp
        assert one.weight_bytes - other.weight_bytes == vllm + more, tp
        kept = one.workspace_bytes - other.workspace_bytes
        assert kept == 100 * MIB + 8 * (one.cache.num_blocks - other.cache.num_blocks), tp


def test_a_step_on_images_with_sglang() -> None:
    training = {"seq_len": 1024, "global_batch_size": 16, "loss": "flash", "images": 1, "image_height": 448}
    report = found(model="qwen2.5-vl-3b", topology="dgx-h100", training=BASE["training"] | training)
    assert report.status == "ok", report.problems
    assert "vision tower of the engine" in {row.what for row in report.assumptions}


def test_graphs_take_what_sglang_reserves_and_at_least_their_inputs() -> None:
    assert engine().graph_bytes == 256 * 2 * MIB
    assert engine(enforce_eager=True).graph_bytes == 0
    assert engine(tp=4, max_num_seqs=None).graph_bytes == 512 * 2 * MIB
    wide = replace(engine(), context=2**20)
    assert wide.graph_bytes == 256 * (QWEN.vocab * 4 + 2**20 * 4) + 2**20 * 8


def test_sequences_that_nobody_limits() -> None:
    """`model_runner.py:1676`: 512 of the model's context for each that the pool holds, from 2,048 to 4,096."""
    made = engine(max_num_seqs=None)
    assert made.cache.num_blocks > CONTEXT
    assert made.limits.seqs == min(max(made.cache.num_blocks * 512 // CONTEXT, 2048), 4096)
    small = made.beside(made.free_bytes - 2 * (made.weight_bytes + 1000 * made.pages.block_bytes))
    assert small.limits.seqs == small.cache.num_blocks // 2


def test_why_an_engine_does_not_start() -> None:
    assert engine().refusal == ""
    assert "no memory is left for the pool" in engine(fraction=0.1).refusal
    made = engine()
    exact = replace(made, max_model_len=made.cache.num_blocks - 2)
    assert exact.refusal == ""
    assert "is cut short" in replace(exact, max_model_len=exact.max_model_len + 1).refusal


def test_buckets_hold_what_verls_loop_holds() -> None:
    for case in TRUTH["buckets"]:
        assert sum(cloned(case["sizes"], case["bucket"])) == case["highest"], case


def test_a_step_with_sglang_end_to_end() -> None:
    """The pool is of what the actor leaves free: with its parameters away there is more; both go in a refit."""
    stays = found()
    away = found(rl=BASE["rl"] | {"param_offload": True})
    assert stays.serving is not None
    assert away.serving is not None
    assert (stays.serving.engine, stays.serving.version) == ("sglang", "0.5.6")
    assert away.serving.requested_bytes > stays.serving.requested_bytes
    assert [phase.phase for phase in stays.phases] == ["refit", "generation", "logprob", "reference", "training"]
    for phase in stays.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    told = [row.source for row in stays.assumptions]
    assert any("mem_fraction_static" in one for one in told)
    assert not any("vLLM" in one for one in told)


def test_a_step_of_nemo_rl_end_to_end() -> None:
    """The engine starts first, on an empty GPU; its weights wait on the host while the policy trains."""
    report = found({"sleep_level": 1}, **NEMO_RL)
    assert report.status == "ok", report.problems
    assert report.serving is not None
    assert report.serving.version == "0.5.12.post1"
    for phase in report.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    held = {phase.phase: phase.by_category.get("graph_pool", 0) for phase in report.phases}
    assert held["generation"] > 0
    assert held["training"] == 0


def test_a_bucket_is_flattened_beside_its_tensors() -> None:
    weights = Gathered(0, largest=3 * GIB, total=20 * GIB, calls=(), ns=0)
    found = [flattened(free, 0.3, weights)["buffer"] / GIB for free in (100 * GIB, 50 * GIB, 2 * GIB)]
    assert found == [2 * 20, 2 * 15, 2 * 3]


@pytest.mark.parametrize(("changed", "status", "told"), [
    ({"generation": {"version": "0.25.1"}}, "error", "one of SGLang's, 0.5.6, 0.5.12.post1"),
    ({"generation": {"kv_cache_memory": "1 GiB"}}, "error", "not yet: a pool of a given size"),
    ({"generation": {"max_num_batched_tokens": 4096}}, "error", "not yet: prefills of another size"),
    ({"generation": {"kv_dtype": "fp32"}}, "error", "expected auto, bf16 or fp8"),
    ({"generation": {"colocated": False}}, "error", "not yet: SGLang on GPUs of its own"),
    ({"generation": {"engine": "trtllm"}}, "error", "not yet: the engine trtllm (served: vllm, sglang)"),
    ({"generation": {"engine": "vllm", "version": "0.5.6"}}, "error", "one of vLLM's"),
    ({"generation": {"max_model_len": 2**20}}, "illegal", "tokens are more than the"),
    ({"generation": {"tp": 3}}, "illegal", "attention heads are not divisible by tp 3"),
    ({"rl": BASE["rl"] | {"reward": {"model": "llama-tiny"}}}, "error", "not yet: reward: a model beside sglang"),
    (NEMO_RL | {"model": "qwen2.5-vl-3b"}, "error", "not yet: serving the vision tower of qwen2_5_vl by SGLang"),
    ({"topology": "dgx-b200"}, "illegal", "FlashAttention 3 needs 8 or 9"),
    (NEMO_RL | {"topology": "dgx-b200"}, "error", "SGLang's own choice of kernels"),
    (NEMO_RL | {"framework": "megatron"}, "illegal", "sglang with a policy of Megatron"),
    (NEMO_RL | {"rl": {"prompts": 4, "generations": 8, "asynchronous": True}, "generation": {"colocated": False}},
     "error", "not yet: SGLang on GPUs of its own")])
def test_what_is_refused(changed: dict[str, Any], status: str, told: str) -> None:
    report = found(**changed)
    assert report.status == status
    assert any(told in row.message for row in report.problems), report.problems
