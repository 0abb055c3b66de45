"""Tapes of transformers models against event logs of real runs, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import Events, backwards, born, bytes_of, grouped, sizes, summit
from every import expect_of_every
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Attention, Embedding, Head, LayerKind
from simcore.models.graph import ModelGraph, build, model_config
from simcore.models.tensor import TensorSpec
from simcore.operators.hf import implementation as hf
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf.families import has_wide_inputs
from simcore.operators.hf.options import HfOptions, LigerKernels
from simcore.operators.shared.layer_borders import TIED_HEAD
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, Kernel, Op, Param, Section
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape"
FILES = [f"{kind}-torch-2.13.0-transformers-5.23.0.json" for kind in (
    "hf", "families", "host", "hybrids", "dense", "latent", "liger-0.7.0", "delta-fla-0.6.0", "minimax", "neox")]
CASES: dict[str, Any] = {name: case for file in FILES for name, case in json.loads(
    (TRUTH / file).read_text(encoding="utf-8")).items()}


EAGER: dict[str, Any] = json.loads(
    (TRUTH / "eager-torch-2.13.0-transformers-5.23.0.json").read_text(encoding="utf-8"))
"""GPT-OSS has two masks, of which each goes with the last layer that reads it; here they are one, the first layer's."""


EVERY = LigerKernels(rope=True, rms_norm=True, gated=True)


class Model:
    """Every layer of a case recorded on its own, then laid one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.slots: dict[tuple[str, str], int] = {}
        graph = build(model_config(case["preset"], case["overrides"], "test"), "hf")
        trains, found = "lora" not in case, False
        self.tapes: list[RecordedLayer] = []
        for layer in graph.layers:
            kind = graph.kinds[layer.kind]
            params = self.params(graph, layer.kind, kind)
            kept = kind.block is None and self.keeps(graph.tensors[layer.kind], params, trained_below=trains)
            self.tapes.append(self.record(kind, params, first=layer.index == 1, trained_below=trains,
                                          stem=layer.index if kept and not found else 0))
            found = found or kept
            trains = trains or any(p.trainable for p in params.values())

    def keeps(self, specs: Sequence[TensorSpec], params: dict[str, Param], *, trained_below: bool) -> bool:
        """Tells whether the layer keeps until its backward the tensors that the stem made for all layers."""
        if self.case.get("checkpoint"):
            return trained_below or any(p.trainable for p in params.values())
        turned = any(p.trainable and re.search(r"\.(q|q_a|q_b|k)_proj|\.kv_a_proj|\.query_key_value", name)
                     for name, p in params.items())
        return any(spec.component == "attention" for spec in specs) and (trained_below or turned)

    def params(self, graph: ModelGraph, number: int, kind: LayerKind) -> dict[str, Param]:
        case, made = self.case, {}
        dtype, lora = case.get("compute", "bf16"), case.get("lora")
        tied = graph.architecture.tied and isinstance(kind.block, Embedding | Head)
        for spec in graph.tensors[number]:
            grouped = spec.module == "grouped"
            shape = (spec.shape[0] // case.get("ep", 1), *spec.shape[1:]) if grouped else spec.shape
            category = "ignored_grad" if grouped and case.get("experts") == "ignored" else "unsharded_grad"
            factors = spec.module == "factors"  # FSDP2 casts no buffers
            made[spec.name] = Param(spec.name, shape, "fp32" if factors else dtype, lora is None and not factors,
                                    category, tied=tied)
            if lora and spec.module == "linear" and spec.path.rpartition(".")[2] in lora["targets"]:
                names = (f"{spec.path}.lora_a.weight", f"{spec.path}.lora_b.weight")
                shapes = ((lora["r"], spec.shape[1]), (spec.shape[0], lora["r"]))
                made |= {n: Param(n, s, dtype, trainable=True) for n, s in zip(names, shapes, strict=True)}
        return made

    def record(self, kind: LayerKind, params: dict[str, Param], *, first: bool, trained_below: bool,
               stem: int = 0) -> RecordedLayer:
        case = self.case
        grouped = "experts_implementation" in case
        options = HfOptions(
            experts_unit=case.get("experts") == "unit" and not grouped, grouped_experts=grouped,
            inputs_on_host=case.get("checkpoint") == "host",
            attn_implementation=case.get("attn_implementation", "sdpa"),
            liger=EVERY if "liger" in case else LigerKernels(),
            casts_stream=has_wide_inputs(kind) and kind.block is None,
            inv_freq=case.get("inv_freq", "fp32"))
        run = LayerWorkload(
            case.get("batch", 1), case["seq"], case.get("compute", "bf16"), params, case.get("loss", "hf"),
            "layer" if case.get("checkpoint") and kind.block is None else "none", ep=case.get("ep", 1), first=first,
            input_requires_grad=trained_below, options=options,
            sequences=case.get("sequences", 0), attended=case.get("attended", 0), stem=stem)
        return hf.record(kind, run, self.slots, {})

    def events(self, *sections: Section) -> Events:
        names = {number: name for name, number in self.slots.items()}
        found: Events = []
        before = -1
        for op, _, slot, amount, _, _ in (row for section in sections for row in section.rows):
            if op in (Op.ALLOC, Op.FREE) and not names[slot][0].endswith("attention_delta"):  # a CPU's kernel has none
                found.append((amount, names[slot][1]))
                if slot == before == GRAD_HIDDEN and found[-2][0] == -amount < 0:
                    del found[-2:]  # a gradient that goes from hand to hand: nothing was measured
                before = slot
            elif op == Op.COLLECTIVE:
                found.append(f"all_to_all {amount}")
            elif op == Op.MARK and slot > 1:
                found.append(f"hook {slot}")
        return found

    def sections(self) -> list[tuple[str, Events]]:
        stem, *layers, norm, head, loss = self.tapes
        found = [("stem", self.events(stem.forward))]
        for i, layer in enumerate(layers):
            found += [(f"forward {i}", self.events(layer.forward)), (f"after {i}", self.events(layer.after))]
        found[-1][1].extend(self.events(norm.forward, norm.after, *(x.late for x in layers), head.forward,
                                        loss.forward, head.after, loss.after))
        return found + backwards(self.tapes, self.events, self.events(loss.late))


@pytest.fixture(autouse=True)
def _one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger sums a weight's gradient in as many parts as a device has SMs; the CPU that was asked counts as one."""
    monkeypatch.setattr(hf_liger, "_NUM_SMS", 1)


@cache
def recorded(name: str) -> list[tuple[str, Events]]:
    return Model(CASES[name]["case"]).sections()


def measured(name: str) -> list[tuple[str, Events]]:
    """Without the number of 2 bytes by which Gemma multiplies its embedding: it is none here."""
    left_out = (2, -2) if name.startswith("gemma") else ()
    return [(section["at"], [event for event in section["events"] if event not in left_out])
            for section in (CASES | EAGER)[name]["sections"]]


WITH_EXPERTS = tuple(name for name in CASES if name.startswith("gemma4-experts"))
NOT_IN_ORDER = {
    "qwen3-host": ("backward 0",), "qwen2-host-b2": ("backward 0",),
    "nemotron-host": ("backward 0", "forward 1", "forward 4"),
    "mamba2": ("after 0", "forward 1"), "mamba2-ac-b2": ("after 0", "forward 1"),
    **dict.fromkeys(("olmo2", "olmo2-ac", "olmo2-lora-b2", "ernie", "ernie-ac-b2"),
                    ("stem", "forward 0", "after 0", "forward 1")),
    **dict.fromkeys(("olmo3", "olmo3-ac-b2"), ("stem", "forward 0", "after 0", "forward 1", "after 1", "forward 2")),
    **dict.fromkeys(("gemma3", "gemma3-ac-b2", "gemma4", "gemma4-ac-b2", "gemma4-wide", "gemma4-lora-b2",
                     "gemma4-unified", *WITH_EXPERTS), ("backward 1", "backward 0")),
}
"""Differences of one event: tables die with the function of the first layer, after the embedding's gradient is born;
a first run without a graph keeps no copy of 4 KiB for an in-place division of the router; FSDP2 casts a hidden state in
fp32, or rotary tables, before it marks the next layer's begin; Gemma 3's tables of whole layers die with the lowest of
these, here with the first layer, and so do Gemma 4's."""
NEIGHBOURS = ("mamba2", "mamba2-ac-b2", "gemma3", "gemma3-ac-b2", "gemma4", "gemma4-ac-b2", "gemma4-wide",
              "gemma4-lora-b2", "gemma4-unified", *WITH_EXPERTS, "olmo2", "olmo2-ac", "olmo2-lora-b2",
              "ernie", "ernie-ac-b2", "olmo3", "olmo3-ac-b2")
"""There two sections that follow each other have the same bytes together."""


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_every_section_is_the_measured_one(name: str) -> None:
    for (at, mine), (where, truth) in zip(recorded(name), measured(name), strict=True):
        assert at == where
        assert (grouped(sizes(mine)) == grouped(truth)) is (at not in NOT_IN_ORDER.get(name, ())), at


@pytest.mark.parametrize("name", CASES)
def test_running_maxima_and_net_bytes(name: str) -> None:
    odd = NOT_IN_ORDER[name] if name in NEIGHBOURS else ()
    pairs = [(at, sizes(mine), truth) for (at, mine), (_, truth) in zip(recorded(name), measured(name), strict=True)]
    for at, mine, truth in pairs:
        assert at in odd or summit(mine) == summit(truth), at
    both = [[events for at, *of in pairs for events in of[side] if at in odd] for side in (0, 1)]
    assert Counter(both[0]) == Counter(both[1])


EAGER_NOT_IN_ORDER = {
    "gpt-oss-eager": ("after 1",), "gpt-oss-eager-b2": ("after 1",),
    "gpt-oss-eager-ac": ("backward 1", "backward 0"), "nemotron-eager-ac": ("backward 3", "backward 0"),
    "llama-eager-host": ("backward 0",),
    "gemma2-eager": ("after 2",), "gemma2-eager-lora-b2": ("after 2",),
    "gemma2-eager-ac": ("backward 1", "backward 0"),
    "gemma3-eager": ("after 2", "backward 1", "backward 0"),
    "gemma3-eager-lora": ("after 2", "backward 1", "backward 0"),
    "gemma4-eager": ("after 3", "backward 1", "backward 0"), "gemma4-eager-ac": ("backward 1", "backward 0"),
    "gemma4-eager-lora-b2": ("after 3", "backward 1", "backward 0"),
    "gemma4-experts-eager": ("after 1", "backward 1", "backward 0"),
    "gemma4-experts-eager-ac-b2": ("backward 1", "backward 0"),
}
"""A mask dies with the lowest layer that reads it, here with the first; GPT-OSS and Gemma have one more, for layers
with a window; tables of `host` and of Gemma 3 as above."""


@pytest.mark.parametrize("name", EAGER)
def test_eager_attention_allocates_what_was_measured(name: str) -> None:
    """Every event behind the stem but deaths of masks; births there; what the stem leaves, and what is left."""
    mine = [(at, sizes(events)) for at, events in Model(EAGER[name]["case"]).sections()]
    truth = measured(name)
    assert sum(bytes_of(mine[0][1])) == sum(bytes_of(truth[0][1]))
    for (at, found), (where, events) in zip(mine[1:], truth[1:], strict=True):
        assert at == where
        if at in EAGER_NOT_IN_ORDER.get(name, ()):
            assert [size for size in bytes_of(found) if size > 0] == [size for size in bytes_of(events) if size > 0], at
            tables = 2 * 2 * 512 * {"gemma3": 32, "gemma4": 64}.get(name[:6], 0) * (at == "backward 0")
            assert summit(found)[1] == summit(events)[1] - tables, at
        else:
            assert grouped(found) == grouped(events), at
    assert sum(sum(bytes_of(events)) for _, events in mine) == sum(sum(bytes_of(events)) for _, events in truth)


def test_a_model_without_attention_has_no_mask_to_free() -> None:
    """`attn_implementation: eager` is a key of every transformers model; Mamba2Model makes no mask (5.23)."""
    reports = [simulate(Scenario.model_validate({
        "name": "mamba", "model": {"config": "mamba2-130m"}, "topology": "dgx-h100", "framework": "zero2",
        "training": {"seq_len": 1}, "framework_options": {"attn_implementation": name}})) for name in ("eager", "sdpa")]
    eager, fused = (report.ranks[0].peak for report in reports)
    assert eager is not None
    assert eager == fused
    assert min(eager.by_category.values()) >= 0


def test_eager_attention_is_matrix_products_of_the_whole_square() -> None:
    """Two operations a pair and element of a head, for scores and for the output, twice that in backward."""
    eager, fused = (Model(case).tapes[1] for case in (EAGER["llama-eager"]["case"], LLAMA))
    square = 2 * 2 * SEQ * SEQ * 256
    for section, times in (("forward", 1), ("backward", 2)):
        rows = [[row for row in getattr(tape, section).rows if row[0] == Op.COMPUTE] for tape in (eager, fused)]
        gemm, attention = ([sum(row[3] for row in of if row[2] == kind) for of in rows]
                           for kind in (Kernel.GEMM, Kernel.ATTENTION))
        assert gemm[0] - gemm[1] == times * square
        assert attention[0] == 0 < attention[1]


@pytest.mark.parametrize("name", CASES)
def test_bytes_born_by_category(name: str) -> None:
    """A replay inside a function of autograd is backward to who measures."""
    for (at, mine), section in zip(recorded(name), CASES[name]["sections"], strict=True):
        found = born(mine)
        if CASES[name]["case"].get("checkpoint") == "host":
            found["backward_temp"] += found.pop("recompute", 0)
            found["activation"] -= 4096 * (at in NOT_IN_ORDER.get(name, ()) and at.startswith("forward"))
        found["activation"] += 2 * (at == "stem" and name.startswith("gemma"))
        assert +found == section["born"] or (name in NEIGHBOURS and at in NOT_IN_ORDER[name]), at


@pytest.mark.parametrize("name", CASES)
def test_only_parameter_gradients_survive(name: str) -> None:
    model = Model(CASES[name]["case"])
    alive = sum(sum(bytes_of(sizes(events))) for _, events in model.sections())
    assert alive == sum(num_bytes for tape in model.tapes for _, _, num_bytes in tape.grads)


PACKED = {"sequences": 4, "attended": 64}
FLASH = {"attn_implementation": "flash_attention_2"}
LLAMA = CASES["llama"]["case"]
SEQ = LLAMA["seq"]


BALANCED: list[dict[str, Any]] = [
    *(case["case"] for case in (CASES | EAGER).values()),
    *(LLAMA | more | checkpoint for more in (PACKED, FLASH, PACKED | FLASH)
      for checkpoint in ({}, {"checkpoint": True})),
    *(case["case"] | {"loss": loss} for loss in ("cut", "liger") for case in CASES.values()
      if not case["case"]["preset"].startswith(
          ("granite", "mamba2", "gemma", "olmo", "phi", "command", "falcon-h1")))]


def test_slots_balance_layer_by_layer() -> None:
    """Every birth has a death in the slot and layer that it was posted to."""
    expect_of_every(((str(case), case) for case in BALANCED), expect_balance)


def expect_balance(case: dict[str, Any]) -> None:
    model = Model(case)
    balance: Counter[tuple[int, int]] = Counter()
    for i, tape in enumerate(model.tapes):
        for section in (tape.forward, tape.after, tape.late, tape.seed, tape.backward):
            for op, offset, slot, amount, _, _ in section.rows:
                if op in (Op.ALLOC, Op.FREE):
                    balance[len(model.tapes) - 2 if offset == TIED_HEAD else i + offset, slot] += amount
        for _, slot, num_bytes in tape.grads:
            balance[i, slot] -= num_bytes
    assert not +balance
    assert not -balance


def test_tensors_are_in_the_order_of_registration() -> None:
    graph = build(model_config("nemotron-3-tiny", {}, "test"), "hf")
    mamba = next(i for i, kind in enumerate(graph.kinds) if kind.name == "mamba")
    assert [spec.name for spec in graph.tensors[mamba]] == [
        "norm.weight", "mixer.dt_bias", "mixer.A_log", "mixer.D", "mixer.conv1d.weight", "mixer.conv1d.bias",
        "mixer.in_proj.weight", "mixer.norm.weight", "mixer.out_proj.weight"]


def test_products_of_a_layer_cost_what_they_must() -> None:
    """Forward GEMMs are two operations a weight and token, backward twice that."""
    model = Model(CASES["llama"]["case"])
    graph = build(model_config("llama-tiny", {"num_hidden_layers": 2}, "test"), "hf")
    weights = sum(spec.numel for spec in graph.tensors[1] if spec.module == "linear")
    gemm = [sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == 0)
            for section in (model.tapes[1].forward, model.tapes[1].backward)]
    assert gemm == [2 * 512 * weights, 4 * 512 * weights]


def test_narrower_values_run_the_memory_efficient_kernel() -> None:
    """Its backward makes a delta; the flash kernel, which GLM's heads of one size run, has none of its own here."""
    made = {name: any(label.endswith("attention_delta") for label, _ in Model(CASES[name]["case"]).slots)
            for name in ("deepseek-v3", "glm4-lite")}
    assert made == {"deepseek-v3": True, "glm4-lite": False}


def test_every_expert_of_llama_4_multiplies_every_token() -> None:
    """Rows are experts x tokens whatever the router chooses: two products forward, twice that in backward."""
    case, experts = CASES["llama4"]["case"], 8
    for chosen in (1, 4):
        layer = Model(case | {"overrides": {**case["overrides"], "num_experts_per_tok": chosen}}).tapes[1]
        made = [sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GROUPED_GEMM)
                for section in (layer.forward, layer.backward)]
        assert made == [times * experts * 512 * 3 * 256 * 128 for times in (2, 4)]


# ---- packed sequences -----------------------------------------------------------------------------------------------
def _named(model: Model, *sections: Section) -> list[tuple[int, str]]:
    """Bytes and the name of the tensor, of what is born and what dies."""
    names = {number: name.rpartition(".")[2] for (name, _), number in model.slots.items()}
    return [(row[3], names[row[2]]) for s in sections for row in s.rows if row[0] in (Op.ALLOC, Op.FREE)]


def _layer(**more: Any) -> tuple[int, list[tuple[int, str]], int]:
    """Bytes that the first layer keeps, (bytes, name) that its backward makes, FLOPs of attention in forward."""
    model = Model(LLAMA | more)
    tape = model.tapes[1]
    made = [(size, name) for size, name in _named(model, tape.backward) if size > 0]
    flops = sum(row[3] for row in tape.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION)
    return sum(size for size, _ in _named(model, tape.forward)), made, flops


def test_a_mask_of_packed_sequences_is_written_out_by_every_call() -> None:
    """A bias in bf16 for each call; keys and values once for every head; the whole square is computed."""
    plain, _, half = _layer()
    masked, made, whole = _layer(**PACKED)
    block = build(model_config("llama-tiny", {}, "test"), "hf").kinds[1].branches[0].block
    assert isinstance(block, Attention)
    again = 2 * 2 * SEQ * block.head_dim * (block.num_heads - block.num_kv_heads)
    assert masked - plain == 2 * SEQ * SEQ + again
    assert whole == 2 * half
    assert [size for size, name in made if name == "attention_delta"] == [4 * SEQ * block.num_heads]


def test_the_mask_is_made_once_and_lives_through_the_step() -> None:
    for checkpoint in ({}, {"checkpoint": True}):
        model = Model(LLAMA | PACKED | checkpoint)
        masks = [[size for size, name in _named(model, tape.forward, tape.after, tape.late, tape.backward)
                  if name == "causal_mask"] for tape in model.tapes]
        assert masks == [[SEQ * SEQ], [-SEQ * SEQ], *([] for _ in masks[2:])]


def test_flash_attention_of_packs_keeps_no_mask_and_counts_within_sequences() -> None:
    plain, _, half = _layer()
    packed, made, flops = _layer(**PACKED, **FLASH)
    assert packed == plain
    assert flops == half * 64 // SEQ
    work = {name: size for size, name in made}
    assert work["attention_dq"] == work["attention_sums"] * 32 == 4 * (SEQ + 4 * 128) * 8 * 32


def test_flash_attention_with_sinks_of_packs_and_within_a_window() -> None:
    """Sums of 128 rows more a sequence; a window of 128 keys is half of 256, as causal pairs count."""
    case = CASES["gpt-oss"]["case"] | PACKED | {"attended": SEQ}
    model = Model(case)
    made = {name: size for size, name in _named(model, model.tapes[1].backward) if size > 0}
    assert made["attention_sums"] == made["attention_log_sum_exp"] == 4 * (SEQ + 4 * 128) * 8
    assert made["attention_dq"] == 64 * made["attention_sums"] == 2 * made["attention_dk"]
    sliding, full = (sum(row[3] for row in tape.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION)
                     for tape in model.tapes[1:3])
    assert full == sliding * SEQ // 256 == 2 * SEQ * SEQ * 8 * 32


# ---- cut cross entropy ----------------------------------------------------------------------------------------------
def test_a_cut_loss_makes_no_logits() -> None:
    """Kept: labels and valid positions (int64), a log-sum-exp a token and a mean a logit (fp32); both gradients."""
    model = Model(LLAMA | {"loss": "cut"})
    head, loss = model.tapes[-2:]
    kept: Counter[str] = Counter()
    for size, name in _named(model, head.forward):
        kept[name] += size
    vocab = 1000
    assert {name: size for name, size in kept.items() if size} == {
        "labels": 8 * SEQ, "valids": 8 * SEQ, "log_sum_exp": 4 * SEQ, "logit_means": 4 * vocab, "hidden_states": 4}
    made = [size for size, _ in _named(model, head.backward) if size > 0]
    assert made == [8 * vocab, 4 * vocab, 2 * SEQ * 256, 2 * vocab * 256]
    assert max(size for size, _ in _named(model, loss.forward, loss.backward)) <= 4
    flops = [sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM)
             for section in (head.forward, head.backward)]
    assert flops == [2 * SEQ * vocab * 256, 3 * 2 * SEQ * vocab * 256]


def test_a_fused_loss_keeps_both_gradients_and_one_chunk_of_logits_at_a_time() -> None:
    """512 tokens, 1000 logits of 256: four chunks of 128 rows; the second is born while the first is there."""
    model = Model(LLAMA | {"loss": "liger"})
    head = model.tapes[-2]
    now, most, kept = 0, 0, Counter[str]()
    for size, name in _named(model, head.forward):
        kept[name] += size
        now += size
        most = max(most, now)
    vocab, width, rows = 1000, 256, 128
    gradients = 2 * SEQ * width + 2 * vocab * width
    assert sum(kept.values()) == gradients + 4
    assert most == gradients + (8 + 4 + 1) * SEQ + 8 + 2 * rows * vocab + (2 + 4) * vocab * width
    chunks = [size for size, name in _named(model, head.forward) if name == "chunk_logits" and size > 0]
    assert chunks == [2 * rows * vocab] * 4
    flops = [sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == kernel)
             for section in (head.forward, head.backward) for kernel in (Kernel.GEMM, Kernel.GRAD_GEMM)]
    product = 2 * SEQ * vocab * width
    assert flops == [product, 2 * product, 0, 0]


def test_a_frozen_head_makes_no_gradient_of_its_weight() -> None:
    lora = Model(LLAMA | {"loss": "liger", "lora": {"r": 4, "targets": ["q_proj"]}})
    assert "chunk_grad_weight" not in {name for _, name in _named(lora, lora.tapes[-2].forward)}
