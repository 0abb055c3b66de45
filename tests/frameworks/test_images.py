"""Models with a vision tower: what a scenario must say of images, what is refused, what a frozen tower costs."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulate import check, place, simulate

TOWER, IMAGE, PATCHES, WIDTH = 416_866_032, 3 * 896 * 896, 4096, 1152
"""Parameters of SigLIP's tower as transformers registers them, values of an image, its patches and their elements."""


E2B: dict[str, Any] = {"model": "gemma-4-e2b", "frozen": [
    f"model.{part}" for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")]}


def scenario(model: str = "gemma-3-4b", **training: Any) -> Scenario:
    keys: dict[str, Any] = {"seq_len": 1024, "images": 1, "frozen": ["model.vision_tower"]} | training
    attention = keys.pop("attention", "eager")
    options = ({"attn_implementation": attention} if attention else {}) | keys.pop("options", {})
    return Scenario.model_validate({
        "name": "sees", "model": model, "framework": keys.pop("framework", "automodel"), "topology": "dgx-h100",
        "mesh": keys.pop("mesh", {"dp_shard": 8}), "framework_options": options,
        "training": {key: value for key, value in keys.items() if value is not None}})


QWEN: dict[str, Any] = {"model": "qwen2.5-vl-3b", "attention": "sdpa", "image_height": 448, "frozen": ["model.visual"]}
"""A model that takes images of any size: this one has 1024 patches, four to a token."""


def ok(report: Report) -> Report:
    assert report.status == "ok", report.problems
    return report


@pytest.mark.parametrize(("changed", "message"), [
    ({"images": None}, "training.images: expected the number of images in each sequence"),
    ({"images": 5}, "images: expected at most 4 in a sequence of 1024 tokens, each of which has 256, got 5"),
    ({"model": "gemma-3-4b-text", "frozen": None}, "images: changes nothing: gemma3_text has no vision tower"),
    ({"frozen": None}, "not yet: a vision tower that is trained (model.vision_tower.embeddings and others"),
    (QWEN | {"recompute": "full"}, "not yet: activation checkpointing of a model with a vision tower"),
    ({"lengths": "packed"}, "not yet: packs of sequences with images of gemma3 by the layers of hf under automodel"),
    ({"lengths": {"distribution": "uniform", "mean": 700, "max": 1024}}, "that are not all of one length"),
    (QWEN | {"model": "qwen3-vl-4b", "lengths": "packed"}, "packs of sequences with images in another attention than"),
    ({"method": "qlora"}, "not yet: qlora of a model with a vision tower"),
    ({"method": "lora", "lora": {"exclude_modules": ["*language*"]}}, "not yet: patterns of adapters that tell"),
    ({"method": "lora", "lora": {"target_modules": ["*"]}}, "not yet: adapters in a vision tower"),
    ({"framework": "megatron_fsdp", "frozen": None, "attention": None},
     "not yet: a vision tower under megatron_fsdp (served: automodel, ddp"),
    ({"framework": "fsdp1"}, "not yet: the vision tower of gemma3 under fsdp1 (served: those of Qwen"),
    (QWEN | {"framework": "fsdp1", "method": "lora", "frozen": None, "lora": {"target_modules": ["q_proj"]},
             "options": {"use_orig_params": True}}, "not yet: lora beside a vision tower under fsdp1"),
    ({"model": "internvl3.5-8b", "framework": "zero2", "frozen": None, "method": "lora", "attention": "sdpa",
      "lora": {"target_modules": r"model\.language_model\..*_proj"}},
     "not yet: the vision tower of internvl under zero2"),
    ({"model": "internvl3.5-8b", "framework": "ddp", "mesh": {}, "frozen": None, "method": "lora",
      "lora": {"target_modules": r"model\.language_model\..*_proj"}},
     "not yet: eager in the vision tower of internvl"),
    (QWEN | {"framework": "fsdp1"}, "Must flatten tensors with uniform `requires_grad`"),
    (QWEN | {"framework": "fsdp1", "frozen": None, "options": {"forward_prefetch": True}},
     "forward_prefetch: True of a model with a vision tower"),
    ({"framework": "fsdp2"}, "not yet: the vision tower of gemma3 under fsdp2 (served: those of Qwen 3 VL and"),
    ({"framework": "zero3", "recompute": "full"}, "a vision tower under zero3 whose front transformers' checkpoints"),
    ({"framework": "ddp", "mesh": {}, "attention": "sdpa"}, "masks of images of gemma3 in another attention than"),
    ({"framework": "ddp", "mesh": {}, "recompute": "full", "offload": {"activations": "host"}},
     "inputs of layers on the host in a model with a vision tower"),
    ({"framework": "ddp", "mesh": {}, "options": {"compile": True}}, "kernels of that kind in a model with a vision"),
    ({"framework": "zero3"}, "a vision tower or projector that is trained under zero3"),
    ({"framework": "ddp", "mesh": {"dp_replicate": 8}, "method": "qlora", "frozen": None,
      "options": {"prepare_model_for_kbit_training": True},
      "lora": {"target_modules": r"model\.language_model\..*_proj"}},
     "a vision tower with parameters in fp32 under autocast"),
    ({"framework": "ddp", "mesh": {"dp_replicate": 8}, "model": "gemma-4-31b"}, "the vision tower of gemma4 under ddp"),
    ({"framework": "megatron", "model": "gemma-4-31b", "frozen": None}, "not yet: gemma4_text in Megatron's layers"),
    ({**E2B, "recompute": "full"}, "not yet: activation checkpointing of layers with inputs of"),
    ({**E2B, "attention": "sdpa", "seq_len": 511}, "not yet: SDPA of Gemma 4 in fp32"),
    ({**E2B, "mesh": {"dp_shard": 4, "tp": 2}}, "over more than data and stages"),
    ({"model": "gemma-4-26b-a4b", "mesh": {"dp_shard": 8, "ep": 8}}, "not yet: Automodel's own layers of Gemma 4 with"),
    ({**E2B, "images": 0, "frozen": None}, "given text alone, of gemma4 by the layers of hf"),
    ({"mesh": {"dp_shard": 4, "tp": 2}}, "not yet: transformers' layers of gemma3 under automodel over more"),
    ({"image_height": 448}, "image_height: changes nothing: all images of gemma3 have one size"),
    ({"model": "gemma-3-4b-text", "frozen": None, "images": None, "image_height": 448}, "has no vision tower"),
    ({"model": "ministral-3-3b", "attention": "sdpa", "image_height": 448}, "its tower adds a mask of all pairs"),
    ({"attention": "sdpa"}, "not yet: another attention than eager in a model that reads images"),
    (QWEN | {"image_height": None}, "training.image_height: expected the height of images in pixels"),
    (QWEN | {"image_height": 450}, "expected multiples of 28 pixels, as the model's processor makes them, got 450"),
    (QWEN | {"image_width": 1792, "seq_len": 1000}, "expected at most 0 in a sequence of 1000 tokens, each of which"),
    (QWEN | {"frozen": ["model.visual.merger"]}, "not yet: a vision tower that is trained (model.visual.patch_embed"),
    (QWEN | {"frozen": None, "options": {"enable_fsdp2_prefetch": True}}, "trained whose layers are gathered ahead"),
    (QWEN | {"model": "qwen3.5-9b", "frozen": None, "attention": None, "recompute": "full"},
     "a vision tower that is trained with activation checkpointing"),
    (QWEN | {"model": "qwen3.5-35b-a3b", "frozen": None, "attention": None, "mesh": {"dp_shard": 8, "ep": 8}},
     "a vision tower that is trained with expert parallelism"),
    (QWEN | {"model": "qwen3-vl-4b", "frozen": None}, "not yet: a vision tower that is trained (model.visual and"),
    (QWEN | {"method": "lora", "frozen": None}, "not yet: adapters in a vision tower"),
])
def test_what_is_not_served_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    assert any(message in problem.message for problem in check(scenario(**changed)).problems), changed


@pytest.mark.parametrize(("changed", "told"), [
    ({}, "; without images: model: mistral-small-4-119b-text"),
    ({"frozen": ["model.vision_tower"], "image_height": 224}, "; without images: model: mistral-small-4-119b-text"),
    ({"framework": "megatron"}, ""), ({"model": "qwen2.5-vl-3b", "image_height": 448}, "")])
def test_a_refusal_of_a_tower_names_the_text_model_that_is_built_in(changed: dict[str, Any], told: str) -> None:
    """Advice does not end in a circle: a tower is to be frozen, a frozen one to have images, and those are refused."""
    given = {"model": "mistral-small-4-119b", "framework": "fsdp2", "attention": None, "frozen": None} | changed
    (problem,) = check(scenario(**given)).problems
    assert problem.message.partition("; without images")[2] == told.partition("; without images")[2]


def test_an_engine_with_a_tower_is_refused_by_name() -> None:
    asked = Scenario.model_validate({"name": "serves", "workload": "serve", "model": "gemma-3-4b",
                                     "topology": "dgx-h100", "generation": {"max_model_len": 1024}})
    assert [problem.message for problem in check(asked).problems] == [
        "not yet: serving the vision tower of gemma3 with vLLM 0.12.0 (served: qwen2_5_vl)"]


def test_a_frozen_tower_has_no_gradients_and_no_states() -> None:
    """It is stored in bf16 over all ranks, two bytes an element; a trained parameter has two moments besides."""
    sees, reads = (ok(place(one)).ranks[0] for one in (scenario(), scenario(
        "gemma-3-4b-text", images=None, frozen=None)))
    tower, projector = sees.at_rest["vision_tower"], sees.at_rest["projector"]
    assert tower.num_params == TOWER // 8
    assert (tower.params_bytes, tower.grads_bytes, tower.optimizer_bytes) == (2 * tower.num_params, 0, 0)
    assert projector.optimizer_bytes == 2 * projector.params_bytes > 0
    assert sees.at_rest["mlp"] == reads.at_rest["mlp"]


def test_the_root_gathers_the_tower_until_backward_is_over() -> None:
    """The peak of text is that of the same model without a tower, and its weights, its images and what it hands on."""
    sees, reads = (ok(simulate(one)).ranks[0].peak for one in (scenario(), scenario(
        "gemma-3-4b-text", images=None, frozen=None)))
    assert sees is not None
    assert reads is not None
    more = sees.by_category["unsharded_param"] - reads.by_category["unsharded_param"]
    assert more >= 2 * TOWER
    assert more < 2 * TOWER + 2 * 3_000_000  # the projector's
    assert sees.by_category["input"] - reads.by_category["input"] == 2 * IMAGE  # cast by Automodel's collate_fns.py


TEXT: dict[str, Any] = {"images": 0, "frozen": None, "attention": None, "mesh": {"dp_shard": 8, "ep": 8}}
"""Sequences without images, for a model that has a tower."""


def test_a_tower_that_is_given_text_alone_rests_beside_the_model_without_one() -> None:
    """Its parameters, and adapters, are there in bf16, cut over all ranks; no step reads, sends or trains them."""
    adapted = {"method": "lora", "lora": {"rank": 8, "target_modules": ["*"]}}
    for changed in ({"recompute": "full"}, adapted):
        rests = ok(simulate(scenario("qwen3.5-35b-a3b", **TEXT | changed)))
        reads = ok(simulate(scenario("qwen3.5-35b-a3b-text", **TEXT | {"images": None} | changed)))
        assert rests.time == reads.time, changed
        mine, other = rests.ranks[0], reads.ranks[0]
        assert mine.traffic == other.traffic, changed
        more = {name: part for name, part in mine.at_rest.items() if part != other.at_rest.get(name)}
        assert set(more) == {"vision_tower", "projector", *(["adapters"] if changed is adapted else [])}
        tower = sum(part.num_params for name, part in more.items() if name != "adapters")
        assert tower >= 446_571_248 / 8, changed
        assert [part.optimizer_bytes for name, part in more.items() if name != "adapters"] == [0, 0], changed
        assert mine.peak is not None
        assert other.peak is not None
        grown = {name: size - other.peak.by_category.get(name, 0) for name, size in mine.peak.by_category.items()
                 if size != other.peak.by_category.get(name, 0)}
        assert set(grown) == {"sharded_param", "buffer"}, changed
        assert 0 <= grown["sharded_param"] - 2 * tower <= 2 * (changed is adapted) * 4_000_000, changed


def test_the_root_gathers_a_tower_that_adapters_leave_out_though_it_does_not_run() -> None:
    """Such a tower is frozen as a whole, and its parameters are whole until the step is over."""
    adapted = {"method": "lora", "lora": {"rank": 8, "exclude_modules": ["*visual*"]}}
    rests, reads = (ok(simulate(scenario(model, **TEXT | adapted | {"images": images}))).ranks[0].peak
                    for model, images in (("qwen3.5-35b-a3b", 0), ("qwen3.5-35b-a3b-text", None)))
    assert rests is not None
    assert reads is not None
    grown = rests.by_category["unsharded_param"] - reads.by_category["unsharded_param"]
    assert 0 <= grown - 2 * 446_571_248 < 2**20


def test_the_root_gathers_a_frozen_tower_though_it_does_not_run() -> None:
    def gathered(frozen: list[str]) -> int:
        [*found] = ok(simulate(scenario("qwen3.5-35b-a3b", **TEXT | {"frozen": frozen}))).ranks[0].traffic
        return sum(one.payload_bytes for one in found if one.collective == "all_gather")

    assert 0 <= gathered(["model.visual"]) - gathered([]) - 2 * 446_571_248 < 2**20


def test_under_ddp_a_tower_that_is_given_text_alone_takes_its_bytes_and_nothing_else() -> None:
    one = {"framework": "ddp", "mesh": {}, "seq_len": 512, "attention": None, "frozen": None}
    for changed in ({"recompute": "full"}, {"method": "lora", "lora": {"target_modules": ["gate_proj"]}},
                    {"method": "qlora", "lora": {"target_modules": ["gate_proj"]}}):
        rests = ok(simulate(scenario("qwen3.5-0.8b", **one | {"images": 0} | changed)))
        reads = ok(simulate(scenario("qwen3.5-0.8b-text", **one | {"images": None} | changed)))
        assert rests.time == reads.time, changed
        mine, other = rests.ranks[0], reads.ranks[0]
        tower = sum(mine.at_rest[name].params_bytes for name in ("vision_tower", "projector"))
        assert mine.at_rest_bytes() == other.at_rest_bytes() + tower, changed
        assert mine.peak is not None
        assert other.peak is not None
        assert 0 <= mine.peak.allocated_bytes - other.peak.allocated_bytes - tower < 2**18, changed  # in blocks of 512


def test_a_tower_that_is_given_text_alone_is_refused_where_it_was_not_measured() -> None:
    for model, changed, message in (
            ("qwen3.5-35b-a3b", {"mesh": {"dp_shard": 8}}, "qwen3_5_moe_text without expert parallelism"),
            ("qwen3.5-35b-a3b", {"framework": "megatron", "frozen": ["model.visual"]},
             "frozen parameters of a model with a vision tower"),
            ("qwen3.5-35b-a3b", {"frozen": ["model.tower"]}, "no parameter or module of the model is matched by"),
            ("qwen3.5-35b-a3b", {"image_height": 448}, "image_height: changes nothing: qwen3_5_moe reads no image"),
            ("qwen3.5-35b-a3b", {"framework": "megatron"}, "text alone in train under megatron (served:"),
            ("gemma-3-4b", {"framework": "ddp", "mesh": {}}, "text alone, of gemma3 under ddp (served: mistral3,"),
            ("qwen3.5-0.8b", {"framework": "ddp", "mesh": {"dp_replicate": 2}}, "ranks whose buckets wait for"),
            ("ministral-3-3b", {"mesh": {"dp_shard": 8}, "method": "qlora"}, "not yet: qlora of a model with a vision"),
            ("ministral-3-3b", {"mesh": {"dp_shard": 8}, "recompute": "full"}, "not yet: activation checkpointing of"),
            ("gemma-3-4b", {"mesh": {"dp_shard": 8}}, "given text alone, of gemma3 by the layers of hf"),
            ("gemma-3-4b", {"framework": "fsdp2", "mesh": {"dp_shard": 8}}, "SiglipMultiheadAttentionPoolingHead in"),
            ("qwen3-vl-4b", {"framework": "fsdp2", "mesh": {"dp_shard": 8}}, "text alone, of qwen3_vl under fsdp2"),
            ("gemma-3-4b-text", {"mesh": {"dp_shard": 8}}, "images: changes nothing: gemma3_text has no")):
        asked = scenario(model, **TEXT | changed)
        assert any(message in problem.message for problem in check(asked).problems), (changed, check(asked).problems)


def test_images_add_to_the_step_and_to_nothing_that_is_kept() -> None:
    """A frozen tower keeps no activations: three images more are three images of input, and tokens that are there."""
    one, four = (ok(simulate(scenario(images=count, seq_len=2048))) for count in (1, 4))
    assert one.ranks[0].peak is not None
    assert four.ranks[0].peak is not None
    kept = [peak.by_category["activation"] for peak in (one.ranks[0].peak, four.ranks[0].peak)]
    assert 0 <= kept[1] - kept[0] < 3 * (2 * 256 * 2560 + 8 * 256 * WIDTH) + 2**20
    assert one.time is not None
    assert four.time is not None
    assert four.time.step_s > one.time.step_s


def test_larger_images_are_more_input_and_more_work_for_the_tower() -> None:
    """A row of 28 pixels more: two rows of patches, 14 pixels and two frames each, and a row of tokens."""
    one, more = (ok(simulate(scenario(**QWEN | {"image_height": height, "image_width": 448}))) for height in (448, 476))
    peaks = [report.ranks[0].peak for report in (one, more)]
    given = [peak.by_category["input"] for peak in peaks if peak is not None]
    assert given[1] - given[0] == 4 * 2 * 3 * 28 * 448
    assert one.time is not None
    assert more.time is not None
    assert more.time.step_s > one.time.step_s


def test_adapters_of_the_text_beside_a_tower() -> None:
    lora = {"method": "lora", "frozen": None, "lora": {"exclude_modules": ["*visual*"]}}
    report = ok(simulate(scenario(**QWEN | lora)))
    assert report.ranks[0].at_rest["vision_tower"].optimizer_bytes == 0


def test_a_projector_behind_a_frozen_tower_is_trained() -> None:
    """All pairs of patches of two images: a mask, and scores of 16 heads, made in fp32 too."""
    report = ok(simulate(scenario("ministral-3-3b", images=2, seq_len=2048, image_height=784)))
    tower, projector = (report.ranks[0].at_rest[name] for name in ("vision_tower", "projector"))
    assert (tower.grads_bytes, tower.optimizer_bytes) == (0, 0)
    assert projector.optimizer_bytes == 2 * projector.params_bytes > 0
    pairs = (2 * 56 * 56) ** 2
    assert report.ranks[0].peak is not None
    assert report.ranks[0].peak.by_phase["forward"] > 16 * pairs * (2 + 4 + 4)


def test_features_of_a_tower_enter_the_first_layers_of_the_decoder() -> None:
    """The tokens of an image of 512 pixels each way, behind three of 36 layers."""
    keys = QWEN | {"model": "qwen3-vl-4b", "image_height": 512}
    job, _ = prepare(scenario(**keys))
    fed = [job.graph.kinds[job.graph.layers[layer].kind].fed for layer in job.graph.blocks]
    assert fed == [256] * 3 + [0] * 33
    assert ok(simulate(scenario(**keys))).ranks[0].peak is not None
