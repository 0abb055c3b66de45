"""Measures core's RADIO before its layers, and what stands around image tokens, event by event, forward and backward.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_radio_core.py

It writes tape/radio-core-main-2026-08-22.json. Sources: Megatron-LM d98e8a64 (`RADIOViTModel`, `LLaVAModel`) and
Megatron-Bridge 067f987d (`NemotronOmniModel`). Their own code runs on a CPU in bf16 on one rank, a small RADIO with an
identity in the place of its layers; births and deaths of storages are logged by
`simcore/verify/real/steps/tracker.py`. `tiles`: in training, as Nemotron Nano 2 VL's; `images`: of any size, in the
mode of evaluation, as Omni's. `shuffled`, `put`, `collapsed`: what follows.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.models.nemotron_omni import modeling_nemotron_omni as omni  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.models.multimodal import llava_model as llava  # noqa: E402
from megatron.core.models.vision import radio  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

STORED = Path(__file__).parent / "tape" / "radio-core-main-2026-08-22.json"
WIDTH, SIDE, HIDDEN, SEQ = 160, 256, 96, 64


class Layers(nn.Module):
    """Stands in for the layers, and marks where they begin: a sum, whose gradient is a tensor of its own."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.began: Callable[[str], None] = lambda _: None

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        self.began("layers")
        return x * 1


def built(*, tiles: bool) -> Any:
    radio.TransformerBlock = Layers
    config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=4, bf16=True,
                               params_dtype=torch.bfloat16, gradient_accumulation_fusion=False,
                               use_cpu_initialization=True)
    torch.manual_seed(0)
    model = radio.RADIOViTModel(config, None, class_token_len=16 if tiles else 10, img_h=64, img_w=64, max_img_h=SIDE,
                                max_img_w=SIDE, patch_dim=16, dynamic_resolution=not tiles, force_eval_mode=not tiles,
                                force_cpe_eval_mode=not tiles)
    return model.train()


def logged(run: Callable[[Tracker], torch.Tensor], *given: torch.Tensor) -> list[dict[str, Any]]:
    """Signed bytes of forward and backward of `run` from marks to marks."""
    tracker = Tracker()
    with tracker:
        for one in given:
            tracker.number_of(one)
        tracker.phase, start = "fwd", len(tracker.events)
        tracker.mark("forward")
        out = run(tracker)
        tracker.mark("returned")
        if out.requires_grad:
            grad = torch.ones_like(out)
            tracker.phase = "bwd"
            tracker.mark("backward")
            out.backward(grad)
            del grad
        del out
        gc.collect()
        tracker.mark("end")
    marks = [(place, label) for place, label in tracker.markers if place >= start]
    ends = [place for place, _ in marks[1:]] + [len(tracker.events)]
    return [{"at": label, "events": [change for _, change in tracker.events[place:end]]}
            for (place, label), end in zip(marks, ends, strict=True)]


def tower(*, tiles: bool, images: int, frozen: bool) -> list[dict[str, Any]]:
    model = built(tiles=tiles)
    for parameter in model.parameters():
        parameter.requires_grad_(not frozen)
    if tiles:
        pixels, given = torch.rand(images, 3, 64, 64).to(torch.bfloat16), {}
    else:
        sizes = torch.tensor([[96, 64]] * images)
        ends = torch.arange(images + 1, dtype=torch.int32) * 24
        pixels = torch.rand(1, 24 * images, 768).to(torch.bfloat16)
        given = {"imgs_sizes": sizes, "packed_seq_params": PackedSeqParams(
            qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=24, max_seqlen_kv=24)}

    def run(tracker: Tracker) -> Any:
        model.decoder.began = tracker.mark
        return model(pixels, **given)

    return logged(run, *model.parameters(), pixels)


def shuffled(*, trains: bool) -> list[dict[str, Any]]:
    x = torch.rand(1, 24, WIDTH).to(torch.bfloat16).requires_grad_(trains)
    return logged(lambda _: omni._pixel_shuffle_dynamic_resolution(x, height=6, width=4), x)


def put(*, trains: bool) -> list[dict[str, Any]]:
    embedded = torch.rand(SEQ, 1, HIDDEN).to(torch.bfloat16).requires_grad_(True)
    ids, tokens = torch.full((1, SEQ), 7), torch.rand(6, HIDDEN).to(torch.bfloat16).requires_grad_(trains)
    ids[0, 1:7] = 18
    return logged(lambda _: omni.NemotronOmniModel._merge_projected_media(embedded, ids, tokens, 18, None), embedded,
                  ids, tokens)


def collapsed(*, trains: bool) -> list[dict[str, Any]]:
    text = torch.rand(1, SEQ - 3, HIDDEN).to(torch.bfloat16).requires_grad_(True)
    tokens = torch.rand(4, 1, HIDDEN).to(torch.bfloat16).requires_grad_(trains)
    ids = torch.full((1, SEQ - 3), 7)
    ids[0, 5] = 99
    model = SimpleNamespace(
        add_decoder=True, _dynamic_resolution=False, img_seq_len=4, _language_is_pipeline_parallel=False,
        _language_max_sequence_length=SEQ, pre_process=True, post_process=False, context_parallel_lm=1, _img_seq_len=4)
    labels, mask, tiles = torch.zeros_like(ids), torch.ones(ids.shape), torch.ones(1, dtype=torch.int)
    return logged(lambda _: llava.LLaVAModel._preprocess_data(model, tokens, text, ids, mask, labels, False, None, 99,
                                                              tiles)[0], text, tokens, ids, labels, mask, tiles)


def main() -> None:
    """Writes the file."""
    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    te_stub.use_dummy_rng()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]
    ps.initialize_model_parallel(create_gloo_process_groups=False)
    rows = {f"{'tiles' if tiles else 'images'} {images}{' frozen' if frozen else ''}": tower(
        tiles=tiles, images=images, frozen=frozen) for tiles in (True, False) for images in (1, 2) for frozen in (
            False, True)}
    for name, run in (("shuffled", shuffled), ("put", put), ("collapsed", collapsed)):
        rows |= {name: run(trains=True), f"{name} frozen": run(trains=False)}
    sizes = {"width": WIDTH, "side": SIDE, "hidden": HIDDEN, "seq": SEQ}
    lines = [f'"sizes": {json.dumps(sizes)}'] + [f"{json.dumps(name)}: [\n" + ",\n".join(
        json.dumps(one, separators=(",", ":")) for one in row) + "]" for name, row in rows.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
