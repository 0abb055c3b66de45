"""Asks Megatron-Bridge for the parameters of models whose tower is transformers' own, on one rank, and of two over tp.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_bridge_whole.py

It writes models/bridge-whole-towers-main-2026-08-22.json. Sources and stand-ins are those of `probe_bridge_vision.py`.
`averaged`: names whose gradients are averaged over tp (average_gradients_across_tp_domain).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.models.ministral3.ministral3_provider import Ministral3ModelProvider  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers import AutoConfig  # noqa: E402

STORED = Path(__file__).parent / "models" / "bridge-whole-towers-main-2026-08-22.json"
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 256, "llama_4_scaling_beta": 0.1}
MINISTRAL: dict[str, Any] = {
    "model_type": "mistral3", "spatial_merge_size": 2,
    "text_config": {"model_type": "ministral3", "hidden_size": 256, "vocab_size": 512, "intermediate_size": 512,
                    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                    "rope_parameters": ROPE},
    "vision_config": {"model_type": "pixtral", "hidden_size": 96, "head_dim": 24, "intermediate_size": 264,
                      "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 14, "image_size": 1540,
                      "hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}}


def provider_of(tp: int) -> Any:
    """Bridge's provider, as its converter fills it (ministral3_bridge.py:86)."""
    text = MINISTRAL["text_config"]
    fields = {key: value for key, value in MINISTRAL.items() if key != "model_type"}
    return Ministral3ModelProvider(
        hidden_size=text["hidden_size"], ffn_hidden_size=text["intermediate_size"],
        num_layers=text["num_hidden_layers"], num_attention_heads=text["num_attention_heads"],
        num_query_groups=text["num_key_value_heads"], kv_channels=text["head_dim"], seq_length=128,
        share_embeddings_and_output_weights=False, vocab_size=text["vocab_size"], bf16=True,
        params_dtype=torch.bfloat16, hf_config=AutoConfig.for_model("mistral3", **fields), perform_initialization=False,
        gradient_accumulation_fusion=False, tensor_model_parallel_size=tp, sequence_parallel=tp > 1)


def measured(tp: int) -> dict[str, list[str]]:
    """Names and shapes of the parameters of a rank, and names of those that are averaged."""
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, create_gloo_process_groups=False)
    provider = provider_of(tp)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    provider.finalize()
    with torch.device("meta"):
        model = provider.provide(pre_process=True, post_process=True)
    named = list(model.named_parameters())
    return {"parameters": [f"{name} {'x'.join(map(str, p.shape))}" for name, p in named],
            "averaged": [name for name, p in named if getattr(p, "average_gradients_across_tp_domain", False)]}


def asked(tp: int) -> dict[str, list[str]]:
    """In a process of its own."""
    made = subprocess.run([sys.executable, __file__, str(tp)], capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr)
    found: dict[str, list[str]] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Writes the file."""
    if len(sys.argv) == 2:
        print(json.dumps(measured(int(sys.argv[1]))))
        return
    rows = {"fields": MINISTRAL, "whole": asked(1), "parallel": asked(2)}
    STORED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
