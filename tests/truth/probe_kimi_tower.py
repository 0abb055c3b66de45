"""Measures what MoonViT, Kimi-VL's projector and its image tokens allocate and free, event by event, in one step.

    python tests/truth/probe_kimi_tower.py > tests/truth/tape/kimi-tower-0.7.0-torch-2.13.0.json

`KimiVLModel.forward` of nemo-automodel 0.7.0 runs on a CPU in bf16, before a stand-in for the decoder. torch's own
profiler logs the allocator, without a dispatch mode, under which torch's attention would add its mask in a new tensor;
sections are cut at the borders of modules, and in backward where a part's gradient is whole. Numbers that a CPU puts in
tensors of 8 bytes or less are left out. `names`: parameters of the small model's tower and its projector, with their
shapes. `attention`: how the tower attends in a model that is read from a file with flash-attn asked for.
"""

from __future__ import annotations

import gc
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from nemo_automodel._transformers.model_init import get_hf_config  # noqa: E402
from nemo_automodel.components.models.kimivl import model as kimi  # noqa: E402
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

HIDDEN, SEQ, TOKEN = 48, 64, 18
VISION = {"patch_size": 14, "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2,
          "intermediate_size": 136, "init_pos_emb_height": 9, "init_pos_emb_width": 7}
FROZEN, TRAINED = ("vision_tower",), ()
CASES: dict[str, dict[str, Any]] = {
    "one": {"images": 1, "sides": [84, 140], "frozen": FROZEN},
    "two": {"images": 2, "sides": [112, 84], "frozen": FROZEN},
    "projector frozen": {"images": 2, "sides": [56, 112], "frozen": ("vision_tower", "multi_modal_projector")},
    "trained": {"images": 1, "sides": [84, 140], "frozen": TRAINED},
    "two trained": {"images": 2, "sides": [112, 84], "frozen": TRAINED},
}


class Decoder(nn.Module):
    """Stands in for the decoder: an embedding, and a product that keeps its input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.head = nn.Embedding(64, HIDDEN), nn.Linear(HIDDEN, 8, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.head(inputs_embeds)


class Model(kimi.KimiVLModel):
    """Automodel's own forward around both."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        config = kimi.KimiVLConfig(vision_config=VISION, text_config={"hidden_size": HIDDEN})
        self.vision_tower = kimi.MoonVitPretrainedModel(config.vision_config)
        self.multi_modal_projector = kimi.KimiVLMultiModalProjector(config)
        self.language_model, self.media_placeholder_token_id = Decoder(), TOKEN


def mark(name: str) -> None:
    with record_function(f"at {name}"):
        pass


def watched(model: Model) -> None:
    """Marks where each part begins, forward and backward."""
    tower = model.vision_tower
    parts = {"embedding": model.language_model.embed_tokens, "patches": tower.patch_embed,
             **{f"layer {i}": block for i, block in enumerate(tower.encoder.blocks)},
             "norm": tower.encoder.final_layernorm, "projector": model.multi_modal_projector,
             "decoder": model.language_model.head}
    for name, module in parts.items():
        module.register_forward_pre_hook(lambda *_, name=name: mark(name))

    def begin(_module: Any, args: Any) -> None:
        if args[0].requires_grad:
            args[0].register_hook(lambda _: mark("backward projector"))

    def end(name: str, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda _: mark(f"backward {name}"))

    model.language_model.head.register_forward_pre_hook(begin)
    for name in ("embedding", "patches", "layer 0", "layer 1", "norm"):
        parts[name].register_forward_hook(lambda _module, _args, out, name=name: end(name, out))


def measured(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Signed bytes of every section of the second step."""
    torch.manual_seed(0)
    model = Model().to(torch.bfloat16).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(case["frozen"]))
    rows, columns = (side // 14 for side in case["sides"])
    ids = torch.full((1, SEQ), 7)
    ids[0, 1:1 + case["images"] * rows * columns // 4] = TOKEN
    grids = torch.tensor([[rows, columns]] * case["images"])
    pixels = torch.rand(case["images"] * rows * columns, 3, 14, 14).to(torch.bfloat16)
    watched(model)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            mark("begin")
            out = model(input_ids=ids, pixel_values=pixels, image_grid_hws=grids)
            mark("returned")
            out.float().sum().backward()
            mark("end")
        del out
    return sections(profiled)


def sections(profiled: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name().startswith("at "):
            found.append({"at": event.name().removeprefix("at "), "events": []})
        elif event.name() == "[memory]" and found and abs(event.nbytes()) > 8:
            found[-1]["events"].append(event.nbytes())
    return found


def attention() -> dict[str, str]:
    """What the tower's layers are told, by what is asked of the model's loader."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({
            "model_type": "kimi_vl", "architectures": ["KimiVLForConditionalGeneration"],
            "vision_config": {"model_type": "moonvit", **VISION}, "text_config": {}}))
        for asked in ("flash_attention_2", "sdpa"):
            with torch.device("meta"):
                tower = kimi.MoonVitPretrainedModel(get_hf_config(folder, asked).vision_config)
            found[asked] = str(tower.encoder.blocks[0].attn_implementation)
    return found


def main() -> None:
    """Prints the file."""
    names = [f"{name} {'x'.join(map(str, p.shape))}" for name, p in Model().named_parameters()
             if "language" not in name]
    sizes = {"hidden": HIDDEN, "seq": SEQ, "vision": VISION}
    rows = [f'"sizes": {json.dumps(sizes)}', f'"names": {json.dumps(names)}', f'"attention": {json.dumps(attention())}']
    for name, case in CASES.items():
        lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in measured(case))
        rows.append(f'{json.dumps(name)}: {{"case": {json.dumps(case)}, "sections": [\n{lines}]}}')
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
