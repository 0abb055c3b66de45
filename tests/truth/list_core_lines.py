"""Lines of Megatron-Core 0.16.1 in Megatron-LM main, where the same lines stand elsewhere.

    python tests/truth/list_core_lines.py CORE MEGATRON_GIT

Comes in: the folder `megatron/core` of the 0.16.1 wheel, and a git directory of Megatron-LM with d98e8a64. Goes out:
`simcore/frameworks/core_lines.json`: of each file, runs of three or more lines that are equal in both: first line in
0.16.1, number of lines, and how much further down main has them. A file that main does not have is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "simcore" / "frameworks" / "core_lines.json"
MAIN = "d98e8a64"
FILES = ("distributed/distributed_data_parallel.py", "distributed/finalize_model_grads.py",
         "distributed/param_and_grad_buffer.py", "extensions/transformer_engine.py", "fp8_utils.py",
         "model_parallel_config.py", "models/common/embeddings/rope_utils.py", "models/gpt/gpt_layer_specs.py",
         "optimizer/__init__.py", "optimizer/distrib_optimizer.py", "optimizer/muon.py",
         "optimizer/layer_wise_optimizer.py", "optimizer/optimizer_config.py", "parallel_state.py",
         "pipeline_parallel/schedules.py", "ssm/mamba_block.py", "ssm/mamba_mixer.py", "tensor_parallel/layers.py",
         "tensor_parallel/mappings.py", "transformer/attention.py", "transformer/dot_product_attention.py",
         "transformer/mlp.py", "transformer/moe/experts.py", "transformer/moe/fused_a2a.py",
         "transformer/moe/moe_layer.py", "transformer/moe/moe_utils.py", "transformer/moe/router.py",
         "transformer/moe/shared_experts.py", "transformer/moe/token_dispatcher.py",
         "transformer/multi_latent_attention.py", "transformer/multi_token_prediction.py",
         "transformer/pipeline_parallel_layer_layout.py", "transformer/transformer_block.py",
         "transformer/transformer_config.py", "transformer/transformer_layer.py")


def runs(before: list[str], after: list[str]) -> list[list[int]]:
    """Runs of equal lines: first line, number of lines, distance."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return [[one.a + 1, one.size, one.b - one.a] for one in blocks if one.size >= 3]


def main(core: Path, git: str) -> None:
    found = {}
    for name in FILES:
        ask = ["git", "-C", git, "show", f"{MAIN}:megatron/core/{name}"]
        answer = subprocess.run(ask, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            lines = (core / name).read_text(encoding="utf-8").splitlines()
            found[name] = runs(lines, answer.stdout.splitlines())
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in sorted(found))
    TARGET.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
