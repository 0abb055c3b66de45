"""Scripts of OpenRLHF's DPO and of its reward models: pairs as one batch, and what is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from recipes.openrlhf.test_recipe import NEWER, OLD, imported
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

PROGRAMS: Final = {"train_dpo": ("preference_fp32", 8), "train_rm": ("rewards", 1)}
"""Loss, and pairs of a microbatch by default."""
PACKS: Final = " --packing_samples"


def read(folder: Path, text: str) -> dict[str, Any]:
    found = imported(folder, text)
    found.expect_complete()
    assert not check(parse_scenario(found.document())).problems
    values: dict[str, Any] = found.values["training"]
    return values


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("text", [NEWER, OLD], ids=["newer", "old"])
def test_a_row_holds_both_sequences_of_each_pair(tmp_path: Path, text: str, program: str) -> None:
    training = read(tmp_path, text.replace("train_sft", program))
    assert training["loss"] == PROGRAMS[program][0]
    assert (training["lengths"], training["packed_length"]) == ("packed", 2048)
    assert (training["seq_len"], training["micro_batch_size"], training["global_batch_size"]) == (4 * 2048, 1, 128)


@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_count_pairs_and_have_the_programs_own_defaults(tmp_path: Path, program: str) -> None:
    training = read(tmp_path, OLD.replace("train_sft", program).replace(PACKS, ""))
    assert (training["seq_len"], training["micro_batch_size"], training["global_batch_size"]) == (2048, 4, 512)
    left = OLD.replace("train_sft", program).replace(PACKS, "").replace("--max_len 2048 ", "")
    training = read(tmp_path, left.replace("--train_batch_size 256 --micro_train_batch_size 2", ""))
    assert (training["seq_len"], training["micro_batch_size"], training["global_batch_size"]) == (
        512, 2 * PROGRAMS[program][1], 256)


@pytest.mark.parametrize("program", ["train_sft", *PROGRAMS])
def test_an_answer_says_how_long_packed_samples_are(tmp_path: Path, program: str) -> None:
    (tmp_path / "run.sh").write_text(NEWER.replace("train_sft", program), encoding="utf-8")
    found = import_recipe([str(tmp_path / "run.sh")], Answers.of_options(None, 1024, "dgx-h100"))
    found.expect_complete()
    assert found.values["training"]["packed_length"] == 1024
    assert found.values["training"]["seq_len"] == 1024 * 2 * (1 + (program in PROGRAMS))


@pytest.mark.parametrize(("more", "told"), [
    ("--ref_offload", "a reference model on the host"),
    ("--lora_rank 8 --target_modules q_proj v_proj", "a reference model of its own beside adapters"),
    ("--ref_pretrain meta-llama/Llama-3.2-1B", "a reference model of another name"),
    ("--ring_attn_size 2", "ring-flash-attn")])
def test_what_dpo_is_not_read_with(tmp_path: Path, more: str, told: str) -> None:
    found = imported(tmp_path, OLD.replace("train_sft", "train_dpo").rstrip() + f" {more}\n")
    assert [told in str(one) for one in (*found.refused, *found.wrong)] == [True]
    assert not found.unknown


def test_numbers_of_the_loss_change_nothing(tmp_path: Path) -> None:
    plain = OLD.replace("train_sft", "train_dpo").rstrip()
    more = f"{plain} --beta 0.3 --ipo --label_smoothing 0.1 --nll_loss_coef 0.2 --chosen_key a --rejected_key b\n"
    assert read(tmp_path, more) == read(tmp_path, plain + "\n")
    rewards = OLD.replace("train_sft", "train_rm").rstrip()
    more = f"{rewards} --loss logexp --margin_loss --compute_fp32_loss --value_head_prefix value\n"
    assert read(tmp_path, more) == read(tmp_path, rewards + "\n")
