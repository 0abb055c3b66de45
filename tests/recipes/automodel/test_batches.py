"""Batches and lengths are those that Automodel's data loader and scheduler make, or they are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automodel_recipe import RECIPE, changed, imported, refusal

OPEN: dict[str, Any] = {"gpus": 16, "topology": "dgx-h100"}
SQUAD = "dataset_name: some/questions"
PIPELINE = changed("  tp_size: 1\n", "  pp_size: 2\n  pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 1}\n",
                   changed("dp_replicate_size: 2", "dp_replicate_size: 1"))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def with_data(text: str, loader: str = "") -> str:
    return changed(SQUAD, text, changed("shuffle: true", loader or "shuffle: true"))


@pytest.mark.parametrize(("data", "loader", "length"), [
    ("seq_length: 512, padding: max_length, truncation: true", "", 512),
    ("seq_length: 512, truncation: true", "", 511),
    ("seq_length: 512, truncation: longest_first, padding: do_not_pad", "collate_fn: {pad_seq_len_divisible: 64}", 512),
    ("seq_length: 512, truncation: true", "collate_fn: {pad_seq_len_divisible: 100}", 600)])
def test_samples_that_are_cut_have_a_longest(data: str, loader: str, length: int) -> None:
    assert imported(with_data(data, loader), **OPEN).values["training"]["seq_len"] == length


@pytest.mark.parametrize("data", ["seq_length: 512", "seq_length: 512, truncation: false",
                                  "seq_length: 512, truncation: do_not_truncate, padding: max_length", SQUAD])
def test_a_length_without_truncation_cuts_nothing_and_is_asked(data: str) -> None:
    [question] = imported(with_data(data), **OPEN).questions
    assert question.key == "training.seq_len"
    assert ("without truncation cuts nothing" in question.text) is ("seq_length" in data)


def test_hellaswag_pads_to_its_longest_sample_unless_told_not_to() -> None:
    hellaswag = changed("squad.make_squad_dataset", "hellaswag.HellaSwag")
    assert "pads all samples to its longest one" in imported(hellaswag, **OPEN).questions[0].text
    own = changed(SQUAD, "pad_to_max_length: false", hellaswag)
    assert "padded to their longest sample" in imported(own, **OPEN).questions[0].text


def test_drawn_samples_have_one_length() -> None:
    drawn = changed("squad.make_squad_dataset", "mock_iterable_dataset.MockIterableDataset",
                    changed(SQUAD, "seq_len: 640"))
    assert imported(drawn, **OPEN).values["training"]["seq_len"] == 640


def test_packs_have_the_length_of_a_pack() -> None:
    packed = changed("optimizer:", "packed_sequence: {packed_sequence_size: 2048}\noptimizer:")
    training = imported(packed, **OPEN).values["training"]
    assert (training["lengths"], training["seq_len"]) == ("packed", 2048)


def test_an_answer_is_the_padded_length() -> None:
    found = imported(with_data("seq_length: 512, truncation: true"), seq_len=96, **OPEN)
    assert found.values["training"]["seq_len"] == 96
    assert "dataset.truncation" in {one.key for one in found.left}


def test_a_missing_global_batch_is_the_releases() -> None:
    found = imported(changed("global_batch_size: 48, ", ""))
    assert found.values["training"]["global_batch_size"] == 32
    assert found.origins["training", "global_batch_size"].kind == "default"


def test_a_microbatch_of_stages_is_a_part_of_the_local_batch() -> None:
    found = imported(changed("global_batch_size: 48, local_batch_size: 3", "global_batch_size: 32, local_batch_size: 4",
                             PIPELINE))
    assert found.values["training"]["micro_batch_size"] == 1
    assert "step_scheduler.local_batch_size" in found.used


def test_several_schedules_in_a_step() -> None:
    found = imported(PIPELINE)
    assert found.values["framework_options"]["local_batch_size"] == 3


INTERLEAVED = "pp_schedule: interleaved1f1b, pp_microbatch_size: 1"


@pytest.mark.parametrize(("said", "stages"), [
    ("", 2), (", layers_per_stage: 6", 3), (", layers_per_stage: 7, round_virtual_stages_to_pp_multiple: up", 3),
    (", layers_per_stage: 8, round_virtual_stages_to_pp_multiple: down", 2)])
def test_virtual_stages_are_the_layers_over_those_of_a_stage(said: str, stages: int) -> None:
    """36 layers on two ranks: 6 stages; 6 of 5.14; 4 of 4.5, as 5 is not even."""
    found = imported(PIPELINE.replace("pp_schedule: 1f1b, pp_microbatch_size: 1", INTERLEAVED + said))
    assert found.values["training"]["pipeline"] == {"schedule": "1f1b", "virtual_stages": stages}


def test_virtual_stages_that_ranks_do_not_share_evenly() -> None:
    said = f"{INTERLEAVED}, layers_per_stage: 8"
    found = imported(PIPELINE.replace("pp_schedule: 1f1b, pp_microbatch_size: 1", said))
    assert "distributed.pipeline.layers_per_stage 8 makes 5 stages of 36 layers" in str(found.wrong[0])


def test_a_loss_stays_what_it_is() -> None:
    assert imported(RECIPE).values["training"]["loss"] == "masked"


MOCK = changed("squad.make_squad_dataset, dataset_name: some/questions",
               "mock_iterable_dataset.MockIterableDataset, seq_len: 64")


@pytest.mark.parametrize(("text", "micro", "whole"), [
    (changed("shuffle: true", "shuffle: true, batch_size: 2"), 2, 32),
    (changed("shuffle: true", "shuffle: true, batch_size: 3"), 3, 48),
    (changed("shuffle: true", "batch_size: null", changed("seq_len: 64", "seq_len: 64, batch_size: 6", MOCK)), 6, 96),
    (changed("shuffle: true", "batch_size: null", MOCK), 1, 16),
    (changed("shuffle: true", "batch_size: null", changed("TrainFinetune", "Benchmarking", changed(
        "seq_len: 64", "seq_len: 64, batch_size: 6", MOCK))), 3, 48),
    (changed("squad.make_squad_dataset, dataset_name: some/questions", "megatron_dataset.MegatronPretraining, "
             "seq_length: 64", changed("shuffle: true", "batch_size: 2")), 3, 48)])
def test_a_microbatch_is_the_batch_of_the_loader(text: str, micro: int, whole: int) -> None:
    """The scheduler counts microbatches by local_batch_size, however many rows the loader's have."""
    training = imported(text).values["training"]
    assert (training["micro_batch_size"], training["global_batch_size"]) == (micro, whole)


@pytest.mark.parametrize("text", [
    changed("shuffle: true", "batch_size: null"),
    changed("shuffle: true", "batch_size: 2", PIPELINE),
    changed("global_batch_size: 48", "global_batch_size: 50", changed("shuffle: true", "batch_size: 2"))])
def test_batches_of_the_loader_that_no_scenario_says_are_refused(text: str) -> None:
    assert "dataloader.batch_size" in refusal(text)
    assert imported(text).unknown == ()


def test_a_packers_own_collater_takes_the_place_of_the_recipes() -> None:
    """Automodel 0.7.0 components/datasets/loader.py:698: the packer's, else the recipe's."""
    loader = "collate_fn: {_target_: a.default_collater, pad_seq_len_divisible: 64}"
    packs = "packed_sequence: {packed_sequence_size: 2048}\noptimizer:"
    packed = changed("optimizer:", packs, with_data(SQUAD, loader))
    found = imported(packed, **OPEN)
    assert {one.key: one.why for one in found.left if "collate_fn" in one.key} == dict.fromkeys(
        ("dataloader.collate_fn._target_", "dataloader.collate_fn.pad_seq_len_divisible"),
        "nothing reads it: the packer's own collater takes its place (0.7.0 components/datasets/loader.py:698)")
    own = imported(changed("packed_sequence_size: 2048", "packed_sequence_size: 2048, prepacked: true", packed), **OPEN)
    assert "packed_sequence.prepacked: packs that the data set brings" in str(own.refused[0])
