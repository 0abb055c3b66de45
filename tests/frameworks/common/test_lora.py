"""LoRA by the last part of a module's name."""

from __future__ import annotations

import pytest

from simcore.errors import NotYet
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.common.lora import name_adapters
from simcore.models.graph import build, model_config
from simcore.models.tensor import TensorSpec

GRAPH = build(model_config("nemotron-3-tiny", None, "model"), "hf")


def adapted(name: str, choice: LoraChoice) -> list[TensorSpec]:
    number = next(i for i, kind in enumerate(GRAPH.kinds) if kind.name == name)
    return list(name_adapters(GRAPH.kinds[number], GRAPH.tensors[number], choice))


def modules(found: list[TensorSpec]) -> set[str]:
    return {spec.name.split(".lora_")[0] for spec in found}


def test_a_hit_gets_two_matrices() -> None:
    """k_proj maps 256 to 2 heads of 64."""
    down, up = adapted("attention", LoraChoice(4, ("k_proj",)))
    assert (down.name, down.shape) == ("mixer.k_proj.lora_a.weight", (4, 256))
    assert (up.name, up.shape) == ("mixer.k_proj.lora_b.weight", (128, 4))
    assert down.trainable
    assert {down.component, up.component} == {"adapters"}


@pytest.mark.parametrize(("kind", "hit"), [
    ("attention", {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"}), ("mamba", {"mixer.in_proj"}),
    ("moe", {"mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"}), ("embedding", set()), ("head", set())])
def test_defaults_hit_linears_alone(kind: str, hit: set[str]) -> None:
    """Routed experts, norms, convolution and router are no linears."""
    assert modules(adapted(kind, LoraChoice(8))) == hit


def test_the_head_is_lm_head() -> None:
    down, up = adapted("head", LoraChoice(4, ("lm_head",)))
    assert (down.name, up.name, down.shape[0], up.shape[1]) == ("lora_a.weight", "lora_b.weight", 4, 4)


def test_exclusions_win() -> None:
    choice = LoraChoice(8, ("q_proj", "o_proj"), ("o_proj",))
    assert modules(adapted("attention", choice)) == {"mixer.q_proj"}


def test_names_are_ends_of_paths_in_whole_parts() -> None:
    """PEFT compares the end of a module's path behind a dot."""
    assert adapted("attention", LoraChoice(8, ("proj", "r.q_proj"))) == []
    assert modules(adapted("attention", LoraChoice(8, ("mixer.q_proj",)))) == {"mixer.q_proj"}
    assert modules(adapted("moe", LoraChoice(8, ("up_proj",), ("shared_experts.up_proj",)))) == set()


@pytest.mark.parametrize("name", ["layers.0.mixer.q_proj", "3.mixer.q_proj"])
def test_names_of_single_layers_are_not_yet_modelled(name: str) -> None:
    with pytest.raises(NotYet, match="names single layers"):
        adapted("attention", LoraChoice(8, (name,)))
