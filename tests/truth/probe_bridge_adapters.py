"""What Megatron-Bridge's adapter of a linear allocates, event by event, with dropout before and after it.

    python tests/truth/probe_bridge_adapters.py > tests/truth/adapters/bridge-0.3.1.json

As `probe_adapters.py`, of megatron-bridge 0.3.1's `ParallelLinearAdapter` over megatron-core 0.16.1's linears, on one
rank of PyTorch's fake process group: only the adapter, of an input in [sequence, batch, hidden].
"""

from __future__ import annotations

import json
from typing import Any

from oracle import megatron, te_stub

config = megatron.config  # the stand-in of TransformerEngine is there before Bridge is imported

import probe_adapters  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.peft.utils import ParallelLinearAdapter  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "pre": {"dropout": 0.05, "position": "pre"}, "post": {"dropout": 0.05, "position": "post"}}
CASES = {f"{variant}, {'row' if row else 'column'}": what | {"row": row}
         for variant, what in VARIANTS.items() for row in (False, True)}


def built(case: dict[str, Any]) -> Any:
    return ParallelLinearAdapter(
        probe_adapters.WIDE, probe_adapters.NARROW, 8, base_linear_name="linear_proj" if case["row"] else "linear_qkv",
        activation="identity", input_is_parallel=case["row"], dropout=case.get("dropout", 0.0),
        dropout_position=case.get("position", "pre"), model_parallel_config=config({}), alpha=16).train()


if __name__ == "__main__":
    probe_adapters.prepare()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(create_gloo_process_groups=False)
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.is_available = lambda: False
    probe_adapters.built = built
    made = {"rows": probe_adapters.BATCH * probe_adapters.SEQ, "shape": [probe_adapters.NARROW, probe_adapters.WIDE]}
    rows = [f"{json.dumps(name)}: {json.dumps(case | {'found': probe_adapters.measured(case)})}"
            for name, case in CASES.items()]
    print(json.dumps(made)[:-1] + ', "cases": {\n' + ",\n".join(rows) + "\n}}")
