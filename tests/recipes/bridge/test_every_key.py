"""Every key that a launch by name gives stands in one list of what is imported, and none in two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages
from simcore.recipes.bridge.named import launch_of, present_name, recipes
from simcore.recipes.imported import Imported
from simcore.recipes.reader import Reader

NAMES = [name for name in recipes() if present_name(name) == name]


def given(text: str) -> Iterator[str]:
    """Keys of a launch: those of its document, those that are computed, and options without a key of their own."""
    launch = launch_of(text, "run.sh")
    yield from (one.key for one in Reader(launch.document).all())
    yield from launch.open_keys
    yield from (one.key for one in launch.left)


def listed(found: Imported) -> Counter[str]:
    """Number of lists in which a key stands: origins of the scenario's keys, keys left, and keys that decide."""
    named = {one.text for one in found.origins.values() if one.kind == "recipe"}
    return Counter(named) + Counter(one.key for one in found.left) + Counter(one.key for one in found.decides)


def kept(folder: Path, text: str) -> Imported:
    named = "gpu_" in text
    return imported(folder, text, None if named else 64, "" if named and "vr200" not in text else "dgx-h100")


def astray(folder: Path, text: str) -> dict[str, int]:
    """Keys that stand in no list, or in more than values are given, with their number; none of a refused launch."""
    found = kept(folder, text)
    if found.wrong or found.refused or found.unknown or found.questions:
        return {}
    lists = listed(found)
    return {key: lists[key] for key, number in Counter(given(text)).items() if not 0 < lists[key] <= number}


@pytest.mark.parametrize("part", range(4))
def test_every_key_of_a_recipe_stands_in_one_list(tmp_path: Path, part: int) -> None:
    """A part of the table at a time: one recipe of each set of keys."""
    shapes = {frozenset(recipes()[name]): name for name in NAMES}
    assert {name: found for name in sorted(shapes.values())[part::4] if (found := astray(tmp_path, name))} == {}


@pytest.mark.parametrize("words", [
    "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe {} -pp 2 -vp 2 -mb 2 train.micro_batch_size=1",
    "python scripts/performance/run_script.py -ng 8 -mr {} -tp 2 -sl 2048 model.seq_length=4096 -gb 64",
    "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe {} --deterministic -sl 2048 "
    "mixed_precision=bf16_mixed"])
def test_every_key_of_a_launch_stands_in_one_list(tmp_path: Path, words: str) -> None:
    """And each that another one goes before, beside it."""
    text = words.format("llama3_8b_pretrain_8gpu_h100_bf16_config")
    found, keys = kept(tmp_path, text), Counter(given(text))
    assert messages(found) == ""
    assert astray(tmp_path, text) == {}
    assert listed(found)["train.micro_batch_size"] == keys["train.micro_batch_size"]


def test_a_key_in_no_list_is_seen(tmp_path: Path) -> None:
    found = kept(tmp_path, "llama3_8b_pretrain_8gpu_h100_bf16_config")
    assert listed(replace(found, decides=()))["ddp.use_distributed_optimizer"] == 0


@pytest.mark.parametrize(("name", "is_told"), [("llama3_70b_peft_8gpu_b200_fp8mx_config", True),
                                               ("llama3_8b_pretrain_8gpu_h100_bf16_config", False)])
def test_a_data_set_that_launchers_replace_is_said(tmp_path: Path, name: str, is_told: bool) -> None:
    told = [one.why for one in kept(tmp_path, name).left if one.key == "dataset.*"]
    assert [why.partition(",")[0] for why in told] == ["mock samples of the model's length"] * is_told
