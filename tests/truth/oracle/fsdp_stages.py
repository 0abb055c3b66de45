"""Megatron-FSDP around one stage of a small model, run by Megatron-Core's own 1F1B schedule on one CPU.

The schedule, its passes, Megatron-FSDP's hooks and pipelines are upstream's; what stages send is zeros.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import fsdp_flat, te_stub

import torch  # isort: skip
from megatron.core import parallel_state as ps  # isort: skip
from megatron.core.pipeline_parallel import schedules  # isort: skip
from megatron.core.process_groups_config import ProcessGroupCollection  # isort: skip
from megatron.core.transformer.module import Float16Module  # isort: skip
from megatron.core.transformer.transformer_config import TransformerConfig  # isort: skip

WORLD, SEQ, BATCH = 8, 8, 2


class Stage(fsdp_flat.Model):
    """One stage: the first has the embedding, the last the norm and the head."""

    def __init__(self, config: TransformerConfig, case: dict[str, Any]) -> None:
        super().__init__(case["layers"], recompute=case.get("recompute", False), plain=case.get("plain"))
        self.config, self.given = config, None
        self.is_first, self.is_last = case["stage"] == 0, case["stage"] == case["stages"] - 1
        if not self.is_first:
            del self.embedding
        if not self.is_last:
            del self.norm, self.head

    def set_input_tensor(self, given: Any) -> None:
        self.given = given[0] if isinstance(given, list) else given

    def begun(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().begun(tokens) if self.is_first else self.given

    def ended(self, x: torch.Tensor) -> torch.Tensor:
        return super().ended(x) if self.is_last else x


class Wire:
    """A communicator whose neighbours send zeros."""

    def __init__(self, config: TransformerConfig, stage: int, stages: int) -> None:
        self.pp_group = SimpleNamespace(size=lambda: stages, rank=lambda: stage)
        self.virtual_pipeline_model_parallel_size, self.config = None, config
        self.is_pp_first_stage, self.is_pp_last_stage = stage == 0, stage == stages - 1
        self.total_stages, self.current_stage = stages, stage

    def _made(self, *, missing: bool) -> list[torch.Tensor | None]:
        return [None if missing else torch.zeros(BATCH, SEQ, fsdp_flat.HIDDEN, dtype=torch.bfloat16,
                                                 requires_grad=True)]

    def recv_forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._made(missing=self.is_pp_first_stage)

    def recv_backward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._made(missing=self.is_pp_last_stage)

    def send_forward(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing moves."""

    send_backward = send_forward
    send_forward_recv_backward, send_backward_recv_forward = recv_backward, recv_forward


def run(case: dict[str, Any]) -> list[str]:
    """Events of a step that follows another, in order; an assertion of upstream's is the last word."""
    stage, stages = case["stage"], case["stages"]
    fsdp_flat.start(WORLD, stage * WORLD // stages)
    fsdp_flat.without_gpu()
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(pipeline_model_parallel_size=stages, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=stages * case["layers"], hidden_size=fsdp_flat.HIDDEN, num_attention_heads=2, bf16=True,
        params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, pipeline_model_parallel_size=stages,
        deallocate_pipeline_outputs=case.get("frees_outputs", False))
    made = fsdp_flat.Noted(WORLD, case["layers"], model=Float16Module(config, Stage(config, case)), stages=stages,
                           suggested_communication_unit_size=case["unit_size"],
                           fsdp_double_buffer=case.get("double_buffer", False), recompute=False)
    made.fsdp.config, made.fsdp.model_type = config, None
    config.no_sync_func = made.fsdp.no_sync
    wire = Wire(config, stage, stages)
    _listen(made, wire)
    alone = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = ProcessGroupCollection(tp=alone, cp=alone, embd=None, pos_embd=None, pp=wire.pp_group, dp_cp=alone)
    for _ in range(2):
        made.events.clear()
        try:
            schedules.forward_backward_pipelining_without_interleaving(
                forward_step_func=_forward_step, data_iterator=None, model=made.fsdp,
                num_microbatches=case["microbatches"], seq_length=SEQ, micro_batch_size=BATCH, p2p_communicator=wire,
                pg_collection=groups)
        except AssertionError as error:
            return [*made.events, f"AssertionError: {error}"]
        made.end_step()
    return list(made.events)


def _forward_step(_data: Any, model: Any, *_rest: Any) -> Any:
    return model(torch.zeros(BATCH, SEQ, dtype=torch.long)), lambda loss: (loss * 1, {})  # no view, as a mean is


def _listen(made: fsdp_flat.Noted, wire: Wire) -> None:
    """Passes, which are upstream's own functions; its groups ask torch.distributed for what one CPU does not have."""
    schedules.is_pp_first_stage = lambda _group: wire.is_pp_first_stage
    schedules.is_pp_last_stage = lambda _group: wire.is_pp_last_stage
    zeros = torch.zeros
    torch.zeros = lambda *size, **more: zeros(*size, **{k: v for k, v in more.items() if k != "device"})
    for name, word in (("forward_step", "forward"), ("backward_step", "backward")):
        call = getattr(schedules, name)

        def noted(*args: Any, word: str = word, call: Any = call, **kwargs: Any) -> Any:
            made.events.append(word)
            return call(*args, **kwargs)

        setattr(schedules, name, noted)
