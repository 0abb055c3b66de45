"""The stored matrix of models is what the engine answers, and what `run` then says."""

from __future__ import annotations

import pytest

from simcore.docgen.asking import PLACED, asked, scenario_of
from simcore.docgen.served import asked_of, in_words, served
from simcore.frameworks.registry import known_frameworks
from simcore.models.graph import known_presets, model_config
from simcore.simulate import check, place, simulate

FAMILIES = {str(model_config(name, None, "test")["model_type"]): name for name in reversed(known_presets())}
"""The first preset of each family."""
SAMPLE = [(name, (known_frameworks() * 2)[number % 9:][:6:5]) for number, name in enumerate(FAMILIES.values())]
"""Each family with two frameworks, in turn: asking all takes a minute."""
KINDS = (("qwen3-0.6b", "fsdp2", "full", "yes"), ("deepseek-v4-flash", "fsdp2", "full", PLACED),
         ("deepseek-v3.2", "zero2", "full", PLACED), ("gemma-3-270m", "automodel", "qlora", "yes"),
         ("gpt2", "fsdp1", "lora", "refused"), ("zamba2-1.2b", "automodel", "lora", "not yet"))
"""Preset, framework, method and answer, with each kind of answer."""


def test_every_preset_and_framework_is_stored() -> None:
    assert tuple(served()) == known_presets()
    assert {tuple(entry["answers"]) for entry in served().values()} == {known_frameworks()}


@pytest.mark.parametrize(("preset", "frameworks"), SAMPLE)
def test_what_is_stored_is_answered(preset: str, frameworks: tuple[str, ...]) -> None:
    told = dict(served()[preset])
    for key in ("answers", "with"):
        told[key] = {name: words for name, words in told[key].items() if name in frameworks}
    assert told == asked_of(preset, frameworks), "run: python -m simcore.docgen.served > simcore/models/served.json"


def test_every_framework_is_asked() -> None:
    assert {name for _, frameworks in SAMPLE for name in frameworks} == set(known_frameworks())


@pytest.mark.parametrize(("preset", "framework", "method", "answer"), KINDS)
def test_the_matrix_a_check_and_a_run_agree(preset: str, framework: str, method: str, answer: str) -> None:
    keys = {"model": preset, "framework": framework, "mesh": {"dp_shard": 2}, "training": {"method": method}}
    assert served()[preset]["answers"][framework][method] == asked(keys) == answer
    scenario = scenario_of(keys)
    ran, checked, placed = simulate(scenario), check(scenario), place(scenario)
    assert ran.status == checked.status == {"yes": "ok", "refused": "illegal"}.get(answer, "error")
    assert ran.problems == checked.problems
    assert (placed.status == "ok") == (answer in ("yes", PLACED))


def test_what_a_step_takes_besides_is_said() -> None:
    """Automodel's experts are spread over ranks; a cap of scores, and an indexer, have attentions of their own."""
    told = {name: served()[name]["with"].get("automodel", {}).get("full") for name in (
        "deepseek-v3", "deepseek-v3.2", "gemma-2-2b", "qwen3-30b-a3b")}
    assert list(told.values()) == ["ep", "ep, attn: sdpa", "attn_implementation: eager", None]
    alone = {"model": "deepseek-v3", "framework": "automodel", "mesh": {"dp_shard": 2}}
    assert (asked(alone), asked({**alone, "mesh": {"dp_shard": 2, "ep": 2}})) == ("not yet", "yes")
    assert in_words(("full", "lora", "qlora"), {"full": "ep", "lora": "ep"}) == "full, LoRA with ep; QLoRA"


def test_known_holes_are_holes() -> None:
    """Automodel has no layers of Zamba 2 here; Megatron packs no base."""
    assert set(served()["zamba2-7b"]["answers"]["automodel"].values()) == {"not yet"}
    assert {entry["answers"]["megatron"]["qlora"] for entry in served().values()} <= {"refused", "not yet"}
