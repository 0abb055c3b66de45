"""Rules are asked over whatever can be read: answers are assumed, and what is left out is said, not judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samples_of_recipes import SAMPLES
from simcore.errors import Problem
from simcore.lint.examples import with_lines
from simcore.lint.linting import Linted, lint, lint_all
from simcore.lint.opening import subjects
from simcore.recipes.answers import Answers

PEFT = ("model: {{_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
        "pretrained_model_name_or_path: {model}}}\n"
        "peft: {{_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 8, {keys}}}\n")
NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def linted(folder: Path, base: str, lines: str, *, beside: dict[str, str] | None = None, **answers: Any) -> Linted:
    names = {"automodel": "mine.yaml", "axolotl": "tune.yaml", "trl": "sft.yaml", "scenario": "own.yaml"}
    file = folder / names[base]
    file.write_text(with_lines(base, lines), encoding="utf-8")
    for name, text in (beside or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return lint([str(file), *(str(folder / name) for name in beside or {})], Answers.of_options(**answers))


def codes(found: Linted) -> list[str]:
    return [one.code for one in found.findings]


def lines_of(found: Linted, code: str) -> list[str]:
    return [one.where.rpartition("/")[2] for one in found.findings if one.code == code]


# ---- what is assumed, and what is not judged -----------------------------------------------------------------------
def test_what_a_recipe_leaves_open_is_assumed(tmp_path: Path) -> None:
    found = linted(tmp_path, "automodel", PEFT.format(model="Qwen/Qwen3-8B", keys="exclude_modules: ['*o_proj']"))
    assert codes(found) == ["lora-adapts-head"]
    assert found.unjudged == ()


def test_a_number_of_gpus_that_divides_is_looked_for(tmp_path: Path) -> None:
    layout = "distributed: {strategy: fsdp2, dp_replicate_size: 3}\n" \
             "step_scheduler: {global_batch_size: 48, local_batch_size: 1}\n"
    found = linted(tmp_path, "automodel", layout)
    assert [one for one in found.findings if one.severity == "error"] == []


def test_a_layout_that_no_number_of_gpus_makes_legal_is_found(tmp_path: Path) -> None:
    both = PEFT.format(model="Qwen/Qwen3-8B", keys="target_modules: ['*q_proj'], exclude_modules: ['*o_proj']")
    (one,) = (one for one in linted(tmp_path, "automodel", both).findings if one.code == "illegal-layout")
    assert one.message.endswith("(with any number of GPUs)")
    assert one.where.startswith(str(tmp_path))


def test_a_problem_of_an_assumed_answer_is_the_files(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(with_lines("automodel", ""), encoding="utf-8")
    (subject,) = subjects([str(tmp_path / "mine.yaml")], Answers())
    place = subject.where("mesh.dp_shard")
    assert place.startswith("an assumed ")
    assert subject.place(Problem(place, "wrong")) == str(tmp_path / "mine.yaml")
    assert subject.place(Problem("--gpus 8", "wrong")) == "--gpus 8"


def test_a_layout_with_a_part_left_out_is_not_judged(tmp_path: Path) -> None:
    """The degree of tensor parallelism is not modelled: without it the batch would not divide."""
    found = linted(tmp_path, "axolotl", "tensor_parallel_size: 2\n", gpus=8)
    assert [code for code in codes(found) if code in ("illegal-layout", "wrong-value")] == []
    assert any("tensor_parallel_size" in text for text in found.unjudged)


def test_an_unknown_family_is_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    found = linted(tmp_path, "axolotl", "base_model: some/thing\ncontext_parapllel_size: 2\n", gpus=8)
    assert codes(found) == ["misspelt-key"]
    assert any("unknown model" in text for text in found.unjudged)


def test_a_key_that_upstream_has_and_the_reader_has_not_is_no_finding(tmp_path: Path) -> None:
    found = linted(tmp_path, "axolotl", "lisa_n_layers: 4\n", gpus=8)
    assert codes(found) == []


@pytest.mark.parametrize(("line", "code"), [("adam_eps: 0.1", "misspelt-key"), ("eta_min: 0.1", "unknown-key")])
def test_a_pattern_of_the_reader_hides_no_key(line: str, code: str, tmp_path: Path) -> None:
    found = linted(tmp_path, "axolotl", f"{line}\n", gpus=8)
    assert codes(found) == [code]


@pytest.mark.parametrize(("lines", "unknown"), [
    ("num_generations: 8\nreward_funcs: [accuracy]\nmax_completion_length: 512\nbeta: 0.04\n", []),
    ("num_processes: 8\n", []), ("num_generation: 8\n", ["num_generation"]),
    ("num_generations: 8\nno_such_key: 1\n", ["no_such_key"])])
def test_keys_of_other_trainings_of_trl_and_of_its_launcher_are_known(lines: str, unknown: list[str],
                                                                      tmp_path: Path) -> None:
    told = [one.message.partition(" ")[0] for one in linted(tmp_path, "trl", lines, gpus=8).findings
            if one.code.endswith("-key")]
    assert [name for name in told if f"{name}:" in lines] == unknown


# ---- launch and companions -----------------------------------------------------------------------------------------
def test_the_launch_is_judged_at_its_line(tmp_path: Path) -> None:
    launch = {"run.sh": "#!/bin/bash\ntorchrun --nproc-per-node 6 train.py mine.yaml\n"}
    found = linted(tmp_path, "automodel", "distributed: {strategy: fsdp2, pp_size: 4}\n", beside=launch)
    assert lines_of(found, "launch-processes") == ["run.sh:2"]


def test_a_launch_that_contradicts_gpus_is_found(tmp_path: Path) -> None:
    launch = {"run.sh": "torchrun --nproc-per-node 4 train.py mine.yaml\n"}
    found = linted(tmp_path, "automodel", "", beside=launch, gpus=8)
    assert [one.code for one in found.findings if one.severity == "error"] == ["launch-processes"]
    assert found.problems == ()


def test_keys_that_the_launch_sets_count(tmp_path: Path) -> None:
    launch = {"run.sh": "axolotl train tune.yaml --launcher torchrun --adam_eps 0.1 -- --nproc_per_node=8\n"}
    found = linted(tmp_path, "axolotl", "", beside=launch)
    assert lines_of(found, "misspelt-key") == ["run.sh:1"]


def test_a_batch_that_deepspeed_and_the_trainer_disagree_on_is_found(tmp_path: Path) -> None:
    zero = {"zero.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true},\n'
                         ' "train_micro_batch_size_per_gpu": 4}\n'}
    found = linted(tmp_path, "trl", "", beside=zero, gpus=8)
    assert lines_of(found, "wrong-value") == ["zero.json:2"]


# ---- adapters ------------------------------------------------------------------------------------------------------
def test_a_bypassed_adapter_is_found_where_gradients_are_not_recorded(tmp_path: Path) -> None:
    lora = "training: {seq_len: 512, global_batch_size: 8, method: lora, lora: {target_modules: [out_proj, q_proj]}}\n"
    copies = "framework: ddp\nmesh: {dp_replicate: 8}\nmodel: nemotron-3-nano-30b-a3b\n"
    assert codes(linted(tmp_path, "scenario", copies + lora)) == ["lora-without-gradient"]
    assert codes(linted(tmp_path, "scenario", copies + lora.replace("out_proj", "in_proj"))) == []


def test_an_adapter_on_a_called_output_projection_learns(tmp_path: Path) -> None:
    """Megatron's mixer calls the module."""
    lora = "training: {seq_len: 512, global_batch_size: 8, method: lora, lora: {target_modules: [out_proj]}}\n"
    megatron = "framework: megatron\nmesh: {dp_shard: 8}\nmodel: nemotron-3-nano-30b-a3b\n"
    assert "lora-without-gradient" not in codes(linted(tmp_path, "scenario", megatron + lora))


def test_only_the_targets_that_match_nothing_are_named(tmp_path: Path) -> None:
    found = linted(tmp_path, "axolotl", "adapter: lora\nlora_r: 8\nlora_target_modules: [q_proj, c_attn]\n", gpus=8)
    (one,) = found.findings
    assert "'c_attn'" in one.message
    assert "q_proj" in one.instead
    assert one.where.endswith("tune.yaml:11")


def test_adapters_that_match_nothing_at_all_are_found(tmp_path: Path) -> None:
    found = linted(tmp_path, "axolotl", "adapter: lora\nlora_r: 8\nlora_target_modules: [c_attn]\n", gpus=8)
    assert codes(found) == ["lora-target-matches-nothing"]


@pytest.mark.parametrize(("base", "lines"), [
    ("axolotl", "base_model: Qwen/Qwen3-30B-A3B\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"
                "bf16: full\n"),
    ("trl", "model_name_or_path: Qwen/Qwen3-30B-A3B\nuse_peft: true\nlora_target_modules: all-linear\n"
            "dtype: bfloat16\nbf16: false\n"),
    ("automodel", PEFT.format(model=NANO, keys="match_all_linear: true"))])
def test_all_linear_layers_are_not_the_experts(base: str, lines: str, tmp_path: Path) -> None:
    found = linted(tmp_path, base, lines, gpus=8)
    assert "lora-skips-experts" in codes(found), found
    assert "all linear layers reach no routed expert" in "".join(one.message for one in found.findings)


def test_settings_of_adapters_that_were_switched_off_are_a_note(tmp_path: Path) -> None:
    settings = "lora_r: 16\nlora_alpha: 32\n"
    severities = [linted(tmp_path, "axolotl", f"{line}{settings}", gpus=8).findings[0].severity
                  for line in ("adapter:\n", "")]
    assert severities == ["note", "warning"]


# ---- values --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("written", "is_text"), [
    ("1e-6", True), ("1.0e4", True), ("'1.0e-6'", True), ("1.0e-6", False), ("0.000001", False)])
def test_numbers_are_read_as_pyyaml_reads_them(written: str, is_text: bool, tmp_path: Path) -> None:
    found = linted(tmp_path, "trl", f"lr_scheduler_kwargs: {{min_lr: {written}}}\n", gpus=8)
    assert ("number-as-text" in codes(found)) is is_text


def test_numbers_that_the_reader_converts_are_no_finding(tmp_path: Path) -> None:
    assert codes(linted(tmp_path, "axolotl", "learning_rate: 1e-5\n", gpus=8)) == []


@pytest.mark.parametrize(("base", "lines", "is_narrow"), [
    ("axolotl", "optimizer: adamw_torch_fused\n", True),  # DDP: the checkpoint is read in bf16
    ("axolotl", "", False),  # 8 bits
    ("trl", "", False),  # fp32, the recipe's dtype
    ("trl", "dtype: bfloat16\n", True),
    ("scenario", "training: {seq_len: 512, global_batch_size: 8, precision: {params: bf16}}\n", True),
    ("scenario", "framework: megatron\ntraining: {seq_len: 512, global_batch_size: 8}\n", False)])  # fp32 masters
def test_states_of_16_bits_are_found_in_every_framework(base: str, lines: str, is_narrow: bool, tmp_path: Path) -> None:
    found = linted(tmp_path, base, lines, gpus=None if base == "scenario" else 8)
    assert ("optimizer-in-16-bits" in codes(found)) is is_narrow, found


def test_sequences_of_an_assumed_length_are_not_compared(tmp_path: Path) -> None:
    found = linted(tmp_path, "automodel", "packed_sequence: {packed_sequence_size: 0}\n")
    assert "sequence-above-positions" not in codes(found)


# ---- formats -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", SAMPLES)
def test_a_sound_recipe_of_each_format_is_judged(form: str, tmp_path: Path) -> None:
    sample = SAMPLES[form]
    answers = Answers.of_options(None if form == "accelerate" else 16, 256 if form == "megatron" else 4096, "dgx-h100",
                                 sample.settings)
    found = lint([sample.write(tmp_path)], answers)
    assert (found.format, found.problems) == (form, ())
    assert [one for one in found.findings if one.severity != "note"] == []


# ---- files ---------------------------------------------------------------------------------------------------------
def test_a_sweep_is_judged_once(tmp_path: Path) -> None:
    found = linted(tmp_path, "scenario", "sweep: {mesh.dp_shard: [2, 4, 8]}\n"
                                         "training: {seq_len: 65536, global_batch_size: 8}\n")
    assert codes(found) == ["sequence-above-positions"]


def test_a_block_that_a_part_of_a_sweep_reads_is_not_idle(tmp_path: Path) -> None:
    found = linted(tmp_path, "scenario", "sweep: {training.method: [full, lora]}\n"
                                         "training: {seq_len: 512, global_batch_size: 8, lora: {rank: 4}}\n")
    assert codes(found) == []


def test_a_large_sweep_says_what_it_leaves_out(tmp_path: Path) -> None:
    found = linted(tmp_path, "scenario", f"sweep: {{training.seq_len: {[*range(512, 529)]}}}\n")
    assert found.unjudged == (f"{tmp_path}/own.yaml: 1 further scenarios of the sweep",)


def test_files_of_a_folder_that_are_no_recipes_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(with_lines("axolotl", "adam_eps: 0.1\n"), encoding="utf-8")
    (tmp_path / "other.yml").write_text("on: push\n", encoding="utf-8")
    found = list(lint_all([str(tmp_path)], (), Answers()))
    assert [codes(one) for one in found] == [["misspelt-key"]]


@pytest.mark.parametrize("text", ["on: push\n", "- a list\n", "a: [\n", "a: &x [*x]\n"])
def test_a_named_file_that_cannot_be_judged_is_a_problem(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    (found,) = lint_all([str(tmp_path / "a.yaml")], (), Answers())
    assert found.findings == ()
    assert found.problems
