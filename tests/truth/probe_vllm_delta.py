"""Layers of Qwen 3.5 and Qwen3-Next as vLLM 0.25.1 itself builds them: elements of a rank, and states of a sequence.

    PYTHONPATH=FOLDER python tests/truth/probe_vllm_delta.py > tests/truth/vllm/delta-0.25.1.json

FOLDER and stand-ins are those of `probe_vllm_towers.py`; further ones are attention behind its projections, and routed
experts, which hold nothing here. `narrow`, `wide`: elements in 16 bits and in fp32 of one layer of each kind, by part.
`state`: shapes of one sequence in a layer of linear attention. `table`: shape of the rotary table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace as Bag
from typing import Any

import probe_vllm_towers as towers
import torch
from json_lines import listed

PRESETS = Path(__file__).resolve().parents[2] / "simcore/models/presets"
CASES = [(name, tp) for name, tps in (("qwen3.5-0.8b", (1, 2, 4)), ("qwen3.5-9b", (1, 2, 4, 8)),
                                      ("qwen3.5-35b-a3b", (1, 4, 8)), ("qwen3.5-397b-a17b", (8, 16)),
                                      ("qwen3-next-80b-a3b", (1, 2, 4, 8))) for tp in tps]


class Empty(torch.nn.Module):
    """A module without parameters."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def counted(layer: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Elements in 16 bits and in fp32, by the first two names of each parameter's path."""
    found: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for path, given in layer.named_parameters():
        part = ".".join(path.split(".")[:2]).removesuffix(".weight")
        sizes = found[given.dtype == torch.float32]
        sizes[part] = sizes.get(part, 0) + given.numel()
    return found


def measured(name: str, tp: int) -> dict[str, Any]:
    """One layer of each kind on a rank."""
    import vllm.model_executor.models.qwen3_5 as newer
    import vllm.model_executor.models.qwen3_next as older
    import vllm.platforms
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    towers.groups(tp)
    older.Attention = older.FusedMoE = Empty
    older.get_ep_group = lambda: Bag(device_group=Bag(size=lambda: 1), rank_in_group=0)
    vllm.platforms.current_platform.current_device = lambda *_: "meta"
    fields = json.loads((PRESETS / f"{name}.json").read_text(encoding="utf-8"))
    text = dict(fields.get("text_config", fields))
    config = CONFIG_MAPPING[text.pop("model_type")](**text)
    made = VllmConfig(device_config=DeviceConfig(device="cpu"))
    object.__setattr__(made, "model_config", Bag(hf_text_config=config, hf_config=config, dtype=torch.bfloat16,
                                                 multimodal_config=None, max_model_len=4096))
    kind_of = newer.Qwen3_5DecoderLayer if fields is not text and "text_config" in fields else (
        older.Qwen3NextDecoderLayer)
    row: dict[str, Any] = {"model": name, "tp": tp, "narrow": {}, "wide": {}}
    torch.set_default_dtype(torch.bfloat16)
    for kind in dict.fromkeys(config.layer_types):
        with set_current_vllm_config(made), torch.device("meta"):
            layer = kind_of(made, kind, prefix=f"model.layers.{config.layer_types.index(kind)}")
        row["narrow"][kind], row["wide"][kind] = counted(layer)
        if kind == "linear_attention":
            row["state"] = [list(shape) for shape in layer.linear_attn.get_state_shape()]
        else:
            row["table"] = list(layer.self_attn.rotary_emb.cos_sin_cache.shape)
    torch.set_default_dtype(torch.float32)
    return row


def main() -> str:
    """Text of the file."""
    towers.without_server()
    import vllm

    return listed([{"version": vllm.__version__} | measured(*case) for case in CASES])


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")
