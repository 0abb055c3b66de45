"""`rankscope convert`, and recipes of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Run

SMALL = """\
name: small
model: llama-tiny
framework: automodel
topology: dgx-h100
mesh: {dp_shard: 8}
training: {seq_len: 512, global_batch_size: 16}
"""


def scenario(folder: Path, text: str = SMALL) -> Path:
    file = folder / "small.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_recipe_is_printed_with_its_launch_first(ran: Run, tmp_path: Path) -> None:
    shown = ran("convert", scenario(tmp_path), "--to", "automodel")
    assert shown.code == 0
    assert shown.out.splitlines()[1] == "# Launch: automodel small.yaml --nproc-per-node 8"
    assert "seq_len: 512" in shown.out


def test_a_written_recipe_runs_as_the_scenario(ran: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    assert ran("convert", scenario(tmp_path), "--to", "automodel", "-o", recipe).code == 0
    asked = ran("place", scenario(tmp_path)).out
    read = ran("place", recipe, "--gpus", 8, "--topology", "dgx-h100")
    assert read.out.replace("recipe", "small").split() == asked.split()


def test_what_a_recipe_cannot_say_is_refused_or_listed(ran: Run, tmp_path: Path) -> None:
    file = scenario(tmp_path, SMALL + "checkpoint: {save: none}\n")
    refused = ran("convert", file, "--to", "automodel")
    assert (refused.code, refused.out) == (2, "")
    assert "small.yaml:7: not yet: checkpoint.save: no recipe of automodel says this" in refused.err
    loose = ran("convert", file, "--to", "automodel", "--loose")
    assert loose.code == 0
    assert "checkpoint.save: no recipe of automodel says this; left out by --loose" in loose.out


def test_nothing_is_written_where_one_of_the_files_exists(ran: Run, tmp_path: Path) -> None:
    file = scenario(tmp_path, SMALL.replace("automodel", "zero3").replace("llama-tiny", "llama-3.2-1b"))
    made = tmp_path / "made"
    made.mkdir()
    asked = ("convert", file, "--to", "deepspeed", "--loose", "-o", made / "zero.json")
    assert ran(*asked).code == 0
    assert len([*made.iterdir()]) == 2
    (made / "zero.json").unlink()
    refused = ran(*asked)
    assert (refused.code, "exists already; --force overwrites it" in refused.err) == (2, True)
    assert not (made / "zero.json").exists()
    assert ran(*asked, "--force").code == 0
    assert (made / "zero.json").exists()


def test_one_scenario_of_a_sweep_is_named(ran: Run, tmp_path: Path) -> None:
    file = scenario(tmp_path, SMALL + "sweep: {training.micro_batch_size: [1, 2]}\n")
    assert "--name says which" in ran("convert", file, "--to", "automodel").err
    assert ran("convert", file, "--to", "automodel", "--name", "small[training.micro_batch_size=2]").code == 0


def test_a_search_writes_recipes(ran: Run, tmp_path: Path) -> None:
    found = ran("search", scenario(tmp_path), "--free", "training.micro_batch_size=1,2", "--top", "2", "-j", "1",
                "--write", tmp_path / "best", "--as", "automodel")
    assert found.code == 0
    assert sorted(file.name for file in (tmp_path / "best").iterdir()) == ["small-1.yaml", "small-2.yaml"]
    assert "small-1.yaml: launch: automodel small-1.yaml --nproc-per-node 8" in found.err


def test_layouts_that_no_recipe_says_end_a_search_with_2(ran: Run, tmp_path: Path) -> None:
    found = ran("search", scenario(tmp_path), "--free", "training.micro_batch_size=1,2", "--top", "2", "-j", "1",
                "--write", tmp_path / "best", "--as", "megatron")
    assert found.code == 2
    assert "recipes of megatron run megatron, megatron_fsdp" in found.err


@pytest.mark.parametrize(("options", "told"), [
    (("--as", "automodel"), "--as: expected --write DIR with it"),
    (("--write", "best", "--as", "nemo"), "--as nemo: expected one of automodel, ")])
def test_a_format_of_recipes_is_checked_before_a_search(ran: Run, tmp_path: Path, options: tuple[str, ...], told: str
                                                        ) -> None:
    found = ran("search", scenario(tmp_path), *options)
    assert (found.code, found.out) == (2, "")
    assert told in found.err


def test_a_recipe_becomes_one_of_another_tool(ran: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    assert ran("convert", scenario(tmp_path, SMALL.replace("llama-tiny", "qwen3-8b")), "--to", "automodel", "-o",
               recipe).code == 0
    made = ran("convert", recipe, "--to", "megatron", "--set", "framework=megatron", "--gpus", 8, "--topology",
               "dgx-h100", "--set", "training.loss=auto", "--set", "training.optimizer.implementation=auto")
    assert made.code == 0, made.err
    assert "--num-layers 36" in made.out


ZERO = SMALL.replace("automodel", "zero2").replace(
    "global_batch_size: 16", "global_batch_size: 16, loss: fused_lm_head")


def test_files_beside_a_recipe_have_its_name(ran: Run, tmp_path: Path) -> None:
    wrote = ran("convert", scenario(tmp_path, ZERO), "--to", "deepspeed", "-o", tmp_path / "mine.json")
    assert "launch: torchrun --nproc-per-node 8 -m trl.scripts.sft --config mine-sft.yaml" in wrote.err
    assert "\ndeepspeed: mine.json\n" in (tmp_path / "mine-sft.yaml").read_text(encoding="utf-8")
    made = ran("import", tmp_path / "mine-sft.yaml", tmp_path / "mine.json", "--gpus", 8, "--topology", "dgx-h100")
    assert made.code == 0
    assert "framework: zero2" in made.out


def test_files_beside_a_recipe_are_printed_behind_it(ran: Run, tmp_path: Path) -> None:
    shown = ran("convert", scenario(tmp_path, ZERO), "--to", "accelerate").out
    assert shown.index("distributed_type: DEEPSPEED") < shown.index("# ==> small-sft.yaml\nmodel_name_or_path: ")
    (tmp_path / "other-sft.yaml").touch()
    kept = ran("convert", scenario(tmp_path, ZERO), "--to", "accelerate", "-o", tmp_path / "other.yaml")
    assert (kept.code, "other-sft.yaml" in kept.err) == (2, True)
