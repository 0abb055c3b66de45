"""Asks Megatron-Bridge for the parameters of `Qwen3VLModel`, a small Qwen3-VL, whole and on one rank of two over tp.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_bridge_vision.py

It writes models/bridge-vision-main-2026-08-22.json.
Sources: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d. The model is built on the meta device over a fake process
group; Transformer Engine is replaced by `simcore/verify/real/te_stub.py`. `whole`: names and shapes on one rank;
`parallel`: on a rank of tp 2. `frozen`: names without a gradient where the recipes of pretraining freeze both models
but the projection. `later`: names on the second of two pipeline stages.
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
from megatron.bridge.models.qwen_vl.qwen3_vl_provider import Qwen3VLModelProvider  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from torch.nn.functional import silu  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig  # noqa: E402

STORED = Path(__file__).parent / "models" / "bridge-vision-main-2026-08-22.json"
VISION: dict[str, Any] = {"depth": 3, "hidden_size": 96, "intermediate_size": 160, "num_heads": 4,
                          "out_hidden_size": 256, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
TEXT: dict[str, Any] = {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 128, "num_attention_heads": 8,
                        "num_query_groups": 4, "kv_channels": 32, "vocab_size": 1024}


def started(tp: int, pp: int = 1, stage: int = 0, world: int = 8) -> None:
    """Makes this process a rank of a pipeline stage, with parallel groups and without a device."""
    rank = stage * (world // pp)
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0")
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, create_gloo_process_groups=False,
                                 pipeline_model_parallel_size=pp)


def provided(provider: Any, *, first: bool, last: bool) -> Any:
    """The model on the meta device; `first`, `last`: of a pipeline."""
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    provider.finalize()
    with torch.device("meta"):
        return provider.provide(pre_process=first, post_process=last)


def provider_of(tp: int, pp: int, vision: dict[str, Any], text: dict[str, Any], **given: Any) -> Any:
    return Qwen3VLModelProvider(**{
        "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": silu, "add_bias_linear": False,
        "bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16,
        "perform_initialization": False, "hidden_dropout": 0.0, "gradient_accumulation_fusion": False,
        "tensor_model_parallel_size": tp, "sequence_parallel": tp > 1, "pipeline_model_parallel_size": pp,
        "share_embeddings_and_output_weights": False, "vision_config": Qwen3VLVisionConfig(**vision), **text, **given})


def measured(tp: int, stage: int, *, frozen: bool) -> list[str]:
    """Names and shapes of the parameters of a rank: without pipeline stages (`stage` -1), or of one of two."""
    pp = 1 + (stage >= 0)
    started(tp, pp)
    provider = provider_of(tp, pp, VISION, TEXT, freeze_language_model=frozen, freeze_vision_model=frozen)
    model = provided(provider, first=stage < 1, last=stage != 0)
    return [f"{name} {'x'.join(map(str, p.shape))}" for name, p in model.named_parameters()
            if not (frozen and p.requires_grad)]


def asked(tp: int, stage: int, *, frozen: bool = False) -> list[str]:
    """In a process of its own."""
    made = subprocess.run([sys.executable, __file__, str(tp), str(stage), str(int(frozen))], capture_output=True,
                          text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr)
    found: list[str] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Writes the file."""
    if len(sys.argv) == 4:
        print(json.dumps(measured(int(sys.argv[1]), int(sys.argv[2]), frozen=sys.argv[3] == "1")))
        return
    rows = {"vision": VISION, "text": TEXT, "whole": asked(1, -1), "parallel": asked(2, -1),
            "frozen": asked(1, -1, frozen=True), "later": asked(1, 1)}
    STORED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
