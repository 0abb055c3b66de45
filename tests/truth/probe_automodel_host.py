"""Times what the host does in Automodel's own layers, on one CPU: `host/automodel-0.7.0.json`.

    python tests/truth/probe_automodel_host.py > tests/truth/host/automodel-0.7.0.json

Nemotron-H of 2 and of 8 layers of one kind, with sizes of a few numbers, runs forward and backward; experts are split
over 8 ranks that send nothing, nothing is sharded (`probe_fully_shard.py` times that). What is timed elsewhere (the
scan, rows put in the order of experts and back) does nothing here, and what even that takes is subtracted. DeepEP's
kernels do nothing, Automodel's Python around them is timed. As in `probe_scan.py` a layer's time is told in operators.
"""

from __future__ import annotations

import importlib.machinery
import json
import logging
import os
import statistics
import warnings
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_time import Seconds, module_of, operator_s, timed  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

TOKENS, RANKS, ROUNDS = 8, 8, 60
KINDS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E", "moe_alone": "E"}
"""`moe_alone`: on one rank, by the dispatcher `torch`."""
FEW, MANY = 2, 8
SIZES = {"hidden_size": 16, "mamba_num_heads": 2, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 4,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "n_routed_experts": 16,
         "num_experts_per_tok": 2, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
         "intermediate_size": 16, "vocab_size": 128}
Grads = tuple[torch.Tensor | None, ...]


class Scan(torch.autograd.Function):
    """Takes eight tensors, as the real one does, and gives each a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *rest)
        return x.new_empty(*x.shape[:2], rest[-1].shape[0])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors)


class Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probs: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.shapes = x.shape, probs.shape
        return x.new_empty(rows, x.shape[1]), probs.new_empty(rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, to_probs: torch.Tensor) -> Grads:  # type: ignore[override]
        return grad.new_empty(ctx.shapes[0]), to_probs.new_empty(ctx.shapes[1]), None


class Unpermute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        ctx.shape = x.shape
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        return grad.new_empty(ctx.shape), None


class Multihot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: torch.Tensor, probs: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.shape = probs.shape
        return torch.empty(TOKENS, num, dtype=torch.bool), probs.new_empty(TOKENS, num)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        return None, grad.new_empty(ctx.shape), None


class Buffer:
    """DeepEP's, whose calls return at once: every rank gets as many tokens as it has, all for its own experts."""

    num_sms = 20

    def __init__(self, group: object, num_nvl_bytes: int, num_rdma_bytes: int, **_: object) -> None:
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes

    @staticmethod
    def set_num_sms(_: int) -> None: ...

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def get_dispatch_config(_: int) -> Any:
        return Buffer

    get_combine_config = get_dispatch_config

    @staticmethod
    def get_nvl_buffer_size_hint(*_: int) -> int:
        return 1

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint

    def get_dispatch_layout(self, indices: torch.Tensor, _: int, **__: object) -> tuple[object, ...]:
        return indices, None, indices, indices, None

    def dispatch(self, x: torch.Tensor, handle: object = None, topk_idx: Any = None,
                 **_: object) -> tuple[object, ...]:
        rows = x.new_empty(TOKENS, x.shape[1])
        if handle is not None:
            return rows, None, None, None, None, None
        probs = torch.ones(TOKENS, topk_idx.shape[1])
        return rows, torch.zeros(probs.shape, dtype=torch.int64), probs, [TOKENS, TOKENS], ("handle",), None

    def combine(self, x: torch.Tensor, handle: object, topk_weights: Any = None, **_: object) -> tuple[object, ...]:
        return x.new_empty(TOKENS, x.shape[1]), topk_weights, None


def _scan(zxbcdt: Any, weight: Any, bias: Any, dt_bias: Any, a: Any, *, D: Any, rmsnorm_weight: Any,
          outproj_weight: Any, **_: object) -> torch.Tensor:
    out: torch.Tensor = Scan.apply(zxbcdt, weight, bias, dt_bias, a, D, rmsnorm_weight, outproj_weight)
    return out


def _replace() -> None:
    """Modules that are not installed, before Automodel looks for them."""
    found = [module_of("deep_ep", Buffer=Buffer, __path__=[]),
             module_of("deep_ep.utils", EventOverlap=None, EventHandle=None),
             *[module_of(name, __path__=[]) for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")],
             module_of("mamba_ssm.ops.triton.ssd_combined", mamba_split_conv1d_scan_combined=_scan)]
    for module in found:
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)


def _patch() -> None:
    from nemo_automodel.components.moe.megatron import token_dispatcher

    def permute(x: torch.Tensor, maps: Any, probs: Any, num_out_tokens: int, **_: object) -> tuple[Any, Any, Any]:
        return (*Permute.apply(x, probs, num_out_tokens), maps)

    token_dispatcher.permute = permute
    token_dispatcher.unpermute = lambda x, _, restore_shape, **__: Unpermute.apply(x, restore_shape)
    token_dispatcher.fused_indices_to_multihot = Multihot.apply


def _model(pattern: str, *, spread: bool) -> torch.nn.Module:
    from nemo_automodel.components.distributed.config import FSDP2Config
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.nemotron_v3.model import NemotronHForCausalLM
    from nemo_automodel.components.moe.parallelizer import apply_ep
    from oracle.automodel import build_mesh
    from oracle.nano import NANO
    from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig

    config = NemotronHConfig(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern), **{**NANO, **SIZES})
    config.torch_dtype, config.architectures = torch.bfloat16, ["NemotronHForCausalLM"]
    backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch_mm",
                            dispatcher="deepep" if spread else "torch", enable_hf_state_dict_adapter=False)
    model = NemotronHForCausalLM(config, backend=backend)
    for name, param in model.named_parameters():
        keep = any(part in name for part in model._keep_in_fp32_modules_strict)
        param.data = param.data.to(torch.float32 if keep else torch.bfloat16)
    if spread:
        mesh = build_mesh({"world": RANKS, "ep": RANKS}, FSDP2Config()).moe_mesh
        apply_ep(model, mesh["ep"], moe_mesh=mesh)
    return model


def _timed(model: torch.nn.Module) -> Seconds:
    def loss(tokens: torch.Tensor) -> torch.Tensor:
        out = model(input_ids=tokens)
        return getattr(out, "logits", out).sum()

    def out_of() -> torch.Tensor:
        model.zero_grad()
        return torch.zeros(1, TOKENS, dtype=torch.int64)

    return timed(loss, out_of, ROUNDS)


def _stubs(kind: str) -> Seconds:
    """What the replaced parts of a layer take all the same."""
    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, requires_grad=True)

    few = [leaf(4) for _ in range(6)]
    scan = (lambda x: Scan.apply(x, *few, leaf(16, 4)), lambda: leaf(1, TOKENS, 16))
    permute = (lambda x: Permute.apply(*x, 2 * TOKENS)[0], lambda: (leaf(TOKENS, 16), leaf(TOKENS, 2)))
    unpermute = (lambda x: Unpermute.apply(x, torch.Size((TOKENS, 16))), lambda: leaf(2 * TOKENS, 16))
    multihot = (lambda x: Multihot.apply(None, x, 2)[1], lambda: leaf(TOKENS, 2))
    works = {"mamba": [scan], "moe": [permute, unpermute, multihot]}.get(kind, [])
    each = [timed(*work) for work in works]
    return sum(a for a, _ in each), sum(b for _, b in each)


def _of(kind: str) -> dict[str, float]:
    few, many = (_model(KINDS[kind] * num, spread=kind == "moe") for num in (FEW, MANY))
    found = []
    for _ in range(9):
        unit, less, small, large = operator_s(), _stubs(kind), _timed(few), _timed(many)
        found.append([((b - a) / (MANY - FEW) - stub) / unit for a, b, stub in zip(small, large, less, strict=True)])
    forward, backward = (statistics.median(column) for column in zip(*found, strict=True))
    return {"forward": round(forward, 1), "backward": round(backward, 1)}


def main() -> None:
    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE=str(RANKS), RANK="0", LOCAL_RANK="0")
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    _replace()
    _patch()
    versions = {"automodel": "0.7.0", "torch": torch.__version__.partition("+")[0]}
    print(json.dumps({"versions": versions, "operators": {kind: _of(kind) for kind in KINDS}}, indent=1))


if __name__ == "__main__":
    main()
