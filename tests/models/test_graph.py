"""The model as a graph: order, edges, kinds, and where models come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import small
from every import expect_of_every
from simcore.errors import InputError, NotYet
from simcore.inputs import document
from simcore.models.blocks import LayerKind
from simcore.models.graph import build, known_presets, model_config
from simcore.models.tensor import TensorSpec
from simcore.operators.megatron.tensors import BUILT

TINY = model_config("nemotron-3-tiny", None, "model")


TYPES = {preset: model_config(preset, None, "model")["model_type"] for preset in known_presets()}
SERVED = [(preset, implementation) for preset in known_presets() for implementation in ("automodel", "hf", "megatron")
          if (implementation != "automodel" or TYPES[preset] in ("llama", "nemotron_h"))
          and (implementation != "megatron" or TYPES[preset] in BUILT)]


def test_implementations_agree_on_every_component() -> None:
    expect_of_every(((" ".join(case), case) for case in SERVED), expect_agreement)


def expect_agreement(case: tuple[str, str]) -> None:
    preset, implementation = case
    fields = model_config(preset, None, "model")
    graph, reference = build(fields, implementation), build(fields, "hf")
    assert set(small.components(graph)) == set(small.components(reference))
    names = small.components(graph)
    assert {name: graph.count(name) for name in names} == {name: reference.count(name) for name in names}
    assert sum(graph.count(name) for name in names) == graph.count()


def test_nodes_know_their_kind() -> None:
    graph = build(TINY, "hf")
    number = graph.network.nodes["model.layers.3"]["kind"]
    assert graph.kinds[number].name == "attention"
    assert (graph.layers[4].path, graph.layers[4].kind) == ("model.layers.3", number)


def test_equal_configurations_share_one_graph() -> None:
    assert build(dict(TINY), "hf") is build(dict(reversed(list(TINY.items()))), "hf")
    assert build(TINY, "hf") is not build(TINY, "megatron")


def test_changed_tensors_leave_the_rest() -> None:
    def freeze(kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(t, trainable=False) for t in specs) if kind.name == "moe" else specs

    graph = build(TINY, "hf")
    frozen = graph.with_tensors(freeze)
    moe = sum(graph.count(c) for c in ("routed_experts", "shared_experts", "router")) + 2 * 256
    assert frozen.count() == graph.count()
    assert graph.count(trainable=True) - frozen.count(trainable=True) == moe


def test_a_file_is_a_model_too(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(TINY)))
    assert model_config(str(path), None, "model") == TINY
    assert model_config(str(path), {"hidden_size": 512}, "model")["hidden_size"] == 512


def test_a_file_is_parsed_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "config.json", []
    parse = document.parse_document

    def counted(text: str, name: str) -> document.Document:
        read.append(name)
        return parse(text, name)

    monkeypatch.setattr(document, "parse_document", counted)
    fields = dict(model_config("llama-3.2-1b", None, "model"))
    path.write_text(json.dumps(fields), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert [model_config(name, None, "model")["vocab_size"] for name in (str(path), "config.json", str(path))] == [
        fields["vocab_size"]] * 3
    assert len(read) == 1
    path.write_text(json.dumps({**fields, "vocab_size": 1000, "more": 1}), encoding="utf-8")
    assert model_config(str(path), None, "model")["vocab_size"] == 1000
    assert len(read) == 2


def test_what_is_unknown_is_refused_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama-3\.1-8b'"):
        model_config("llama-3.1-8c", None, "model")
    with pytest.raises(InputError, match="'hiden_size': the configuration has no such field"):
        model_config("llama-tiny", {"hiden_size": 1}, "model")
    with pytest.raises(InputError, match=r"model_type: expected one of arcee, bailing_moe, .*, zamba2, got 'bert'"):
        build({"model_type": "bert"}, "hf")


def test_a_family_that_is_not_known_is_told_at_the_files_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n "hidden_size": 64,\n "model_type": "bert"\n}')
    with pytest.raises(InputError, match=r"config\.json:3: model configuration: model_type: expected one of arcee"):
        model_config(str(path), None, "f.yaml:2")
    assert model_config(str(path), {"model_type": "llama"}, "f.yaml:2")["model_type"] == "llama"


def test_a_family_that_an_implementation_is_not_described_of_is_refused_by_name() -> None:
    with pytest.raises(NotYet, match=r"f\.yaml:3: not yet: Automodel's own layers of mixtral"):
        build(model_config("mixtral-8x7b", None, "model"), "automodel", "f.yaml:3")


def test_layers_of_a_tower_that_feed_the_decoder_are_numbers() -> None:
    """A mapping among them was no number, and ended with a traceback."""
    fields = model_config("qwen3-vl-4b", None, "")
    vision = {**fields["vision_config"], "deepstack_visual_indexes": [5, {"2": 17}]}
    with pytest.raises(InputError, match="deepstack_visual_indexes: expected rising numbers of layers below depth"):
        build(model_config("qwen3-vl-4b", {"vision_config": vision}, ""), "hf")
