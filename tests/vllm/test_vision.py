"""Vision towers beside a language model in vLLM: weights on a rank, tables, the encoder in the profile run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simcore.inputs.scenario import Scenario
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of, build, model_config
from simcore.models.vision_blocks import VisionPart
from simcore.results.report import Report
from simcore.simulate import check, simulate
from simcore.vllm.release import RELEASES
from simcore.vllm.vision import Encoder, encoder, tower_buffers, tower_refusals, tower_weights
from simcore.vllm.weights import layers_of, unserved

GEMMA, QWEN, OMNI = "gemma-3-4b", "qwen2.5-vl-3b", "nemotron-3-nano-omni-30b-a3b"


def of(model: str) -> Architecture:
    return architecture_of(model_config(model, None, ""))


def sizes(model: str, tp: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for weight in tower_weights(of(model), tp):
        found[weight.component] += weight.numel
    return found


def served(model: str, **generation: Any) -> Scenario:
    keys = {"version": "0.25.1", "max_model_len": 4096} | generation
    return Scenario.model_validate({"name": "serves", "workload": "serve", "model": model, "topology": "dgx-h100",
                                    "mesh": {"tp": keys.get("tp", 1)}, "generation": keys})


def asked(model: str, **generation: Any) -> list[str]:
    return [problem.message for problem in check(served(model, **generation)).problems]


def test_one_rank_holds_the_tower_that_transformers_registers() -> None:
    for model in (GEMMA, "gemma-3-27b", QWEN, "qwen2.5-vl-7b"):
        graph = build(model_config(model, None, ""), "hf")
        registered: Counter[str] = Counter()
        for layer in graph.layers:
            if isinstance(graph.kinds[layer.kind].block, VisionPart):
                for spec in graph.tensors[layer.kind]:
                    registered[spec.component] += spec.numel * (not spec.is_buffer)
        assert sizes(model, 1) == registered, model
        assert not any(isinstance(kind.block, VisionPart) for _, kind in layers_of(graph.architecture)), model


def test_linears_of_layers_are_cut_and_ends_as_each_model_has_them() -> None:
    whole, part = sizes(GEMMA, 1), sizes(GEMMA, 4)
    layer = 4 * 1152 * 1152 + 3 * 1152 + 2 * 1152 * 4304 + 4304
    assert whole["vision_tower"] - part["vision_tower"] == 27 * layer * 3 // 4
    assert part["projector"] == whole["projector"] == 1152 * 2560 + 1152
    wide = 4 * 1280
    whole, part = sizes(QWEN, 1), sizes(QWEN, 4)
    layer = 4 * 1280 * 1280 + 3 * 1280 + 3 * 1280 * 3420 + 2 * 3420
    assert whole["vision_tower"] - part["vision_tower"] == 32 * layer * 3 // 4
    assert whole["projector"] - part["projector"] == (wide * wide + wide + wide * 2048) * 3 // 4


def test_radio_and_parakeet_are_what_the_model_registers_and_scales_of_sums() -> None:
    """Linears of RADIO's 32 layers are cut, Parakeet is whole; sixteen heads over three ranks are not cut."""
    graph = build(model_config(OMNI, None, ""), "automodel")
    registered: Counter[str] = Counter()
    for layer in graph.layers:
        if isinstance(graph.kinds[layer.kind].block, VisionPart):
            for spec in graph.tensors[layer.kind]:
                registered[spec.component] += spec.numel * (not spec.is_buffer)
    registered["vision_tower"] += 32 * 2 * 1280
    assert sizes(OMNI, 1) == registered
    part, attention, mlp = sizes(OMNI, 8), 4 * 1280 * 1280 + 3 * 1280, 2 * 5120 * 1280 + 5120
    assert registered["vision_tower"] - part["vision_tower"] == 32 * (attention + mlp) * 7 // 8
    assert {name: part[name] for name in ("projector", "sound_tower")} == {
        name: registered[name] for name in ("projector", "sound_tower")}
    assert registered["vision_tower"] - sizes(OMNI, 5)["vision_tower"] == 32 * mlp * 4 // 5


def test_a_profile_run_without_images_leaves_the_cache_what_they_would_take() -> None:
    with_images, without = (ok(simulate(served(QWEN, profiles_images=given))).serving for given in (True, False))
    assert with_images is not None
    assert without is not None
    text = ok(simulate(served("qwen2.5-3b"))).serving
    assert text is not None
    assert without.activation_bytes == text.activation_bytes < with_images.activation_bytes
    freed = with_images.activation_bytes - without.activation_bytes
    assert without.cache_budget_bytes - with_images.cache_budget_bytes == freed
    assert asked("qwen2.5-3b", profiles_images=False) == ["profiles_images: changes nothing: qwen2 reads no images"]
    omni = ok(simulate(served(OMNI, tp=8, profiles_images=False))).serving
    assert omni is not None
    assert omni.ssm_dtype == "fp32"


def test_what_cannot_be_cut_is_refused() -> None:
    assert not list(tower_refusals(of(GEMMA), 8))
    assert [message for message, _ in tower_refusals(of(QWEN), 8)] == [
        "3420 elements of an MLP of the vision tower are not divisible by tp 8"]
    assert any("of the vision tower are not divisible by tp 8" in message for message in asked(QWEN, tp=8))


def test_an_image_whose_tokens_see_each_other_fits_a_pass() -> None:
    assert not asked(GEMMA, max_num_batched_tokens=256)
    assert asked(GEMMA, max_num_batched_tokens=255) == [
        "Chunked MM input disabled but max_tokens_per_mm_item (256) is larger than max_num_batched_tokens (255)"]
    assert not asked(QWEN, max_num_batched_tokens=255)


def test_tables_of_positions() -> None:
    assert tower_buffers(of(GEMMA)) == 8 * 4096
    assert tower_buffers(of(QWEN)) == 2 * 8192 * 40
    assert tower_buffers(of("qwen2.5-7b")) == 0


def tried(model: str, tp: int, *limits: int, version: str = "0.25.1", is_eager: bool = False) -> Encoder:
    tokens, seqs, longest = limits
    return encoder(of(model), tp, (tokens, seqs, longest), RELEASES[version], is_eager=is_eager)


def test_the_profile_run_encodes_as_many_images_as_a_pass_has_tokens() -> None:
    images, pixels = 64, 3 * 896 * 896
    found = tried(GEMMA, 2, 16384, 1024, 4096)
    assert found.stays == images * (pixels + 256 * 2560)
    assert found.highest == images * (pixels + 4096 * (4 * 1152 + 4304))
    assert tried(GEMMA, 2, 16384, 2, 512).stays == 4 * (pixels + 256 * 2560)  # two prompts of two images


def test_the_largest_item_of_images_of_any_size_is_one_of_most_pixels_or_a_video() -> None:
    patches = 4 * 16384
    for longest, grids in ((4096, 1), (65536, 4), (10**6, 7)):
        found = tried(QWEN, 1, 8192, 256, longest)
        assert found.highest == grids * patches * (1176 + 4 * 1280 + 3 * 3420), longest
        assert found.stays == grids * (patches * 1176 + 16384 * 2048), longest
    assert tried(QWEN, 4, 8192, 256, 4096).highest == patches * (1176 + 9 * 1280)  # the norm in fp32


def test_nemotron_omni_encodes_videos_as_long_as_a_sequence() -> None:
    """8,192 tokens are 32 pairs of frames; behind the tower 20,480 elements a token, thrice in a squared ReLU."""
    frame, patches, hidden = 3 * 512 * 512, 1024, 2688
    found = tried(OMNI, 8, 16384, 1024, 8192)
    assert found.stays == 2 * (64 * frame + 8192 * hidden)
    assert found.highest == 2 * 64 * frame + 8192 * hidden + 32 * patches * (1280 + 3 * 20480 // 4)
    long = tried(OMNI, 1, 8192, 1, 65536)  # one video of 512 frames, 128 of which are encoded at once
    assert long.highest == 512 * frame + 64 * patches * (1280 + 3 * 20480 // 4)
    assert tried(OMNI, 1, 8192, 1, 100).stays == 2 * frame + 256 * hidden
    assert ok(simulate(served(OMNI, tp=8))).serving is not None


def test_an_older_version_runs_activation_and_norm_as_torch_has_them() -> None:
    """0.12.0: silu and product by themselves, and the norm in fp32, beside a compiled language model."""
    patches, width, ffn = 4 * 16384, 1280, 3420
    for tp, is_eager, most in ((1, False, 4 * width + 4 * ffn), (4, False, 7 * width), (2, False, 4 * width + 2 * ffn),
                               (1, True, 2 * width + 3 * ffn), (4, True, 9 * width // 2)):
        found = tried(QWEN, tp, 8192, 256, 3072, version="0.12.0", is_eager=is_eager)
        assert found.highest == patches * (1176 + most), (tp, is_eager)
        assert found.stays == tried(QWEN, tp, 8192, 256, 3072).stays


def ok(report: Report) -> Report:
    assert report.status == "ok", report.problems
    return report


def test_an_engine_holds_the_tower_and_decodes_without_it() -> None:
    sees, reads = (ok(simulate(served(model))) for model in ("gemma-3-27b", "gemma-3-27b-text"))
    assert sees.serving is not None
    assert reads.serving is not None
    tower = 2 * sum(sizes("gemma-3-27b", 1).values()) + tower_buffers(of("gemma-3-27b"))
    assert sees.serving.weight_bytes - reads.serving.weight_bytes == tower
    assert sees.serving.activation_bytes > reads.serving.activation_bytes
    assert sees.serving.cache_bytes < reads.serving.cache_bytes
    assert [one.bytes_read for one in sees.serving.decode[:2]] == [one.bytes_read for one in reads.serving.decode[:2]]
    assert "vision tower of the engine" in {one.what for one in sees.assumptions}


def test_positions_by_time_row_and_column_have_a_table_four_times_as_long() -> None:
    report = ok(simulate(served(QWEN)))
    assert report.serving is not None
    held = sum(row.params_bytes for row in report.ranks[0].at_rest.values())
    assert report.serving.weight_bytes - held == tower_buffers(of(QWEN)) + 4 * 2 * 128 * 128000


def test_other_towers_and_settings_are_refused_by_name() -> None:
    assert unserved(of(GEMMA), "0.12.0") == "the vision tower of gemma3 with vLLM 0.12.0 (served: qwen2_5_vl)"
    assert unserved(of("qwen3-vl-4b"), "0.25.1") == (
        "the vision tower of qwen3_vl with vLLM 0.25.1 (served: gemma3, nemotron_h_omni, qwen2_5_vl, qwen3_5, "
        "qwen3_5_moe)")
    assert ok(simulate(served(QWEN, version="0.12.0"))).serving is not None
    assert asked(QWEN, quantization="fp8") == ["not yet: quantization of an engine with a vision tower"]
    assert asked(QWEN, max_loras=1, max_lora_rank=16) == ["not yet: max_loras of an engine with a vision tower"]
    assert asked(QWEN, chunked_prefill=False) == ["not yet: chunked_prefill of an engine with a vision tower"]
    assert any("more than the 128,000" in message for message in asked(QWEN, max_model_len=200_000))
