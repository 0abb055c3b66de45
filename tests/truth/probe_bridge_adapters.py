"""What Megatron-Bridge's adapter of a linear allocates, event by event, with dropout before and after it.

    python tests/truth/probe_bridge_adapters.py > tests/truth/adapters/bridge-0.3.1.json

As `probe_adapters.py`, of megatron-bridge 0.3.1's `ParallelLinearAdapter` over megatron-core 0.16.1's linears, on one
rank of PyTorch's fake process group: only the adapter, of an input in [sequence, batch, hidden]. DoRA is `DoRALinear`
around a frozen torch linear that returns its output and no bias, on the first of `tp` ranks, whose part it is.
"""

from __future__ import annotations

from typing import Any

from json_lines import with_cases
from oracle import megatron, te_stub
from oracle.apart import run_apart

config = megatron.config  # the stand-in of TransformerEngine is there before Bridge is imported

import probe_adapters  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.peft.dora_layers import DoRALinear, ParallelLinearDoRAAdapter  # noqa: E402
from megatron.bridge.peft.utils import ParallelLinearAdapter  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "pre": {"dropout": 0.05, "position": "pre"}, "post": {"dropout": 0.05, "position": "post"}}
DORA: dict[str, dict[str, Any]] = {"dora": {"dora": True}, "dora, two ranks": {"dora": True, "tp": 2}}
CASES = {f"{variant}, {'row' if row else 'column'}": what | {"row": row}
         for variant, what in (VARIANTS | DORA).items() for row in (False, True)}


class Base(torch.nn.Module):  # type: ignore[misc]
    """A frozen linear, as DoRALinear calls it."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(rows, columns, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.linear(x, self.weight), None


class First(torch.nn.Module):  # type: ignore[misc]
    """A module's first output."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


def built(case: dict[str, Any]) -> Any:
    """An adapter; its input is as wide as in the other files on every rank, also where it is row parallel."""
    tp, row = case.get("tp", 1), case["row"]
    kind = ParallelLinearDoRAAdapter if case.get("dora") else ParallelLinearAdapter
    adapter = kind(
        probe_adapters.WIDE * (tp if row else 1), probe_adapters.NARROW * (1 if row else tp), 8,
        base_linear_name="linear_proj" if row else "linear_qkv",
        activation="identity", input_is_parallel=row, dropout=case.get("dropout", 0.0),
        dropout_position=case.get("position", "pre"), model_parallel_config=config({"tp": tp, "sp": False}),
        alpha=16).train()
    if not case.get("dora"):
        return adapter
    return First(DoRALinear(Base(probe_adapters.WIDE, probe_adapters.NARROW), adapter)).train()


def run(case: dict[str, Any]) -> dict[str, Any]:
    tp = case.get("tp", 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, create_gloo_process_groups=False)
    return probe_adapters.measured(case)


if __name__ == "__main__":
    probe_adapters.prepare()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.is_available = lambda: False
    probe_adapters.built = built
    made = {"rows": probe_adapters.BATCH * probe_adapters.SEQ, "shape": [probe_adapters.NARROW, probe_adapters.WIDE]}
    print(with_cases(made, run_apart(CASES, run)))
