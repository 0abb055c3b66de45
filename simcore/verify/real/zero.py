"""DeepSpeed's ZeRO around a dense model of transformers, whole steps of real tensors on a CPU, on rank 0.

Nothing is compiled. Collectives do nothing and are noted with the bytes of their largest tensor. Four steps are run:
ZeRO-3 records its order in the first ones. Sequences are short, since nothing that is compared depends on their length.

Case: `stage`, `fields` (all of a configuration), `world`, `checkpoint`, `microbatches`, `options` of
`zero_optimization`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from .steps.products import Zeros

NOTED = {"all_reduce": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_gather_into_tensor": "all_gather",
         "reduce_scatter_tensor": "reduce_scatter"}
TOKENS, STEPS = 16, 4
FEW_BYTES = 8
"""Largest call, in bytes, of the norm and of the search for infinities."""
CALLS: list[list[Any]] = []


def found(case: dict[str, Any]) -> dict[str, Any]:
    """Parts of every parameter, collectives of the last step's passes, bytes of masters and what the update gathers."""
    engine, vocabulary = started(case)
    with Zeros():
        for _ in range(STEPS):
            CALLS.clear()
            for _ in range(case["microbatches"]):
                tokens = torch.randint(0, vocabulary, (1, TOKENS))
                engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
                passes = len(CALLS)
                engine.step()
    sent, update = CALLS[:passes], CALLS[passes:]
    return {"versions": {name: version(name) for name in ("deepspeed", "torch", "transformers")},
            "tensors": [[name, part(p).numel(), str(p.dtype).replace("torch.", "")]
                        for name, p in engine.module.named_parameters()],
            "calls": [call for call in sent if call[-1] > FEW_BYTES],
            "sizes": {"masters": 4 * sum(t.numel() for t in masters(engine.optimizer, case["stage"])),
                      "update": sum(size for kind, *_, size in update if kind == "all_gather" and size > FEW_BYTES)}}


def part(p: torch.Tensor) -> torch.Tensor:
    """Part of a parameter that the rank keeps."""
    return getattr(p, "ds_tensor", p)


def masters(optimizer: Any, stage: int) -> list[torch.Tensor]:
    return optimizer.fp32_partitioned_groups_flat if stage == 3 else optimizer.single_partition_of_fp32_groups


def prepare() -> None:
    """Collectives are noted from the beginning: DeepSpeed takes them when it is imported."""
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="12345",
                      TRANSFORMERS_VERBOSITY="error")
    for name, kind in NOTED.items():
        setattr(dist, name, noting(kind, getattr(dist, name)))
    logging.disable(logging.CRITICAL)
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def noting(kind: str, call: Any) -> Any:
    def noted(*given: Any, **named: Any) -> Any:
        every = [*given, *named.values()]
        listed = [x for one in every if isinstance(one, list) for x in one]
        largest = max((x for x in every if torch.is_tensor(x)), key=bytes_of, default=None)
        group = next((x for x in every if isinstance(x, dist.ProcessGroup)), None)
        told = listed or [largest]
        CALLS.append([kind, "", dist.get_world_size(group), str(told[0].dtype).replace("torch.", ""),
                      sum(map(bytes_of, told))])
        return call(*given, **named)
    return noted


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def started(case: dict[str, Any]) -> tuple[Any, int]:
    """The engine, and the vocabulary of its model."""
    prepare()
    import deepspeed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM

    os.environ.update(RANK="0", WORLD_SIZE=str(case["world"]))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    fields = dict(case["fields"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    if case["checkpoint"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), fused=True), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": case["microbatches"],
            "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": case["stage"], **case["options"]}})
    return engine, config.vocab_size
