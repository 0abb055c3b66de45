"""What Megatron-Core's interleaved schedule does on each stage, in order: its own function over passes that do nothing.

    python probe_interleaved.py > schedules/interleaved-core-0.16.1.json     (needs megatron-core and torch, no GPU)

Events are words, see README.md.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules

CASES = [(2, 2, 2, 2), (2, 2, 8, 2), (2, 3, 6, 2), (4, 2, 8, 4), (4, 3, 12, 4), (3, 2, 9, 3), (2, 2, 5, 3),
         (2, 2, 10, 4), (3, 2, 13, 5), (4, 2, 16, 8)]
"""Stages, chunks, microbatches, microbatches of a group."""

OVERLAPPED = {"overlap_p2p_comm": True, "batch_p2p_comm": False, "overlap_p2p_comm_warmup_flush": False,
              "deallocate_pipeline_outputs": True, "overlap_moe_expert_parallel_comm": False}
IDLE = {"finalize_model_grads_func": None, "timers": None, "no_sync_func": None, "param_sync_func": None,
        "sequence_parallel": False, "hidden_size": 1, "num_microbatches_with_partial_activation_checkpoints": None,
        "fine_grained_activation_offloading": False}


class Token:
    """Stands for a tensor."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Stage:
    """Stands for the communicator and for the passes of a stage: notes what happens."""

    def __init__(self, stage: int, num_stages: int, num_chunks: int) -> None:
        self.stage, self.num_stages, self.num_chunks = stage, num_stages, num_chunks
        self.pp_group = SimpleNamespace(size=lambda: num_stages, rank=lambda: stage)
        self.virtual_pipeline_model_parallel_size = num_chunks
        self.events: list[Token] = []
        self.sent: list[Token] = []
        self.config: Any = None

    def note(self, name: str = "") -> Token:
        """An event; a tensor that is received gets its name when it is used."""
        self.events.append(Token(name))
        return self.events[-1]

    # ---- the communicator ---------------------------------------------------------------------------------------
    def recv_forward(self, _shape: Any, is_first: bool) -> Token | None:
        return None if is_first else self.note()

    def recv_backward(self, _shape: Any, is_last_stage: bool) -> Token | None:
        return None if is_last_stage else self.note()

    def send_forward_recv_forward(self, _output: Any = None, *, recv_prev: bool, overlap_p2p_comm: bool = False,
                                  **_more: Any) -> Any:
        token = self.note() if recv_prev else None
        return (token, None) if overlap_p2p_comm else token

    def send_backward_recv_backward(self, _grad: Any = None, *, recv_next: bool, overlap_p2p_comm: bool = False,
                                    **_more: Any) -> Any:
        token = self.note() if recv_next else None
        return (token, None) if overlap_p2p_comm else token

    # ---- the passes ---------------------------------------------------------------------------------------------
    def forward_step(self, _func: Any, _data: Any, model: Any, _count: int, taken: Token | None, *_rest: Any,
                     **more: Any) -> tuple[Token, int]:
        out = Token(f"{model.chunk}.{more['current_microbatch']}")
        if taken is not None:
            taken.name = f"<F{out.name}"
        self.note(f"F{out.name}")
        self.sent.append(out)
        return out, 0

    def backward_step(self, _taken: Any, made: Token, grad: Token | None, *_rest: Any) -> Token:
        if grad is not None:
            grad.name = f"<B{made.name}"
        self.note(f"B{made.name}")
        return Token()

    def deallocate(self, out: Token | None, _switch: bool) -> None:
        if out is not None and out in self.sent:
            self.sent.remove(out)
            self.note(f"-{out.name}")

    def instead_of_cores(self) -> None:
        """Core's function calls these. Its own group functions ask torch.distributed, which does not run."""
        schedules.forward_step, schedules.backward_step = self.forward_step, self.backward_step
        schedules.deallocate_output_tensor = self.deallocate
        schedules.is_pp_first_stage = lambda _group: self.stage == 0
        schedules.is_pp_last_stage = lambda _group: self.stage == self.num_stages - 1


def run(number: int, num_stages: int, num_chunks: int, count: int, group: int) -> str:
    """One stage's step."""
    stage = Stage(number, num_stages, num_chunks)
    stage.instead_of_cores()
    reduce = [lambda _params, name=f"R{chunk}": stage.note(name) for chunk in range(num_chunks)]
    config = SimpleNamespace(**OVERLAPPED, **IDLE, grad_sync_func=reduce, microbatch_group_size_per_vp_stage=group,
                             virtual_pipeline_model_parallel_size=num_chunks)
    chunks = [torch.nn.Identity() for _ in range(num_chunks)]
    for place, chunk in enumerate(chunks):
        chunk.chunk, chunk.config, chunk.model_type = place, config, None
    alone = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    stage.config = config
    groups = SimpleNamespace(tp=alone, cp=alone, embd=None, pos_embd=None, pp=stage.pp_group, dp_cp=alone)
    schedules.forward_backward_pipelining_with_interleaving(
        forward_step_func=None, data_iterator=[None] * num_chunks, model=chunks, num_microbatches=count, seq_length=1,
        micro_batch_size=1, p2p_communicator=stage, pg_collection=groups)
    return " ".join(event.name for event in stage.events)


def main() -> None:
    """Print all cases."""
    zeros = torch.zeros
    torch.zeros = lambda *size, **more: zeros(*size, **{k: v for k, v in more.items() if k != "device"})
    rows = [{"stages": p, "chunks": v, "microbatches": m, "group": n, "steps": [run(s, p, v, m, n) for s in range(p)]}
            for p, v, m, n in CASES]
    print("[" + ",\n ".join(json.dumps(row) for row in rows) + "]")


if __name__ == "__main__":
    main()
