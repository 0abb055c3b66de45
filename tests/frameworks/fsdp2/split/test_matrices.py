"""Matrices that ranks share under FSDP2, by transformers' own plans: what is cut how, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.recording.tape import Op
from simcore.simulate import simulate
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import program_of

SPLIT = {"dp_shard": 2, "tp": 2}
TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
UNTIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": False}}
QWEN3 = {"config": "qwen3-8b", "overrides": {
    "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "num_hidden_layers": 2, "intermediate_size": 192}}


def _told(mesh: dict[str, int] | None = None, model: Any = UNTIED, options: dict[str, Any] | None = None,
          **training: Any) -> str:
    report = simulate(small.scenario("fsdp2", mesh or SPLIT, model=model, options=options, **training))
    return "; ".join(str(problem.message) for problem in report.problems)


@pytest.mark.parametrize(("mesh", "model", "options", "training", "told"), [
    ({"tp": 2}, UNTIED, {}, {}, "tensor parallelism without shards of FSDP2"),
    ({"dp_shard": 2, "tp": 2, "cp": 2}, UNTIED, {}, {}, "cannot import name 'ReplicateParallel'"),
    ({"dp_shard": 2, "tp": 2, "cp": 2}, UNTIED, {"attn_implementation": "flash_attention_2"}, {},
     "verl's exchanges share beside"),
    ({"dp_shard": 4, "tp": 2}, UNTIED, {"reshard_after_forward": 2}, {}, "Resharding to smaller mesh is not supported"),
    (SPLIT, TIED, {"wrap": "layers_root"}, {}, "but in transformers' own units (wrap: separate_embedding_head)"),
    ({"dp_shard": 3, "tp": 2}, TIED, {}, {}, "1000 rows over tp 2 that dp_shard 3"),
    ({"dp_shard": 2, "tp": 3}, QWEN3, {}, {}, "512 entries of the vocabulary on 3 ranks"),
    ({"dp_shard": 2, "tp": 4}, QWEN3, {}, {}, "2 key and value heads are not cut evenly over 4 ranks"),
    (SPLIT, "olmoe-1b-7b", {}, {}, "transformers' plan of tensor parallelism for olmoe"),
    (SPLIT, "phi-2", {}, {}, "dropout in layers that tensor parallelism splits"),
    (SPLIT, UNTIED, {}, {"loss": "cut"}, "cut of a head that tensor parallelism splits"),
    (SPLIT, UNTIED, {}, {"optimizer": {"name": "muon"}}, "muon of matrices that ranks split"),
    (SPLIT, UNTIED, {}, {"method": "lora"}, "adapters beside transformers' tensor parallelism"),
    (SPLIT, UNTIED, {}, {"method": "qlora"}, "has no attribute 'compress_statistics'"),
    (SPLIT, UNTIED, {"use_liger_kernel": True}, {}, "Liger's kernels in layers that ranks split"),
])
def test_what_is_not_served_beside_it(mesh: dict[str, int], model: Any, options: dict[str, Any],
                                      training: dict[str, Any], told: str) -> None:
    assert told in _told(mesh, model, options, **training)


def test_a_tied_head_is_gathered_and_reduced_beside_the_embedding() -> None:
    """transformers 5.23 distributed/fsdp.py: the root has the head; what is said of units by default and by name."""
    programs = []
    for options in ({}, {"wrap": "separate_embedding_head"}):
        parts = placed_simulation(small.scenario("fsdp2", SPLIT, model=TIED, options=options), rank=0)
        programs.append(program_of(parts, parts.plans[0]).columns.tolist())
        root, ends = parts.plans[0].framework.units[:2]
        assert (root.is_root, ends.name, ends.reshard_after_forward) == (True, "model.embed_tokens, model.norm", False)
        assert [len(members) for _, members in (*root.members, *ends.members)] == [1, 1, 1]
    assert programs[0] == programs[1]


def test_norms_are_whole_and_those_of_heads_add_up_their_gradients() -> None:
    """transformers 5.23 distributed/tensor_parallel.py ReplicatedWithGradAllReduce: 2 x 32 elements in 16 bits."""
    parts = placed_simulation(small.scenario("fsdp2", SPLIT, model=QWEN3), rank=0)
    program = program_of(parts, parts.plans[0])
    sent = [amount for op, _, slot, amount, _, _ in program.columns.tolist()
            if op == Op.COLLECTIVE and slot == program.tables.comms["all_reduce", "tp", "bf16"]]
    assert sent.count(64) == 4
    shapes = {placed.spec.name: placed.used_shape for kind in parts.plans[0].kinds for placed in kind}
    assert shapes["self_attn.q_norm.weight"] == (32,)
    assert (shapes["self_attn.o_proj.weight"], shapes["self_attn.k_proj.weight"]) == ((128, 64), (32, 128))
