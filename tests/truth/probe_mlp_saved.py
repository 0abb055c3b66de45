"""What megatron-core's dense MLP keeps for backward, on one CPU: storages that autograd saves, without parameters.

    python tests/truth/probe_mlp_saved.py > tests/truth/models/mlp-saved-core-0.16.1.json

megatron-core's own `MLP` and linears (local layers, tp 1) in bf16; of the compiled functions of `fusions/` the Python
runs, since what they save is chosen outside of them. `saved`: bytes by distinct storage, the largest first.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.mlp import MLP  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from torch.nn.functional import gelu, silu  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

ROWS, HIDDEN, FFN = 64, 32, 96
CASES: dict[str, dict[str, Any]] = {
    f"{kind}{', biases' if biased else ''}{', fused' if fused else ''}":
        {"gated_linear_unit": kind == "swiglu", "activation_func": silu if kind == "swiglu" else gelu,
         "add_bias_linear": biased, "bias_activation_fusion": fused}
    for kind in ("swiglu", "gelu") for biased in (False, True) for fused in (False, True)
    if kind == "swiglu" or (biased and fused)}


def saved(case: dict[str, Any]) -> list[int]:
    config = TransformerConfig(num_layers=1, hidden_size=HIDDEN, ffn_hidden_size=FFN, num_attention_heads=4, bf16=True,
                               params_dtype=torch.bfloat16, use_cpu_initialization=True,
                               gradient_accumulation_fusion=False, **case)
    module = MLP(config, get_gpt_layer_local_spec().submodules.mlp.submodules).to(torch.bfloat16)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return x

    x = torch.randn(ROWS, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out, _ = module(x)
    sizes = sorted((s.nbytes() for s in kept.values()), reverse=True)
    assert out.shape == x.shape
    return sizes


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    ps.initialize_model_parallel(create_gloo_process_groups=False)
    rows = {name: saved(case) for name, case in CASES.items()}
    print("{" + f'"core": {json.dumps(version("megatron-core"))}, "shape": {json.dumps([ROWS, HIDDEN, FFN])}, "saved": '
          + "{\n" + ",\n".join(f"{json.dumps(name)}: {row}" for name, row in rows.items()) + "\n}}")


if __name__ == "__main__":
    main()
