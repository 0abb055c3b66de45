"""Unsloth's functions of a layer: what they keep, what they write over, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import INPUT_STAYS, LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Op, Param, Section
from simcore.simulate import simulate

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAST: dict[str, Any] = {"FastLanguageModel": True, "attn_implementation": "flash_attention_2"}
OLD = FAST | {"FastLanguageModel": "2024.12"}
PLAIN: dict[str, Any] = {"FastLanguageModel": True}
XFORMERS: dict[str, Any] = PLAIN | {"attn_implementation": "xformers"}
TOKENS, HIDDEN, KV, FFN, HEADS = 64, 256, 128, 688, 8


NEMOTRON: dict[str, Any] = {"model": "nemotron-3-tiny", "implementation": "hub", "method": "lora", "loss": "auto",
                            "options": PLAIN, "lora": {"rank": 8, "target_modules": ["q_proj", "up_proj"]}}


def asked(**changed: Any) -> dict[str, Any]:
    return {"model": "llama-tiny", "method": "qlora", "lora": {"rank": 8, "target_modules": ALL}, "loss": "cut",
            "options": FAST} | changed


def kept(**changed: Any) -> int:
    """Bytes of the second layer's activations when forward is over."""
    program = small.program_of("ddp", **asked(**changed))
    end = small.marks(program).index("fwd:end")
    count = live = 0
    for op, layer, slot, amount, *_ in program.columns.tolist():
        count += op == Op.MARK
        owner = program.owner(layer, slot)[1] if op in (Op.ALLOC, Op.FREE) else ""
        live += amount if owner == "activation" and layer == 2 else 0
        if count > end:
            return live
    raise AssertionError("forward never ends")


def test_a_layer_keeps_its_functions_inputs_gate_and_up() -> None:
    """Two norms with their rows' scales, attention's five tensors, the MLP's three, and the stream."""
    wide = 2 * HIDDEN  # bytes of a token's hidden state
    norms = 2 * (wide + 4)  # what they put out, which the functions behind them keep
    attention = 2 * wide + 2 * 2 * KV + 4 * HEADS
    mlp = 2 * 2 * FFN
    stream = 2 * wide  # between attention and MLP, and what the layer puts out
    assert kept() == TOKENS * (norms + attention + mlp + stream)


def test_peft_keeps_more_of_the_same_layer() -> None:
    plain = {"options": {"attn_implementation": "flash_attention_2"}}
    assert kept() < 0.7 * kept(**plain)


def test_forward_makes_weights_in_one_buffer_that_stays() -> None:
    largest = FFN * HIDDEN
    program = small.program_of("ddp", **asked())
    assert small.postings(program, "weight_buffer") == [(0, "build", 2 * largest + 4 * largest // 64)]
    assert not any(phase == "forward" for _, phase, _ in small.postings(program, "mlp.dequantised"))
    made = [size for _, phase, size in small.postings(program, "mlp.dequantised") if phase == "backward" and size > 0]
    assert made == 4 * [2 * largest] * 3


def test_2024_12_added_parts_as_tensors_of_their_own() -> None:
    """And made weights anew in forward."""
    program = small.program_of("ddp", **asked(options=FAST | {"FastLanguageModel": "2024.12"}))
    parts = [size for _, phase, size in small.postings(program, "mlp.down_proj.part") if size > 0]
    assert parts == 4 * [2 * TOKENS * HIDDEN] + 4 * [2 * TOKENS * FFN]  # onto the output, onto what lies between
    assert {phase for _, phase, _ in small.postings(program, "mlp.dequantised")} == {"forward", "backward"}
    assert not small.postings(program, "weight_buffer")
    assert small.postings(small.program_of("ddp", **asked()), "weight_buffer")


def test_its_adapters_are_fp32_unless_told() -> None:
    plan = small.plan_of("ddp", **asked())
    adapters = plan.at_rest()["adapters"]
    assert adapters.params_bytes == 4 * adapters.num_params
    told = small.plan_of("ddp", **asked(lora={"rank": 8, "target_modules": ALL, "dtype": "bf16"})).at_rest()["adapters"]
    assert told.params_bytes == 2 * told.num_params


@pytest.mark.parametrize(("changed", "told"), [
    ({"method": "full"}, "without adapters"),
    ({"model": "phi-4"}, "Unsloth's layers of phi3 (served: llama, mistral, "),
    ({"model": "nemotron-3-tiny"}, "Unsloth's nemotron_h without trust_remote_code, whose modules FastModel compiles"),
    (NEMOTRON | {"options": {"FastLanguageModel": "2024.12"}}, "Unsloth's layers of nemotron_h (served: llama)"),
    (NEMOTRON | {"precision": {"compute": "fp16"}}, "fp16 of Unsloth's nemotron_h, which is loaded in fp32"),
    (NEMOTRON | {"precision": {"params": "fp32"}}, "fp32 parameters of a repository's code in Unsloth"),
    ({"lora": {"target_modules": ["q_proj", "up_proj"]}, "options": OLD},
     "missing: down_proj, gate_proj, k_proj, o_proj, v_proj"),
    ({"lora": {"target_modules": ["lm_head"]}}, "with adapters of lm_head"),
    ({"options": OLD | {"attn_implementation": "sdpa"}}, "another attention"),
    ({"lengths": "packed"}, "packed sequences"),
    ({"lora": {"target_modules": ALL, "dropout": 0.1}, "options": OLD}, "2024.12's layers around PEFT's own modules"),
    ({"lora": {"target_modules": ALL, "use_dora": True}, "options": OLD}, "as dropout of adapters and DoRA leave them"),
    ({"options": OLD, "model": "mistral-7b-v0.3"}, "Unsloth's layers of mistral (served: llama)"),
    ({"model": "mistral-7b-v0.1", "seq_len": 8192, "options": PLAIN}, "a window within the sequence"),
    ({"options": FAST | {"autocast": True}}, "autocast around Unsloth's layers"),
    ({"options": XFORMERS, "topology": "rtx-2080-ti"}, "xformers' CUTLASS kernel")])
def test_where_it_would_fall_back_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(NotYet, match=re.escape(told)):
        small.prepared("ddp", **asked(**changed))


@pytest.mark.parametrize(("options", "told"), [
    (PLAIN | {"attn_implementation": "eager"}, "eager: Unsloth's layers run flash-attn if it is installed"),
    ({"attn_implementation": "xformers"}, "transformers has no xformers attention")])
def test_an_attention_of_others_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(IllegalLayout, match=re.escape(told)):
        small.prepared("ddp", **asked(options=options))


# ---- families and kernels of attention ------------------------------------------------------------------------------
SMALL = {"hidden_size": HIDDEN, "vocab_size": 1000, "intermediate_size": FFN, "num_hidden_layers": 4,
         "num_attention_heads": HEADS, "num_key_value_heads": 4}


def of(preset: str, **fields: int) -> dict[str, Any]:
    return {"model": {"config": preset, "overrides": SMALL | fields}}


def test_the_embeddings_output_takes_a_gradient_without_checkpoints_too() -> None:
    """The first layer's input has one although nothing below trains."""
    found = small.postings(small.program_of("ddp", **asked()), "grad_hidden_states")
    plain = small.postings(small.program_of("ddp", **asked(options={})), "grad_hidden_states")
    assert {layer for layer, *_ in found} - {layer for layer, *_ in plain} == {1}


def test_a_plain_install_runs_sdpa_and_an_assumption_says_so() -> None:
    """It keeps what flash-attn keeps; heads are grouped."""
    _, table = small.prepared("ddp", **asked(options=PLAIN))
    assert HfOptions.of(table.options).attn_implementation == "sdpa"
    assert table.libraries.attention == "attention"
    report = simulate(small.scenario("ddp", **asked(options=PLAIN)))
    assert {a.what: a.value for a in report.assumptions}["framework_options.attn_implementation"] == "sdpa"
    assert kept(options=PLAIN) == kept()


def test_sdpa_of_heads_that_are_not_grouped_copies_its_output() -> None:
    """Query, key and value are replaced by their copies; the output lives twice."""
    alone = of("llama-tiny", num_key_value_heads=HEADS)
    assert kept(options=PLAIN, **alone) - kept(**alone) == TOKENS * 2 * HIDDEN


def test_xformers_gets_keys_and_values_of_every_head() -> None:
    """Copies replace what they were made from."""
    assert kept(options=XFORMERS) - kept() == TOKENS * 2 * 2 * (HIDDEN - KV)
    _, table = small.prepared("ddp", **asked(options=XFORMERS))
    assert table.libraries.attention == "attention_flash2"


def test_mistral_keeps_what_llama_keeps() -> None:
    assert kept(**of("mistral-7b-v0.3", head_dim=32)) == kept()


def test_norms_of_query_and_key_keep_their_inputs() -> None:
    """Qwen3: what came out of the products, and an fp32 number a head."""
    assert kept(**of("qwen3-8b", head_dim=32)) - kept() == TOKENS * (2 * (HIDDEN + KV) + 4 * (HEADS + 4))


def test_biases_leave_query_key_and_value_to_peft() -> None:
    """Qwen2: three narrow products are kept, and each adapter's copies in 16 bits until the pass is over."""
    widths = HIDDEN + 2 * KV
    copies = 2 * 8 * (3 * HIDDEN + widths)
    assert kept(**of("qwen2.5-7b")) - kept() == TOKENS * 3 * 2 * 8 + copies
    program = small.program_of("ddp", **asked(**of("qwen2.5-7b")))
    assert len(small.postings(program, "self_attn.q_proj.clone")) == 2 * 4
    assert not small.postings(program, "mlp.up_proj.clone")
    assert {phase for _, phase, _ in small.postings(program, "self_attn.dequantised")} == {"forward", "backward"}


def test_linears_without_an_adapter_leave_their_function_to_peft() -> None:
    """Query, key and value are one group, the output another, the MLP a third."""
    program = small.program_of("ddp", **asked(lora={"rank": 8, "target_modules": ["q_proj", "v_proj", "o_proj"]}))
    assert small.postings(program, "self_attn.q_proj.clone")
    assert not small.postings(program, "self_attn.o_proj.clone")
    assert small.postings(program, "mlp.silu")
    assert small.postings(program, "weight_buffer") == [(0, "build", 2 * HIDDEN * HIDDEN + 4 * HIDDEN * HIDDEN // 64)]


@pytest.mark.parametrize("asked_for", [{"dropout": 0.1}, {"use_dora": True}])
def test_dropout_and_dora_leave_all_linears_to_peft(asked_for: dict[str, Any]) -> None:
    """No buffer stays: each weight is made anew, in forward too. Norms and rotation stay Unsloth's."""
    lora = {"rank": 8, "target_modules": ALL, **asked_for}
    program = small.program_of("ddp", **asked(lora=lora))
    assert not small.postings(program, "weight_buffer")
    assert {phase for _, phase, _ in small.postings(program, "mlp.dequantised")} == {"forward", "backward"}
    assert small.postings(program, "input_layernorm.rstd")
    assert kept(lora=lora) > kept(lora={"rank": 8, "target_modules": ALL})


def test_rank_stabilised_lora_changes_no_byte() -> None:
    assert kept(lora={"rank": 8, "target_modules": ALL, "use_rslora": True}) == kept()


# ---- Nemotron-H of its own repository -------------------------------------------------------------------------------
def test_nemotron_has_none_of_its_functions_but_its_precision() -> None:
    """Adapters in fp32 under autocast, the rest in 16 bits; the embedding's output takes a gradient."""
    _, table = small.prepared("ddp", **NEMOTRON)
    options = HfOptions.of(table.options)
    assert (options.unsloth, options.autocast, options.embeddings_require_grad) == ("", True, True)
    plan = small.plan_of("ddp", **NEMOTRON)
    rest = plan.at_rest()
    assert rest["adapters"].params_bytes == 4 * rest["adapters"].num_params
    assert rest["routed_experts"].params_bytes == 2 * rest["routed_experts"].num_params


def test_autocast_keeps_a_copy_of_the_adapter_of_every_expert() -> None:
    """Eight matrices [128, 8] in 16 bits until forward is over, then backward makes none."""
    size = 2 * 128 * 8
    program = small.program_of("ddp", **NEMOTRON)
    posted = [(phase, amount) for layer, phase, amount in small.postings(program, "mixer.to_bf16")
              if layer == 2 and abs(amount) == size]
    assert [amount for _, amount in posted] == [size] * 8 + [-size] * 8
    assert {phase for phase, amount in posted if amount > 0} == {"forward"}
    assert {size for _, _, size in small.postings(
        small.program_of("ddp", **NEMOTRON | {"options": {}}), "mixer.to_bf16")}.isdisjoint({size})


def test_router_and_experts_are_in_16_bits_under_autocast() -> None:
    """Their sums are fp32 in the repository's code without it."""
    final = {size for _, _, size in small.postings(small.program_of("ddp", **NEMOTRON), "mixer.final") if size > 0}
    wide = {size for _, _, size in small.postings(
        small.program_of("ddp", **NEMOTRON | {"options": {}}), "mixer.final") if size > 0}
    assert (final, wide) == ({2 * TOKENS * HIDDEN}, {4 * TOKENS * HIDDEN})


HOST: dict[str, Any] = {"recompute": "full", "offload": {"activations": "host"}, "seq_len": 8192}


def test_two_buffers_take_inputs_back_and_that_of_the_last_layer_stays() -> None:
    """Each has 2 M elements; there are four layers."""
    program, size = small.program_of("ddp", **asked(**HOST)), 2 * 8192 * HIDDEN
    assert small.postings(program, "input_buffers") == [(0, "build", 2 * size)]
    assert sum(size for _, _, size in small.postings(program, "hidden_states.from_host")) == 0
    plan, old = (small.plan_of("ddp", **asked(**HOST, options=options)) for options in (FAST, OLD))
    assert plan.framework.kept_inputs == (4,)
    assert plan.offloaded_input_bytes(8192) == 3 * size
    assert old.offloaded_input_bytes(8192) == 4 * size
    assert not small.postings(small.program_of("ddp", **asked(**HOST, options=OLD)), "input_buffers")
    hub = small.program_of("ddp", **NEMOTRON | HOST)
    assert small.postings(hub, "input_buffers") == [(0, "build", 2 * size)]


@pytest.mark.parametrize("seq_len", [2048, 4096])
def test_small_inputs_stay_on_the_device(seq_len: int) -> None:
    """Up to 2 MiB. Both buffers are there all the same, with the elements that they begin with."""
    given = asked(**HOST | {"seq_len": seq_len})
    assert small.postings(small.program_of("ddp", **given), "input_buffers") == [(0, "build", 2 * 2 * 2**20)]
    told = {a.what: a.value for a in simulate(small.scenario("ddp", **given)).assumptions}
    assert told["training.offload.activations"].startswith(f"no effect: inputs of {seq_len * HIDDEN} elements stay")
    assert small.plan_of("ddp", **given).offloaded_input_bytes(seq_len) == 0


def test_several_gpus_take_its_checkpoints_back() -> None:
    host = NEMOTRON | HOST
    small.prepared("ddp", **host)
    with pytest.raises(IllegalLayout, match="on several GPUs Unsloth takes its checkpointing back"):
        small.prepared("ddp", {"dp_replicate": 2}, **host)
    _, table = small.prepared("ddp", {"dp_replicate": 2}, **NEMOTRON)
    assert not HfOptions.of(table.options).embeddings_require_grad


# ---- Unsloth's own functions, run on a CPU -----------------------------------------------------------------------
TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/tape/unsloth-015bdef0-torch-2.13.0.json").read_text(encoding="utf-8"))
SEQ, RANK, LARGE = 512, 8, 2 * 512 * 32
"""LARGE: bytes below which adapters, their copies and gradients, and what is as narrow as they are, are left out."""


def layer_of(case: dict[str, Any]) -> RecordedLayer:
    """The layer of a case, over frozen weights in bf16 and adapters in fp32."""
    preset = "qwen3-8b" if case.get("norms") else "qwen2.5-7b" if case.get("biases") else "llama-tiny"
    fields = SMALL | {"num_hidden_layers": 1, "num_key_value_heads": case.get("kv", 4)} | (
        {"head_dim": 32} if case.get("norms") else {})
    graph = build(model_config(preset, fields, "test"), "hf")
    number, params = graph.layers[1].kind, {}
    for spec in graph.tensors[number]:
        params[spec.name] = Param(spec.name, spec.shape, "bf16", trainable=False)
        if spec.module == "linear" and spec.path.rpartition(".")[2] in case.get("targets", ALL):
            shapes = {"lora_a": (RANK, spec.shape[1]), "lora_b": (spec.shape[0], RANK)} | (
                {"lora_magnitude_vector": (spec.shape[0],)} if case.get("dora") else {})
            params |= {name: Param(name, shape, "fp32", trainable=True) for name, shape in (
                (f"{spec.path}.{part}.weight", shape) for part, shape in shapes.items())}
    checkpoint = {"waits": "full", "stays": INPUT_STAYS}.get(case.get("checkpoint", ""), "none")
    options = HfOptions(unsloth="newest", lora_dropout="pre" if case.get("dropout") else "",
                        inputs_on_host="checkpoint" in case, has_input_buffers=True)
    run = LayerWorkload(case.get("batch", 1), SEQ, "bf16", params, "hf", checkpoint, input_requires_grad=True,
                        options=options)
    return hf.record(graph.kinds[number], run, {}, {})


def changes(*sections: Section) -> list[int]:
    return [row[3] for section in sections for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]


def large(events: list[int]) -> list[int]:
    return [size for size in events if size >= LARGE]


@pytest.mark.parametrize("name", TRUTH)
def test_a_layer_allocates_what_unsloths_functions_do(name: str) -> None:
    """Every large birth in order, and to a byte what is kept.

    Without groups the CPU's kernel writes gradients in the memory order that the products before read; those of CUDA
    write them like their inputs (`empty_like`), so each is copied.
    """
    case, made = TRUTH[name]["case"], layer_of(TRUTH[name]["case"])
    assert large(changes(made.forward)) == large(TRUTH[name]["forward"])
    assert sum(changes(made.forward, made.after, made.casts)) == sum(TRUTH[name]["forward"])
    copies = [2 * case.get("batch", 1) * SEQ * HIDDEN] * (3 if case.get("kv") == HEADS else 0)
    found, told = large(changes(made.backward)), large(TRUTH[name]["backward"])
    assert found == [*told[:6], *copies, *told[6:]]


def test_products_of_gradients_by_heads_cost_what_others_do() -> None:
    """Backward of seven frozen linears: as many operations as forward, and a few for adapters."""
    made = layer_of({})
    forward, backward = ([row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM]
                         for section in (made.forward, made.backward))
    assert sum(forward) < sum(backward) < 1.3 * sum(forward)
