"""DeepSeek-V3's layers in Automodel: names and events against Automodel itself, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.errors import NotYet
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import SNAPSHOT_2026_06_08, AutomodelOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
MOE = 1  # the layer with experts
T = 512


def _graph(**overrides: Any) -> ModelGraph:
    return build(model_config("deepseek-v3", STORED["shape"] | overrides, "test"), "automodel")


def test_tensors_are_those_that_automodel_registers() -> None:
    graph = _graph()
    found: list[Any] = []
    buffers: list[Any] = []
    for layer in graph.layers:
        prefix = f"{layer.path}." if graph.kinds[layer.kind].block is None else ""
        for t in graph.tensors[layer.kind]:
            (buffers if t.is_buffer else found).append([prefix + t.name, list(t.shape)])
    assert found == STORED["registered"]["parameters"]
    assert buffers == [b[:2] for b in STORED["registered"]["buffers"] if b[0] != "model.freqs_cis"]


# ---- a dense layer, event by event -----------------------------------------------------------------------------------
def _record(number: int, batch: int, seq: int, *, ep: int = 1, **given: Any) -> RecordedLayer:
    graph = _graph(**given.pop("overrides", {}))
    kind = graph.layers[1 + number].kind
    params = {}
    for t in graph.tensors[kind]:
        if not t.is_buffer:
            shape = (t.shape[0] // ep, *t.shape[1:]) if t.dims[0] == "experts" else t.shape
            params[t.name] = Param(t.name, shape, "bf16", trainable=True)
    run = LayerWorkload(batch, seq, "bf16", params, ep=ep, rows_per_token=2 << 16, **given)
    return record(graph.kinds[kind], run, {}, {})


def _changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_dense_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    layer = _record(0, case["batch"], case["seq"], overrides=case.get("overrides", {}),
                    checkpoint="full" if case.get("checkpoint") else "none")
    assert grouped(_changes(layer.forward)) == grouped(row["forward"])
    assert grouped(_changes(layer.backward)) == grouped(row["backward"])


# ---- experts behind HybridEP -----------------------------------------------------------------------------------------
FAKE = replace(SNAPSHOT_2026_06_08, dispatcher="hybridep", fake_balanced_gate=True)


def _live(section: Section) -> int:
    return sum(_changes(section))


def _kept(options: AutomodelOptions, checkpoint: str = "none") -> float:
    """Bytes a token that a layer with experts keeps, whatever the length; its output counts in place of its input."""
    halves = [_live(_record(MOE, 1, tokens, ep=4, checkpoint=checkpoint, options=options).forward)
              for tokens in (T, 2 * T)]
    return (halves[1] - halves[0]) / T


def test_a_balanced_gate_keeps_nothing_of_its_own() -> None:
    """A learned one keeps: the input in fp32, scores before and after the choice, what it takes and divides.

    Its probabilities are fp32 and get a gradient, so the positions that they are spread to are kept too.
    """
    learned = replace(SNAPSHOT_2026_06_08, dispatcher="hybridep")
    experts, k, h = 8, 2, 256
    scores, chosen = 4 * experts, 8 * k + 2 * 4 * k
    fake = _kept(FAKE)
    assert 4 * h + scores + chosen < _kept(learned) - fake < 4 * h + 8 * scores + 4 * chosen
    names = {p.name for p, _, _ in _record(MOE, 1, T, ep=4, options=FAKE).grads}
    assert "mlp.gate.weight" not in names
    assert "mlp.experts.down_projs" in names


@pytest.mark.parametrize(("replay", "handle"), [(False, 0), (True, 4 * (4 + 5 * 2))])
def test_a_checkpoint_keeps_hybridep_s_handle_where_it_is_replayed(replay: bool, handle: int) -> None:
    """For every token of 4 ranks a place (int32), and a mask and a row (int32) for each of 2 experts (executor.cu)."""
    options = AutomodelOptions(replays_dispatch=replay, dispatcher="hybridep", fake_balanced_gate=True)
    assert _kept(options, "full") == 2 * 256 + handle


def test_a_learned_gate_is_run_again_in_the_snapshot() -> None:
    learned = AutomodelOptions(dispatcher="hybridep")
    assert _kept(replace(SNAPSHOT_2026_06_08, dispatcher="hybridep"), "full") == 2 * 256
    assert _kept(learned, "full") == 2 * 256 + 4 * 8 + (4 + 8) * 2  # router's product, values and indices of the chosen


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("options", [FAKE, AutomodelOptions(dispatcher="hybridep"),
                                     AutomodelOptions(dispatcher="deepep")])
def test_backward_leaves_only_gradients(options: AutomodelOptions, checkpoint: str) -> None:
    layer = _record(MOE, 1, T, ep=4, checkpoint=checkpoint, options=options)
    live = sum(_live(s) for s in (layer.forward, layer.after, layer.late, layer.backward))
    assert live == sum(num_bytes for _, _, num_bytes in layer.grads)


def test_hybridep_sends_a_token_once_to_each_rank() -> None:
    layer = _record(MOE, 1, T, ep=4, options=FAKE)
    sent = [row[3] for s in (layer.forward, layer.backward) for row in s.rows if row[0] == Op.COLLECTIVE]
    missed = 6 * 5 / (8 * 7)  # two of eight experts, none of them on a rank that has two
    assert sent == [round(4 * T * (1 - missed)) * 2 * 256] * 4


def test_one_token_more_is_not_predicted() -> None:
    with pytest.raises(NotYet, match="trains none of deepseek_v3"):
        _graph(mtp_num_layers=1)
