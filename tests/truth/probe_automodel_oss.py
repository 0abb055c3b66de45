"""Measures layers of nemo-automodel 0.7.0's GPT-OSS: attention, gate, experts with biases; what the model registers.

    python tests/truth/probe_automodel_oss.py > tests/truth/tape/automodel-oss-0.7.0-torch-2.13.0.json

Fake tensors on a CPU that say they are on CUDA, one process. Upstream's `Block` with an MLP in the place of experts,
its `Gate`, and its `GroupedExpertsDeepEP` with what a dispatcher hands it. Stand-ins: norms, the compiled rotation and
attention by TransformerEngine as in `probe_automodel_dense.py`, with a parameter for the sinks; `flex_attention` as
Inductor's lowering allocates (torch 2.13 `_inductor/kernel/flex/flex_attention.py`): output, logsumexp and its scaled
copy, in backward delta and three gradients; the compiled activation keeps its inputs and makes their gradients;
Triton's kernels do nothing. Sizes decide how biases are added, so rows are as many as upstream's thresholds ask for.
"""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_mla as mla
import torch
from json_lines import by_name
from nemo_automodel.components.attention.flex_attention import FlexAttention
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.gpt_oss import layers as oss_layers
from nemo_automodel.components.models.gpt_oss import model as oss
from nemo_automodel.components.moe import experts
from nemo_automodel.components.moe.layers import Gate
from oracle.steps.tracker import Tracker
from probe_automodel_sparse import Dense
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention.flex_attention import create_block_mask
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig

SHAPE = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 640, "num_hidden_layers": 2,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 8,
         "num_experts_per_tok": 2, "sliding_window": 64}
LAYERS: dict[str, dict[str, Any]] = {
    "flex": {"attn": "flex", "batch": 2, "seq": 192},
    "flex of one, checkpointed": {"attn": "flex", "batch": 1, "seq": 128, "checkpoint": True},
    "te": {"attn": "te", "batch": 2, "seq": 192},
    "te checkpointed": {"attn": "te", "batch": 1, "seq": 128, "checkpoint": True},
}
GATES: dict[str, dict[str, Any]] = {"gate": {}, "gate unbalanced": {"router_aux_loss_coef": 0.0}}
EXPERTS: dict[str, dict[str, Any]] = {
    "experts": {"rows": 2048}, "experts in chunks": {"rows": 16384}, "frozen experts": {"rows": 2048, "frozen": True},
    "frozen experts in chunks": {"rows": 16384, "frozen": True},
    "experts replayed by chunks": {"rows": 10000, "intermediate_size": 16384},
    "frozen experts replayed by chunks": {"rows": 10000, "intermediate_size": 16384, "frozen": True},
}
BACKEND = BackendConfig(attn="flex", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)


class Flex(torch.autograd.Function):
    """[b, heads, s, d] in and out, and the scaled logsumexp."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, raw = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        scaled = q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, raw)
        return out, scaled

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor, _scaled: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _raw = ctx.saved_tensors
        _delta = q.new_empty(q.shape[:3], dtype=torch.float32)
        return tuple(x.new_empty(x.shape) for x in (q, k, v))


class WithSinks(torch.autograd.Function):
    """[b, s, heads, d] in and out, with one number a head."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        out, statistics = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics, sinks)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _statistics, sinks = ctx.saved_tensors
        made = tuple(x.new_empty(x.shape) for x in (q, k, v, sinks))
        _work = q.new_empty((*q.shape[:3], q.shape[3] + 1), dtype=torch.float32)
        return made


class Activated(torch.autograd.Function):
    """Both columns' half, weighted."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, probs)
        return x.new_empty((x.shape[0], x.shape[1] // 2))

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, probs = ctx.saved_tensors
        to_x = x.new_empty(x.shape) if ctx.needs_input_grad[0] else None
        return to_x, probs.new_empty(probs.shape) if ctx.needs_input_grad[1] else None


class Made(dict[Any, Any]):
    """Masks of every size, which the first step has made."""

    def __contains__(self, _key: object) -> bool:
        return True

    def __getitem__(self, _key: Any) -> None:
        return None


class Launch:
    """A Triton kernel that does nothing."""

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_args, **_named: None


def config(**given: Any) -> GptOssConfig:
    made = GptOssConfig(**SHAPE | given)
    made.torch_dtype = torch.bfloat16
    return made


def registered() -> dict[str, Any]:
    with torch.device("meta"):
        model = oss.GptOssForCausalLM(config(), backend=BACKEND)
    return {"parameters": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()]}


def block_of(case: dict[str, Any]) -> Any:
    made = config()
    oss.MoE = lambda *_: Dense(made.hidden_size, made.intermediate_size, "torch", dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    block = oss.Block(0, made, None, BACKEND)
    torch.set_default_dtype(torch.float32)
    if case["attn"] == "te":
        sinks = block.self_attn.sinks
        block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch", rope_fusion=False)
        block.self_attn.attn_func = lambda q, k, v, **_: WithSinks.apply(q, k, v, sinks)
    return block.train()


def began(shape: tuple[int, ...], tr: Tracker) -> tuple[torch.Tensor, list[int]]:
    seen: list[int] = []
    leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
    return mla.Around.apply(leaf, shape, seen, tr.events), seen


def layer_events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    FlexAttention.block_masks = Made()
    with fake:
        block = block_of(case)
    shape = (case["batch"], case["seq"], SHAPE["hidden_size"])
    with fake, tr:
        run = checkpoint_wrapper(block, preserve_rng_state=False) if case.get("checkpoint") else block
        x, seen = began(shape, tr)
        table = torch.empty(*shape[:2], SHAPE["head_dim"])
        for known in (*block.parameters(), table):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        out = run(x, freqs_cis=table)
        middle = len(tr.events)
        del x
        mla.Around.apply(out, (), seen, tr.events).backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


def mask_bytes(batch: int, seq: int, window: int) -> dict[str, Any]:
    """Bytes of a mask that stays, made by upstream's own functions."""
    mod = FlexAttention._get_sliding_window_mask_mod(window) if window else FlexAttention._get_causal_mask_mod()
    mask = create_block_mask(mod, batch, SHAPE["num_attention_heads"], seq, seq, device="cpu")
    kept = [x for x in mask.as_tuple() if isinstance(x, torch.Tensor)]
    return {"batch": batch, "seq": seq, "window": window, "bytes": sum(x.numel() * x.element_size() for x in kept)}


def gate_events(given: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), dense.FAKE
    with torch.device("meta"):
        moe_config = oss.GptOssForCausalLM(config(**given), backend=BACKEND).model.moe_config
    with fake:
        gate = Gate(moe_config, gate_precision=None).train()
    with fake, tr:
        x, seen = began((192, SHAPE["hidden_size"]), tr)
        mask = torch.ones(192, dtype=torch.bool)
        for known in (*gate.parameters(), mask):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        weights, indices, _ = gate(x, mask, None)
        del indices, _
        middle = len(tr.events)
        loss = mla.Around.apply(weights, (), seen, tr.events)
        del weights
        loss.backward()
        del x
    changes = [change for _, change in tr.events]
    after, before = seen
    return {"case": given, "forward": changes[start:middle], "backward": changes[after:before - 1]}


def expert_events(case: dict[str, Any]) -> dict[str, Any]:
    """Rows come as permuted ones do; what goes home is the output itself."""
    tr, fake, rows = Tracker(), FakeTensorMode(), case["rows"]
    with torch.device("meta"):
        fields = {"intermediate_size": case.get("intermediate_size", SHAPE["intermediate_size"])}
        moe_config = oss.GptOssForCausalLM(config(**fields), backend=BACKEND).model.moe_config
    torch.set_default_dtype(torch.bfloat16)
    with fake:
        module = experts.GroupedExpertsDeepEP(moe_config, BACKEND).train()
    torch.set_default_dtype(torch.float32)
    module.static_routing, module.ep_size, module.n_routed_experts = True, 1, SHAPE["num_local_experts"]
    module.expert_activation = Activated.apply
    for p in module.parameters():
        p.requires_grad_(not case.get("frozen", False))
    with fake, tr:
        x, seen = began((rows, SHAPE["hidden_size"]), tr)
        probs = torch.empty((rows, 1), requires_grad=True)
        counts = torch.empty((SHAPE["num_local_experts"],), dtype=torch.int64)
        for known in (*module.parameters(), probs, counts):
            tr.number_of(known)
        gc.collect()
        held = [x]
        module._dispatch_tokens = lambda *_: (held.pop(), counts, probs)
        module.token_dispatcher = SimpleNamespace(token_unpermutation=lambda output: output)
        start, tr.phase = len(tr.events), "fwd"
        del x
        out = module(None, None, None, None)
        middle = len(tr.events)
        loss = mla.Around.apply(out, (), seen, tr.events)
        del out
        loss.backward()
    changes = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": changes[start:middle], "backward": changes[after:before - 1]}


def stand_in() -> None:
    mla.stand_in()
    torch.cuda.current_device = lambda: 0
    FakeTensor.is_cuda = True
    torch.Tensor.to_local = lambda self: self
    oss_layers.apply_rotary_emb_qk = lambda q, k, _table, **_: dense.Rotated.apply(q, k)
    oss.RotaryEmbedding = lambda **_: SimpleNamespace()
    FlexAttention.flex_attn = lambda q, k, v, **_: Flex.apply(q, k, v)
    experts._HAVE_TRITON = experts._HAVE_TRITON_LANGUAGE = experts._BIAS_GRAD_TRITON_AVAILABLE = True
    experts._weighted_bias_add_kernel = experts._weighted_bias_probs_grad_kernel = Launch()
    experts._deterministic_bias_grad_kernel = Launch()
    experts.triton = SimpleNamespace(cdiv=lambda a, b: -(-a // b), next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
                                     set_allocator=lambda _: None)


if __name__ == "__main__":
    MASKS = [mask_bytes(*case) for case in ((1, 1024, 0), (2, 1000, 0), (2, 1024, 64))]
    stand_in()
    known = registered()
    parts = {"layers": {name: layer_events(case) for name, case in LAYERS.items()},
             "gates": {name: gate_events(given) for name, given in GATES.items()},
             "experts": {name: expert_events(case) for name, case in EXPERTS.items()}}
    print(json.dumps({"shape": SHAPE, "registered": known, "masks": MASKS})[:-1], end="")
    print("".join(f',\n"{name}": {{\n{by_name(rows, compact=True)}}}' for name, rows in parts.items()) + "}")
