"""Measures what RADIO and Automodel's projector behind it allocate and free, event by event, in one training step.

    PYTHONPATH=RADIO:TIMM python tests/truth/probe_radio.py > tests/truth/tape/radio-automodel-0.7.0-torch-2.13.0.json

A small RADIO (NVlabs RADIO c0f3701 over timm 1.0.31) and `NemotronOmniForConditionalGeneration.forward` of
nemo-automodel 0.7.0 run on a CPU in bf16, before a stand-in for the decoder; towers and projector are frozen, as
recipes freeze them, and attention is torch's. Births and deaths of storages are logged by
`simcore/verify/real/steps/tracker.py` and cut at the borders of modules, as in `probe_vision.py`. `names`: parameters
of the tower and its projector, with their shapes.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from nemo_automodel.components.models.nemotron_omni import model as omni
from nemo_automodel.components.utils.model_utils import enable_radio_vit_fused_attn
from oracle.steps.tracker import Tracker
from torch import nn


class Named(type):
    """A class whose members are their names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Missing(ModuleType):
    """A module of torchvision, whose classes timm's names want and nothing here runs."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (nn.Module,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds all of torchvision."""

    def find_spec(self, name: str, *_: Any) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision") else None

    def create_module(self, spec: Any) -> ModuleType:
        return Missing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(Finder())

from radio.enable_cpe_support import enable_cpe  # noqa: E402
from radio.input_conditioner import get_default_conditioner  # noqa: E402
from radio.radio_model import RADIOModel, Resolution  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

WIDTH, HEADS, LAYERS, SIDE, HIDDEN, FFN, SEQ, TOKEN = 160, 4, 2, 512, 96, 224, 64, 18
CASES: dict[str, dict[str, Any]] = {
    "one": {"images": 1, "sides": [96, 160]}, "two": {"images": 2, "sides": [128, 96]},
    "frozen embedding": {"images": 1, "sides": [96, 96], "frozen": True}}


class Tower(nn.Module):
    """The published file's wrapper of RADIO."""

    def __init__(self) -> None:
        super().__init__()
        vit = VisionTransformer(img_size=224, patch_size=16, embed_dim=WIDTH, depth=LAYERS, num_heads=HEADS,
                                num_classes=0)
        vit.norm = nn.Identity()
        enable_cpe(vit, SIDE, num_cls_tokens=3, num_registers=7)
        generator = vit.patch_generator
        generator.video_embedder = nn.Linear(2 * 3 * 256, WIDTH, bias=False)
        self.radio_model = RADIOModel(vit, get_default_conditioner(), 16, SIDE, Resolution(224, 224))
        self.radio_model.make_preprocessor_external()

    def forward(self, x: torch.Tensor) -> Any:
        return self.radio_model.forward(x)


class Decoder(nn.Module):
    """Stands in for the decoder: an embedding, and a product that keeps its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, HIDDEN), nn.Linear(HIDDEN, 8, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.head(inputs_embeds))


class Model(omni.NemotronOmniForConditionalGeneration):
    """Automodel's own forward around both."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.vision_model, self.language_model = Tower(), Decoder()
        self.vision_projector = omni.VisionProjector(WIDTH, FFN, HIDDEN)
        self.sound_encoder, self.img_context_token_id, self.sound_context_token_id = None, TOKEN, 27
        self.patch_size, self.downsample_ratio, self.ps_version = 16, 0.5, "v2"
        self.config = SimpleNamespace(llm_config=SimpleNamespace(output_hidden_states=False))


def measured(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Signed bytes of every section of the second step."""
    torch.manual_seed(0)
    model = Model().to(torch.bfloat16).train()
    enable_radio_vit_fused_attn(model)
    for name, parameter in model.named_parameters():
        cold = ("vision", *(["language_model.embedding"] if "frozen" in case else []))
        parameter.requires_grad_(not name.startswith(cold))
    rows, columns = (side // 32 for side in case["sides"])
    ids = torch.full((1, SEQ), 7)
    ids[0, 1:1 + case["images"] * rows * columns] = TOKEN
    given = {"input_ids": ids, "pixel_values": torch.rand(case["images"], 3, *case["sides"]).to(torch.bfloat16),
             "image_flags": torch.ones(case["images"], 1, dtype=torch.long)}
    tracker = Tracker()
    watched(model, tracker)
    with tracker:
        for one in (*model.parameters(), *model.buffers(), *given.values()):
            tracker.number_of(one)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            gc.collect()
            tracker.phase, start = "fwd", len(tracker.events)
            out = model(**given)
            tracker.mark("returned")
            tracker.phase = "bwd"
            out.logits.float().sum().backward()
            del out
            gc.collect()
            tracker.mark("end")
    marks = [(place, label) for place, label in tracker.markers if place >= start]
    ends = [place for place, _ in marks[1:]] + [len(tracker.events)]
    return [{"at": label, "events": [change for _, change in tracker.events[place:end]]}
            for (place, label), end in zip(marks, ends, strict=True)]


def watched(model: Any, tracker: Tracker) -> None:
    """Marks where each part begins, the gradient of the merged sequence is whole, and the embedding's begins."""
    vit = model.vision_model.radio_model.model
    parts = {"embedding": model.language_model.embedding, "patches": vit.patch_generator,
             **{f"layer {i}": block for i, block in enumerate(vit.blocks)}, "projector": model.vision_projector,
             "decoder": model.language_model.head}
    for name, module in parts.items():
        module.register_forward_pre_hook(lambda *_, name=name: tracker.mark(name))

    def begin(_module: Any, args: Any) -> None:
        if args[0].requires_grad:
            args[0].register_hook(lambda _: tracker.mark("backward projector"))

    def end(_module: Any, _args: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda _: tracker.mark("backward embedding"))

    model.language_model.head.register_forward_pre_hook(begin)
    model.language_model.embedding.register_forward_hook(end)


def main() -> None:
    """Prints the file."""
    names = [f"{name} {'x'.join(map(str, p.shape))}" for name, p in Model().named_parameters()
             if "language" not in name]
    sizes = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "side": SIDE, "hidden": HIDDEN, "ffn": FFN, "seq": SEQ}
    rows = [f'"sizes": {json.dumps(sizes)}', f'"names": {json.dumps(names)}']
    for name, case in CASES.items():
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in measured(case))
        rows.append(f'{json.dumps(name)}: {{"case": {json.dumps(case)}, "sections": [\n{lines}]}}')
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
