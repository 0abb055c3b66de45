"""Measures nemo-automodel 0.7.0's dense layers event by event, and how its parallelizer wraps models.

    python tests/truth/probe_automodel_dense.py > tests/truth/tape/automodel-dense-0.7.0-torch-2.13.0.json

With the word `eager` it measures layers with `attn_implementation: eager` alone, and prints their events:

    python tests/truth/probe_automodel_dense.py eager > tests/truth/tape/automodel-eager-0.7.0-torch-2.13.0.json

With the word `quack` it measures layers with `rope: quack` alone, whose kernel turns a tensor in its place and gives
the gradient back as it is (quack-kernels 0.6.5 `rotary.py`, ApplyRotaryEmb; on CUDA alone, which the layers are told):

    python tests/truth/probe_automodel_dense.py quack > tests/truth/tape/automodel-quack-0.7.0-torch-2.13.0.json

Layers: Llama, Qwen2, Qwen3 and a dense one of Qwen3-MoE on fake tensors on a CPU, plain and under Automodel's own
checkpointing of sub-modules; and Qwen3-MoE's gate. Stand-ins: the CPU flash kernel; norms are `rms_norm: torch` with a
kernel that allocates what CUDA's does, but Qwen3's are Hugging Face's and run as they are. Of Qwen3-MoE's, the compiled
rotation of query and key is one function of autograd that allocates both, attention keeps q, k, v, the output and fp32
statistics, as TE's does, and its backward makes three gradients and a workspace of the size that the engine estimates.
Wrapping: Automodel's own `parallelize_model` over PyTorch's fake process group, on the meta device: one row for each
FSDP2 unit, in order of modules, and which modules a checkpoint wraps.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import os
import sys
import warnings
from typing import Any

from json_lines import by_name

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import nemo_automodel.components._peft.lora as peft_lora  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from nemo_automodel._transformers.registry import ModelRegistry  # noqa: E402
from nemo_automodel.components.distributed import activation_checkpointing as ac  # noqa: E402
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig  # noqa: E402
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes  # noqa: E402
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model  # noqa: E402
from nemo_automodel.components.models.common import BackendConfig  # noqa: E402
from nemo_automodel.components.models.llama.model import LlamaDecoderLayer, LlamaForCausalLM  # noqa: E402
from nemo_automodel.components.models.qwen2.model import Qwen2DecoderLayer, Qwen2ForCausalLM  # noqa: E402
from nemo_automodel.components.models.qwen3.model import Qwen3DecoderLayer, Qwen3ForCausalLM  # noqa: E402
from nemo_automodel.components.models.qwen3_moe import layers as moe_layers  # noqa: E402
from nemo_automodel.components.models.qwen3_moe.model import Block, Qwen3MoeForCausalLM  # noqa: E402
from nemo_automodel.components.moe.layers import Gate  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from probe_automodel_mla import Around, fused_rms_norm  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

SHAPE = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 688, "num_hidden_layers": 3,
         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": False}
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
           "norm_topk_prob": True}
OWN: dict[str, Any] = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM,
                       "qwen3_moe": Qwen3MoeForCausalLM}
LAYER_OF: dict[str, Any] = {"llama": LlamaDecoderLayer, "qwen2": Qwen2DecoderLayer, "qwen3": Qwen3DecoderLayer}
FAKE = FakeTensorMode()  # of all gates: the scale of the balancing loss is kept from one to the next
BACKEND = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", experts="torch_mm", dispatcher="torch",
                        enable_hf_state_dict_adapter=False)
ADAPTED: dict[str, dict[str, Any]] = {
    "qwen2": {"family": "qwen2", "targets": ["*_proj"]},
    "qwen3_moe": {"family": "qwen3_moe", "targets": ["*_proj", "*experts", "*gate"]},
    "mixtral": {"family": "mixtral", "targets": ["*_proj", "*experts", "*lm_head", "*gate"]},
}
GATES = {"gate": {"norm_topk_prob": True}, "gate as it is": {"norm_topk_prob": False},
         "gate of one": {"num_experts_per_tok": 1}, "gate unbalanced": {"router_aux_loss_coef": 0.0}}
LAYERS = {f"{family}{' checkpointed' * again}{' of two' * (batch - 1)}":
          {"family": family, "batch": batch, "seq": 192, "checkpoint": bool(again)}
          for family in ("llama", "qwen2", "qwen3", "qwen3_moe") for again, batch in ((0, 1), (0, 2), (1, 1))}
EAGER = {f"{family}{' checkpointed' * again}{' of two' * (batch - 1)}":
         {"family": family, "batch": batch, "seq": 192, "checkpoint": bool(again), "attention": "eager"}
         for family in ("llama", "qwen2", "qwen3") for again, batch in ((0, 1), (0, 2), (1, 1), (1, 2))}
QUACK = {f"{family}{' checkpointed' * again}":
         {"family": family, "batch": 1, "seq": 192, "checkpoint": bool(again), "rope": "quack"}
         for family in ("llama", "qwen2") for again in (0, 1)}
WRAPPED: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "checkpoint": True}, "qwen2": {"family": "qwen2", "checkpoint": True},
    "qwen3": {"family": "qwen3", "checkpoint": True}, "mixtral": {"family": "mixtral", "checkpoint": True},
    "qwen3_moe": {"family": "qwen3_moe", "checkpoint": True},
    "qwen3 by transformers": {"family": "qwen3", "hf": True, "checkpoint": True},
    "qwen3_moe over 4": {"family": "qwen3_moe", "ep": 4, "checkpoint": True},
    "qwen3_moe over 8": {"family": "qwen3_moe", "ep": 8, "reshard_after_forward": True},
    "llama tied": {"family": "llama", "tied": True},
    "llama frozen": {"family": "llama", "frozen": True},
    "llama resharded": {"family": "llama", "reshard_after_forward": True},
    "llama kept": {"family": "llama", "reshard_after_forward": False},
    "llama ahead": {"family": "llama", "enable_fsdp2_prefetch": True},
}


def config(family: str, *, tied: bool = False, attention: str = "sdpa", **given: Any) -> Any:
    fields = SHAPE | (EXPERTS if family in ("qwen3_moe", "mixtral") else {}) | {"tie_word_embeddings": tied} | given
    fields |= {"pad_token_id": 0} if family == "phi3" else {}  # its own is beyond this vocabulary
    made = AutoConfig.for_model(family, **fields)
    made._attn_implementation = attention
    made.use_cache = False
    made.torch_dtype = torch.bfloat16
    return made


def model_of(case: dict[str, Any]) -> Any:
    cfg = config(case["family"], tied=case.get("tied", False), attention=case.get("attention", "sdpa"),
                 **case.get("fields", {}))
    with torch.device("meta"):
        if case.get("hf") or case["family"] not in OWN:
            return AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16)
        return OWN[case["family"]](cfg, backend=BACKEND).to(torch.bfloat16)


def registered(family: str) -> list[Any]:
    return [[n, list(p.shape)] for n, p in model_of({"family": family}).named_parameters()]


class Attention(torch.autograd.Function):
    """[b, s, heads, d] in and out; fewer heads of key and value."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, statistics = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, _out, _statistics = ctx.saved_tensors
        made = tuple(x.new_empty(x.shape) for x in (q, k, v))
        _work = q.new_empty((*q.shape[:3], q.shape[3] + 1), dtype=torch.float32)
        return made


class TurnedInPlace(torch.autograd.Function):
    """Quack's rotation of one sequence: the tensor itself, forward and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Rotated(torch.autograd.Function):
    """Query and key of any order, into tensors of their own; the tables alone are kept, and they are the stem's."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return q.new_empty(q.shape), k.new_empty(k.shape)

    @staticmethod
    def backward(ctx: Any, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return q.new_empty(q.shape), k.new_empty(k.shape)


# ---- layers, event by event ------------------------------------------------------------------------------------------
def layer_of(family: str, attention: str) -> Any:
    if family != "qwen3_moe":
        return LAYER_OF[family](config(family, attention=attention), 0, BACKEND).train()
    with torch.device("meta"):
        experts = Qwen3MoeForCausalLM(config(family), backend=BACKEND).model.moe_config
    block = Block(0, config(family, mlp_only_layers=[0]), experts, BACKEND).train()
    block.self_attn.backend = BackendConfig(attn="te", linear="torch", rms_norm="torch")
    block.self_attn.attn_func = lambda q, k, v, **_: Attention.apply(q, k, v)
    return block


def gate_events(given: dict[str, Any]) -> dict[str, Any]:
    tr, fake, tokens, seen = Tracker(), FAKE, 192, []
    with torch.device("meta"):
        found = Qwen3MoeForCausalLM(config("qwen3_moe", **given), backend=BACKEND).model.moe_config
    with fake:
        gate = Gate(found, gate_precision=BACKEND.gate_precision).train()
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = Around.apply(leaf, (tokens, SHAPE["hidden_size"]), seen, tr.events)
        mask = torch.ones(tokens, dtype=torch.bool)
        for known in (*gate.parameters(), mask):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        weights, indices, _ = gate(x, mask, None)
        del indices, _
        middle = len(tr.events)
        loss = Around.apply(weights, (), seen, tr.events)
        del weights
        loss.backward()
        del x
    changes = [change for _, change in tr.events]
    after, before = seen
    return {"case": given, "forward": changes[start:middle], "backward": changes[after:before - 1]}


def events(case: dict[str, Any]) -> dict[str, Any]:
    tr, fake = Tracker(), FakeTensorMode()
    shape, seen = (case["batch"], case["seq"], SHAPE["hidden_size"]), []
    torch.set_default_dtype(torch.bfloat16)
    with fake:
        layer = layer_of(case["family"], case.get("attention", "sdpa"))
    torch.set_default_dtype(torch.float32)
    if case.get("rope") == "quack":
        layer.self_attn.rope_backend = "quack"
        layer.self_attn._quack_apply_rotary_emb = lambda x, *_, inplace: TurnedInPlace.apply(x)
        FakeTensor.is_cuda = True
    if case["checkpoint"]:
        ac.apply_submodule_checkpointing([layer], False)
    with fake, tr:
        leaf = torch.empty((), dtype=torch.bfloat16, requires_grad=True)
        x = Around.apply(leaf, shape, seen, tr.events)
        tables = tuple(torch.empty(1, case["seq"], SHAPE["head_dim"]) for _ in range(2))
        mask = torch.empty(case["batch"], 1, case["seq"], case["seq"], dtype=torch.bfloat16) if "attention" in case \
            else None
        for known in (*layer.parameters(), *tables, *([] if mask is None else [mask])):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        named = {"freqs_cis": tables[0]} if case["family"] == "qwen3_moe" else {"position_embeddings": tables}
        out = layer(x, attention_mask=mask, **named)
        middle = len(tr.events)
        del x
        loss = Around.apply(out, (), seen, tr.events)
        loss.backward()
    found = [change for _, change in tr.events]
    after, before = seen
    return {"case": case, "forward": found[start:middle], "backward": found[after:before - 1]}


# ---- adapters --------------------------------------------------------------------------------------------------------
def adapters(case: dict[str, Any]) -> list[Any]:
    model = model_of(case)
    cfg = peft_lora.PeftConfig(dim=8, alpha=32, target_modules=case["targets"])
    with torch.device("meta"):
        peft_lora.apply_lora_to_linear_modules(model, cfg, skip_freeze=True)
    return [[n, list(p.shape)] for n, p in model.named_parameters() if "lora_" in n]


# ---- wrapping --------------------------------------------------------------------------------------------------------
def unit_of(name: str, module: Any, names: dict[int, str]) -> dict[str, Any]:
    state = module._get_fsdp_state()
    group = state._fsdp_param_group
    return {
        "unit": name.replace("_checkpoint_wrapped_module.", "").removesuffix("._checkpoint_wrapped_module"),
        "parameters": len(group.fsdp_params) if group else 0,
        "reshards": bool(group and group._reshard_after_forward),
        "ahead": [[names[id(s)] for s in states] for states in (
            state._states_to_forward_prefetch, state._states_to_backward_prefetch)],
        "policy": [str(x).replace("torch.", "") for x in (
            state._mp_policy.param_dtype, state._mp_policy.reduce_dtype, state._mp_policy.output_dtype)],
        "casts": state._mp_policy.cast_forward_inputs,
    }


def wrapped(case: dict[str, Any]) -> dict[str, Any]:
    model = model_of(case)
    if case.get("frozen"):
        for n, p in model.named_parameters():
            p.requires_grad_("norm" in n)
    config_keys = {k: case[k] for k in ("reshard_after_forward", "enable_fsdp2_prefetch") if k in case}
    fsdp = FSDP2Config(**config_keys)
    experts = MoEParallelizerConfig() if "ep" in case else None
    mesh = MeshContext.build(fsdp, ParallelismSizes(ep_size=case.get("ep", 1)), world_size=8,
                             moe_parallel_config=experts, activation_checkpointing=bool(case.get("checkpoint")))
    model = parallelize_model(model, mesh)
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, FSDPModule)]
    names = {id(m._get_fsdp_state()): n for n, m in modules}
    held = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())
    return {"case": case, "held": held, "units": [unit_of(n, m, names) for n, m in modules],
            "checkpoints": [n.removesuffix("._checkpoint_wrapped_module").replace("_checkpoint_wrapped_module.", "")
                            for n, _ in model.named_modules() if n.endswith("._checkpoint_wrapped_module")]}


def stand_in() -> None:
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("_fused_rms_norm", fused_rms_norm, "CPU")
    kernels.m.impl("_fused_rms_norm", "Meta", fused_rms_norm, False)
    globals()["KERNELS"] = kernels  # it is unregistered when the object dies
    ac.checkpoint_wrapper = functools.partial(ac.checkpoint_wrapper, preserve_rng_state=False)
    moe_layers.apply_rotary_emb_qk = lambda q, k, _table, **_: Rotated.apply(q, k)
    torch.cuda.current_device = lambda: 0  # Qwen3-MoE names the device of its tables


def main() -> str:
    if "quack" in sys.argv:
        return lines({name: events(case) for name, case in QUACK.items()})
    if "eager" in sys.argv:
        return lines({name: events(case) for name, case in EAGER.items()})
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    made = {name: events(case) for name, case in LAYERS.items()}
    gates = {name: gate_events(given) for name, given in GATES.items()}
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    units = {name: wrapped(case) for name, case in WRAPPED.items()}
    own = [f for f in ("MixtralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
                       "LlamaForCausalLM", "GPT2LMHeadModel") if f in ModelRegistry.model_arch_name_to_cls]
    taken = {name: {"case": case, "adapters": adapters(case)} for name, case in ADAPTED.items()}
    head = json.dumps({"shape": SHAPE, "experts": EXPERTS, "own": own,
                       "registered": {family: registered(family) for family in OWN}})[:-1]
    parts = {"layers": made, "gates": gates, "adapted": taken, "wrapped": units}
    return head + "".join(f',\n"{name}": {lines(rows)}' for name, rows in parts.items()) + "}"


def lines(rows: dict[str, Any]) -> str:
    return f"{{\n{by_name(rows, compact=True)}}}"


if __name__ == "__main__":
    stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
