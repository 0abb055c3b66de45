"""FLOPs by convention: counted by hand, and against TFLOP/s and MFU that frameworks printed beside tokens per second.

`tests/truth/flops` restates what was printed, and what the formulas themselves say (`formulas.json`). A printed number
is reproduced to the digit where some step time that is printed as the row's tokens per second gives it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.models.flops import CONVENTIONS, Asked, convention_of, known
from simcore.models.graph import ModelGraph, build, model_config

NANO = "nemotron-3-nano-30b-a3b"
HERE = ROOT / "tests/truth" / "flops"


EXCEPTIONS: dict[str, str] = json.loads((HERE / "exceptions.json").read_text(encoding="utf-8"))
"""Rows whose printed numbers the convention does not give to the digit, and why."""
MEANS, LENGTHS = "means over steps", "lengths of packs not stated"


@cache
def graph_of(model: str, implementation: str = "hf") -> ModelGraph:
    """`model`: a preset's name, or its JSON with overrides."""
    given: dict[str, Any] = json.loads(model) if model.startswith("{") else {"config": model, "overrides": None}
    return build(model_config(given["config"], given["overrides"], "model"), implementation)


def asked_of(row: dict[str, Any]) -> Asked:
    model = row["model"]
    text = model if isinstance(model, str) else json.dumps(model)
    in_megatron = "mtp_num_layers" in text or "n_embd" in text
    graph = graph_of(text, "megatron" if in_megatron else "hf")
    trained = adapted(text) if row["method"] == "lora" and row["convention"] == "automodel" else None
    return Asked(graph, row["seq_len"], row["seq_len"], row["tp"], trained)


@cache
def adapted(model: str) -> float:
    """Ratio of trained to frozen parameters in Automodel's benchmark.

    Rank 16 on every projection (examples/llm_benchmark/qwen/*_peft_benchmark.yaml).
    """
    given = json.loads(model) if model.startswith("{") else model
    lora = {"rank": 16, "target_modules": ["*_proj"]}
    graph = small.prepared("automodel", model=given, method="lora", lora=lora)[0].graph
    trained = graph.count(trainable=True)
    return trained / (graph.count() - trained)


def rows() -> list[dict[str, Any]]:
    files = [*sorted(HERE.glob("*-*.json")), HERE / "kempnerforge.json"]
    return [row for path in files for row in json.loads(path.read_text(encoding="utf-8"))]


def tokens(row: dict[str, Any]) -> tuple[float, float]:
    """Tokens/s that are printed as the row's, from the least to the most."""
    printed: float = row["tokens_per_s_per_gpu"]
    of_step: float = row["global_batch"] * row["seq_len"] / row["gpus"]
    if row.get("rounded") == "samples/s":
        of_sample: float = 0.5 * row["seq_len"] / row["gpus"]
        return printed - of_sample, printed + of_sample
    if row["convention"] == "llm-foundry" and isinstance(printed, int):
        return printed, printed + 1  # int()
    half = half_of(printed)
    late = 0.005 if row.get("rounded") else 0.0  # steps were rounded to hundredths before
    return of_step / (of_step / (printed - half) + late), of_step / (of_step / (printed + half) - late)


def half_of(printed: float) -> float:
    """Half of the last printed digit."""
    _, _, digits = str(printed).partition(".")
    return 0.5 * 0.1 ** len(digits)


def tflops(row: dict[str, Any]) -> tuple[float, float]:
    per_token = CONVENTIONS[row["convention"]].per_token(asked_of(row))
    low, high = tokens(row)
    return low * per_token / 1e12, high * per_token / 1e12


def agrees(row: dict[str, Any]) -> bool:
    """To the digit. MFU is that of the formula, or of the printed TFLOP/s (Automodel's table)."""
    low, high = tflops(row)
    good = True
    if "tflops_per_gpu" in row:
        printed = row["tflops_per_gpu"]
        half = 0.0 if row["convention"] == "llm-foundry" else half_of(printed)
        good = low < printed + (half or 1) and high > printed - half
    if "mfu" in row and good:
        percent = round(100 * row["mfu"], 6)
        half, peak = half_of(percent), peak_of(row) / 100
        of_printed = abs(row.get("tflops_per_gpu", 0) / peak - percent) <= half + 1e-9
        good = of_printed or (low / peak <= percent + half and high / peak >= percent - half)
    return good


def peak_of(row: dict[str, Any]) -> float:
    peak = CONVENTIONS[row["convention"]].peak_tflops(row["gpu"], fp8="fp8" in row["precision"])
    return peak or 989


def test_printed_numbers_are_reproduced_to_the_digit() -> None:
    """Megatron's tables and cards, Automodel's, KempnerForge's and llm-foundry's; torchtitan's rows print tokens/s."""
    modelled = [row for row in rows() if "model" in row]
    wrong = {row["id"] for row in modelled if not agrees(row)}
    assert sorted(wrong) == sorted(EXCEPTIONS)
    counted = Counter(row["id"].partition("-")[0] for row in modelled if row["id"] not in wrong)
    assert counted == {"mbridge": 131, "mpt": 71, "kempner": 10, "automodel": 9, "mbcard": 4}


def test_exceptions_are_what_they_are_said_to_be() -> None:
    """Means of a quotient lie near the quotient of means; packed sequences attend to less than a whole row does."""
    by_id = {row["id"]: row for row in rows()}
    for name, reason in EXCEPTIONS.items():
        row = by_id[name]
        low, high = tflops(row)
        printed = row.get("tflops_per_gpu") or row["mfu"] * peak_of(row)
        if reason == MEANS:
            assert printed == pytest.approx((low + high) / 2, rel=0.0115), name
        elif reason == LENGTHS:
            asked = asked_of(row)
            alone = replace(asked, attended=1, trainable=0.01 if row["method"] == "lora" else None)
            least = CONVENTIONS[row["convention"]].per_token(alone) * row["tokens_per_s_per_gpu"] / 1e12
            assert 0.995 * least < printed < high, name


def test_step_times_say_what_tokens_say() -> None:
    """So that TFLOP/s follow from either: tokens of a step over its time, within how both are rounded."""
    timed = [row for row in rows() if "model" in row and row.get("step_s")]
    for row in timed:
        low, high = tokens(row)
        of_step, half = row["global_batch"] * row["seq_len"] / row["gpus"], min(half_of(row["step_s"]), 0.005)
        slack = 2e-3 if row["id"].startswith("kempner") else 1e-6  # its two columns are means of their own
        assert of_step / (row["step_s"] + half) <= high * (1 + slack), row["id"]
        assert of_step / (row["step_s"] - half) >= low * (1 - slack), row["id"]
    assert len(timed) == 265


def test_megatron_pads_the_vocabulary_of_the_tokenizer_that_was_given() -> None:
    """GPT-OSS 20B with a SentencePiece tokenizer: 32,001 to 32,256 words, padded to a multiple of 128 times tp."""
    row = next(row for row in rows() if EXCEPTIONS.get(row["id"]) == "another vocabulary")
    graph = graph_of(json.dumps({"config": row["model"], "overrides": {"vocab_size": 32256}}), "megatron")
    per_token = CONVENTIONS["megatron"].per_token(Asked(graph, row["seq_len"], row["seq_len"], row["tp"]))
    assert per_token * row["tokens_per_s_per_gpu"] / 1e12 == pytest.approx(row["tflops_per_gpu"], rel=2e-4)


def test_automodel_counted_less_of_the_scan_before() -> None:
    """Its commit 6cb5804c8: 21 d N a layer, 6 d N before."""
    row = next(row for row in rows() if "the scan" in EXCEPTIONS.get(row["id"], ""))
    now = CONVENTIONS["automodel"].per_token(asked_of(row))
    before = now - 15 * (64 * 64) * 128 * 23
    assert round(before * row["tokens_per_s_per_gpu"] / 1e12) == row["tflops_per_gpu"]


@pytest.mark.parametrize(("name", "asked", "gflops"), [
    ("megatron", (NANO, 8192), 22.278), ("megatron", (NANO, 4096), 21.674), ("megatron", (NANO, 2048), 21.372),
    ("megatron", ("llama-3-70b", 8192), 449.223), ("megatron", ("llama-3-8b", 8192), 51.470),
    ("megatron", ("qwen3-30b-a3b", 4096), 23.006), ("megatron", ("qwen3-8b", 4096), 49.032),
    ("automodel", (NANO, 4096), 19.721), ("torchtitan", ("llama-3.1-8b", 8192), 57.914),
])  # fmt: skip
def test_published_models(name: str, asked: tuple[str, int], gflops: float) -> None:
    model, seq_len = asked
    assert round(CONVENTIONS[name].per_token(Asked(graph_of(model), seq_len, seq_len)) / 1e9, 3) == gflops


def test_torchtitan_counts_parameters_that_a_token_meets() -> None:
    """A logged line of its DeepSeek-V3-16B says 2,771,250,688 active parameters, the embedding among them."""
    graph = graph_of(json.dumps({"config": "deepseek-v2-lite", "overrides": {"vocab_size": 129280}}))
    embedding, attention = 129280 * 2048, 27 * 16 * (128 + 64 + 128)
    counted = CONVENTIONS["torchtitan"].per_token(Asked(graph, 4096, 4096))
    assert counted == 6 * (2_771_250_688 - embedding + attention * 4096)


def test_a_dense_model_by_hand() -> None:
    """Llama of 8 heads and 4 for keys, width 256: what every convention does with the same weights and positions."""
    graph, seq = graph_of("llama-tiny"), 64
    layers, head, embedding = 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688), 1000 * 256, 1000 * 256
    norms, pairs = 9 * 256, 4 * 256 * seq
    found = {one.name: one.per_token(Asked(graph, seq, seq)) for one in known(Asked(graph, seq, seq))}
    causal, square = 6 * (layers + head + pairs), 6 * (layers + head + 2 * pairs)
    padded = 6 * 256 * (1000 - 1000)  # 1000 is a multiple of 8, the largest power of two in it
    assert found == {"megatron": causal + padded, "megatron-bridge up to 0.4": causal + padded, "automodel": causal,
                     "torchtitan": square + 6 * norms, "kempnerforge": square,
                     "llm-foundry": square + 6 * (norms + embedding)}


def test_vocabularies_are_padded_over_tensor_parallel_ranks() -> None:
    graph = graph_of("llama-3-8b")
    alone, split = (CONVENTIONS["megatron"].per_token(Asked(graph, 8, 8, tp)) for tp in (1, 4))
    assert split - alone == 6 * 4096 * (128512 - 128256)


def test_formulas_are_those_of_the_installed_packages() -> None:
    """Automodel 0.7.0, Megatron-Bridge 0.3.1 and torchtitan 0.2.2 were asked (`tests/truth/probe_flops.py`)."""
    compared: Counter[str] = Counter()
    for model, found in json.loads((HERE / "formulas.json").read_text(encoding="utf-8")).items():
        preset, _, further = model.partition(" ")
        changed = {"config": preset, "overrides": {"mtp_num_layers": 2}}
        asked = Asked(graph_of(json.dumps(changed), "megatron") if further else graph_of(preset), 4096, 4096)
        for name, flops in found.items():
            if CONVENTIONS[name].knows(asked):
                assert CONVENTIONS[name].per_token(asked) == pytest.approx(flops / (2 * 4096), rel=1e-12), (model, name)
                compared[name] += 1
    assert compared == {"automodel": 19, "megatron-bridge up to 0.4": 20, "torchtitan": 7}


def test_packs_attend_to_less_in_megatron_alone() -> None:
    graph = graph_of("qwen3-8b")
    for name, convention in CONVENTIONS.items():
        whole, packed = (convention.per_token(Asked(graph, 4096, attended)) for attended in (4096, 512))
        assert (packed < whole) == (name == "megatron")


def test_a_window_is_seen_by_later_releases() -> None:
    graph = graph_of("gpt-oss-20b")
    now, before = (CONVENTIONS[name].per_token(Asked(graph, 4096, 4096)) for name in (
        "megatron", "megatron-bridge up to 0.4"))
    seen = 129 - 129 * 128 / (2 * 4096)
    windows, thirds = 12 * 6 * 4096 * (4096 - 2 * seen), 24 * 6 * 4 * 2880 * 2880
    assert now - before == pytest.approx(thirds - windows)


def test_lora_of_llama_70b_in_packs_is_counted_apart() -> None:
    """Two thirds of the frozen weights, both products of attention whole."""
    graph = graph_of("llama-3-70b")
    packed, row = (CONVENTIONS["megatron"].per_token(Asked(graph, 4096, attended, trainable=0.01))
                   for attended in (512, 4096))
    full = CONVENTIONS["megatron"].per_token(Asked(graph, 4096, 4096))
    core = 6 * 80 * 8192
    assert row == full
    assert packed == pytest.approx((full - core * 4096) * 2 / 3 + 2 * core * 512)


def test_who_prints_what() -> None:
    for name in ("megatron", "automodel", "torchtitan", "kempnerforge"):
        found = convention_of((name, "fsdp2"), "main 2026-08-22")
        assert found is not None
        assert found.name == name
    older = convention_of(("megatron", "megatron"), "core 0.16.1 + bridge 0.3.1")
    assert older is not None
    assert older.name == "megatron-bridge up to 0.4"
    assert convention_of(("hf", "fsdp2"), "torch 2.13") is None


def test_peaks_are_by_the_name_of_the_gpu() -> None:
    titan, automodel = CONVENTIONS["torchtitan"], CONVENTIONS["automodel"]
    assert titan.peak_tflops("NVIDIA GB200") == 2500
    assert titan.peak_tflops("NVIDIA B200") == 2250
    assert automodel.peak_tflops("NVIDIA GB200", fp8=True) == 5000
    assert automodel.peak_tflops("a toaster") is None
    assert CONVENTIONS["megatron"].peak_tflops("NVIDIA B200") is None
