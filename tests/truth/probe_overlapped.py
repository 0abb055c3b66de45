"""What Megatron-Core keeps between two steps where token exchanges overlap with another microbatch, and where not.

    python tests/truth/probe_overlapped.py > tests/truth/schedules/overlapped-core-0.16.1.json

Runs core's own schedule without pipeline stages (`forward_backward_no_pipelining`, `combined_1f1b.py`) over a small
GPT with experts of local layers, in fp32 on a CPU, on one rank. CUDA's streams and events do nothing; the exchange of
tokens, which on one rank returns its input, copies it as on several. `hidden`: storages alive after the third step that
have as many bytes as a hidden state. Needs megatron-core and torch; a process for each case.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

HIDDEN, SEQ, BATCH, STEPS = 64, 32, 2, 3
CASES: list[dict[str, Any]] = [
    {"overlap": overlap, "layers": layers, "microbatches": microbatches, "fields": fields}
    for overlap, layers, microbatches, fields in (
        (False, 3, 3, {}), (True, 3, 3, {}), (True, 5, 3, {}), (True, 3, 1, {}),
        (True, 3, 2, {"moe_shared_expert_intermediate_size": 64}),
        (True, 3, 2, {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]}))]


class Quiet:
    """Stands for an event, a stream, a tracker of random states."""

    cuda_stream = 0

    def __init__(self, *_given: Any, **_named: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given, **_named: self

    @contextlib.contextmanager
    def fork(self, *_given: Any) -> Iterator[None]:
        yield


class Copy(torch.autograd.Function):
    """An exchange of tokens: new tensors in both directions."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.clone()


def without_cuda() -> None:
    """Streams and events that do nothing; tensors that are asked for on a GPU are made on the CPU."""
    quiet = Quiet()
    for name in ("Event", "Stream"):
        setattr(torch.cuda, name, Quiet)
    for name in ("current_stream", "default_stream"):
        setattr(torch.cuda, name, lambda *_: quiet)
    torch.cuda.stream = lambda _: contextlib.nullcontext()  # type: ignore[assignment,misc]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]

    def on_cpu(make: Any) -> Any:
        @functools.wraps(make)
        def made(*given: Any, **named: Any) -> Any:
            return make(*given, **(named | {"device": "cpu"} if "cuda" in str(named.get("device")) else named))
        return made

    for name in ("zeros", "ones", "arange", "tensor"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


def built(case: dict[str, Any]) -> Any:
    """(model, its configuration) of core, with what it takes from TransformerEngine and CUDA replaced."""
    import megatron.core.tensor_parallel.random as seeds
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29713")
    dist.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    seeds._set_cuda_rng_state = seeds._get_cuda_rng_state = lambda *_, **__: Quiet()
    token_dispatcher.all_to_all = lambda _group, x, *_, **__: Copy.apply(x)
    idle = {"get_cuda_rng_tracker": lambda *_, **__: Quiet(), "te_general_gemm": None,
            "activation_recompute_forward": lambda *_, **__: contextlib.nullcontext(),
            "fp8_autocast": lambda *_, **__: contextlib.nullcontext()}
    for module in [module for name, module in sys.modules.items() if name.startswith("megatron.core")]:
        for name, made in idle.items():
            if name == "get_cuda_rng_tracker" and name not in vars(module):
                continue
            setattr(module, name, made)
        vars(module).setdefault("FP8GlobalStateManager", type("", (), {"is_fp8_enabled": staticmethod(lambda: False)}))
    config = TransformerConfig(
        num_layers=case["layers"], hidden_size=HIDDEN, ffn_hidden_size=128, num_attention_heads=4, num_moe_experts=4,
        moe_router_topk=2, moe_ffn_hidden_size=128, add_bias_linear=False, use_cpu_initialization=True,
        gradient_accumulation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
        moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="none",  # noqa: S106
        persist_layer_norm=False, calculate_per_token_loss=True, **case["fields"])
    config.overlap_moe_expert_parallel_comm = case["overlap"]  # on one rank the constructor refuses it
    spec = get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=False)
    return GPTModel(config, spec, vocab_size=512, max_sequence_length=SEQ)


def step(model: Any, microbatches: int) -> None:
    """Forward and backward of a step by core's schedule; gradients are dropped."""
    from megatron.core.pipeline_parallel import schedules

    def mean(out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        return out.float().mean(), torch.tensor(BATCH * SEQ), {}

    def forward(_data: Any, model: Any, return_schedule_plan: bool = False) -> Any:
        tokens, places = torch.randint(0, 512, (BATCH, SEQ)), torch.arange(SEQ).expand(BATCH, SEQ)
        mask = torch.triu(torch.ones(BATCH, 1, SEQ, SEQ), 1).bool()
        run = model.build_schedule_plan if return_schedule_plan else model
        return run(tokens, places, mask, labels=tokens), mean

    schedules.forward_backward_no_pipelining(
        forward_step_func=forward, data_iterator=None, model=[model], num_microbatches=microbatches, seq_length=SEQ,
        micro_batch_size=BATCH, forward_only=False)
    for parameter in model.parameters():
        parameter.grad = None


def measured(case: dict[str, Any]) -> int:
    """Number of storages of a hidden state's size that outlast a step."""
    without_cuda()
    model = built(case)
    for _ in range(STEPS):
        step(model, case["microbatches"])
    gc.collect()
    mine = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    alive = {tensor.untyped_storage().data_ptr() for tensor in gc.get_objects() if isinstance(tensor, torch.Tensor)
             and tensor.untyped_storage().nbytes() == 4 * SEQ * BATCH * HIDDEN}
    return len(alive - mine)


def main() -> None:
    """All cases, each in a process of its own."""
    if len(sys.argv) == 2:
        print(measured(CASES[int(sys.argv[1])]))
        return
    rows = []
    for number, case in enumerate(CASES):
        made = subprocess.run([sys.executable, __file__, str(number)], capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(made.stderr)
        rows.append(case | {"hidden": int(made.stdout.splitlines()[-1])})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
