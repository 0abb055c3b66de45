"""Asks Megatron-Bridge for the parameters of `NemotronOmniModel`, with a small decoder, whole and on a rank over tp.

    PYTHONPATH=MEGATRON_LM:MEGATRON_BRIDGE/src python tests/truth/probe_bridge_omni.py

It writes models/bridge-omni-main-2026-08-22.json.
Sources: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d. As `probe_bridge_vision.py`; towers have the published
model's sizes, which the provider says itself. `whole`: names and shapes on one rank; `parallel`: on a rank of tp 2;
`frozen`: names without a gradient where recipes freeze RADIO and Parakeet; `silent`: without sound, and with one frame
in a patch; `tiles`: `NemotronVLModel`, which is Nemotron Nano 2 VL, on one rank, `split`: on a rank of tp 2.
Equal rows of layers are counted: "NUMBER NAME SHAPE", with * for a layer's number.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.models.nemotron_omni.nemotron_omni_provider import (  # noqa: E402
    NEMOTRON_OMNI_EXPANDED_SEQUENCE_CONTRACT,
    NemotronOmniModelProvider,
)
from megatron.bridge.models.nemotron_vl.nemotron_vl_provider import NemotronVLModelProvider  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

STORED = Path(__file__).parent / "models" / "bridge-omni-main-2026-08-22.json"
SOUND: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8,
                         "intermediate_size": 4096, "num_mel_bins": 128, "subsampling_factor": 8}
TEXT: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 2, "kv_channels": 32,
                        "vocab_size": 1024, "mamba_num_heads": 16, "mamba_head_dim": 32, "mamba_state_dim": 16,
                        "mamba_num_groups": 8, "ffn_hidden_size": 128}

OF_TILES = ("tiles", "split")


def measured(tp: int, kind: str) -> list[str]:
    """Names and shapes of the parameters of a rank; `kind`: a key of the file."""
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, create_gloo_process_groups=False)
    frozen, hears = kind == "frozen", kind != "silent"
    shared: dict[str, Any] = {
        "add_bias_linear": False, "bf16": True, "params_dtype": torch.bfloat16, "perform_initialization": False,
        "gradient_accumulation_fusion": False, "tensor_model_parallel_size": tp, "sequence_parallel": tp > 1,
        "num_layers": None, "share_embeddings_and_output_weights": False, "hybrid_layer_pattern": "M*-",
        "normalization": "RMSNorm", "position_embedding_type": "none", **TEXT}
    provider = NemotronVLModelProvider(**shared, seq_length=4096) if kind in OF_TILES else NemotronOmniModelProvider(
        **shared, image_token_index=18, sound_context_token_id=27, vision_class_token_len=10,
        has_sound=hears, sound_config=SOUND if hears else None, sound_hidden_size=1024,
        sound_projection_hidden_size=4096, separate_video_embedder=True, temporal_patch_dim=1 + hears, seq_length=64,
        use_vision_backbone_fp8_arch=False, nemotron_omni_contract=NEMOTRON_OMNI_EXPANDED_SEQUENCE_CONTRACT,
        freeze_vision_model=frozen, freeze_sound_encoder=frozen)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    provider.finalize()
    with torch.device("meta"):
        model = provider.provide(pre_process=True, post_process=True)
    rows = Counter(f"{re.sub(r'layers[.][0-9]+', 'layers.*', name)} {'x'.join(map(str, p.shape))}"
                   for name, p in model.named_parameters() if not (frozen and p.requires_grad))
    return [f"{count} {row}" for row, count in rows.items()]


def asked(tp: int, kind: str) -> list[str]:
    """In a process of its own."""
    made = subprocess.run([sys.executable, __file__, str(tp), kind], capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr)
    found: list[str] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Writes the file."""
    if len(sys.argv) == 3:
        print(json.dumps(measured(int(sys.argv[1]), sys.argv[2])))
        return
    rows = {"sound": SOUND, "text": TEXT, "whole": asked(1, "whole"), "parallel": asked(2, "parallel"),
            "frozen": asked(1, "frozen"), "silent": asked(1, "silent"),
            "tiles": asked(1, "tiles"), "split": asked(2, "split")}
    STORED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
