"""Measures whole steps of models that nemo-automodel 0.7.0 wraps: Qwen3 and Nemotron-H with its own code, others by
transformers.

    python tests/truth/probe_automodel_step.py > tests/truth/tape/automodel-steps-0.7.0-torch-2.13.0.json

Fake tensors on a CPU over PyTorch's fake process group of 8 ranks: Automodel's `parallelize_model`, forward, its
`MaskedCrossEntropy`, backward and fused AdamW, twice; the second step is told. Cases over tp are asked for one by
one, as DTensor keeps the groups of the first. Stand-ins: the CPU flash kernel, no mask but for eager attention,
mamba_ssm's fused function without its kernels, rotary tables as long as the sequence without asking the device for the
last position, no state of random numbers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import probe_automodel_dense as dense
import torch
import torch.distributed as dist
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.models.common.utils import Float32RMSNorm, cast_model_to_dtype
from nemo_automodel.components.models.llama.rope_utils import LlamaRotaryEmbedding
from nemo_automodel.components.models.nemotron_v3.model import NemotronHForCausalLM
from nemo_automodel.components.models.qwen3 import model as qwen3
from oracle.drawn_automodel import adapted
from oracle.steps import mamba
from oracle.steps.log import Replay
from oracle.steps.models import no_mask
from oracle.steps.run import summarise_comms
from oracle.steps.setup import make_optim, optimizer_step, tag_shards
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import NemotronHConfig
from transformers.models.falcon_h1 import modeling_falcon_h1
from transformers.models.gemma import modeling_gemma
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.granite import modeling_granite
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 1024}
SCAN = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_ssm": 256, "mamba_n_groups": 2, "mamba_d_state": 32,
        "mamba_chunk_size": 64, "mamba_rms_norm": True}
HYBRID = {"vocab_size": 64, "num_hidden_layers": 5, "hybrid_override_pattern": "M-M-M", "mamba_num_heads": 8,
          "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 32, "chunk_size": 64}
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {"family": "qwen3"}, "qwen3 checkpointed": {"family": "qwen3", "checkpoint": True},
    "qwen3 tied": {"family": "qwen3", "tied": True},
    "qwen3 tied, adapted": {"family": "qwen3", "tied": True, "lora": 8, "target_modules": ["*"]},
    "qwen3 tied, adapted, checkpointed": {"family": "qwen3", "tied": True, "lora": 8, "target_modules": ["*"],
                                          "checkpoint": True},
    "qwen3 ahead": {"family": "qwen3", "enable_fsdp2_prefetch": True},
    "qwen3 over tp": {"family": "qwen3", "tp": 2},
    "qwen3 over tp, checkpointed": {"family": "qwen3", "tp": 2, "checkpoint": True},
    "qwen3 adapted": {"family": "qwen3", "lora": 8, "target_modules": ["*_proj"]},
    "qwen3 over tp, adapted": {"family": "qwen3", "tp": 2, "lora": 8, "target_modules": ["*_proj"]},
    "qwen3 over tp, adapted, checkpointed": {"family": "qwen3", "tp": 2, "lora": 8, "target_modules": ["*_proj"],
                                             "checkpoint": True},
    "qwen3 over tp alone": {"family": "qwen3", "tp": 2, "world": 2},
    "qwen3 over tp alone, adapted": {"family": "qwen3", "tp": 2, "lora": 8, "target_modules": ["*_proj"], "world": 2},
    "qwen3 by transformers": {"family": "qwen3", "hf": True, "checkpoint": True},
    "llama by transformers over tp": {"family": "llama", "hf": True, "tp": 2},
    "llama by transformers over tp, adapted": {"family": "llama", "hf": True, "tp": 2, "lora": 8,
                                               "target_modules": ["*_proj"], "checkpoint": True},
    "mistral over tp": {"family": "mistral", "tp": 2},
    "phi3 over tp": {"family": "phi3", "tp": 2},
    "phi3 over tp, adapted": {"family": "phi3", "tp": 2, "lora": 8, "target_modules": ["*_proj"], "checkpoint": True},
    "falcon_h1 over tp, adapted": {"family": "falcon_h1", "tp": 2, "lora": 8, "target_modules": ["*_proj"],
                                   "fields": SCAN},
    "qwen3 by transformers over tp": {"family": "qwen3", "hf": True, "tp": 2},
    "qwen3 by transformers over tp, adapted": {"family": "qwen3", "hf": True, "tp": 2, "lora": 8,
                                               "target_modules": ["*_proj"], "checkpoint": True},
    "qwen3 eager": {"family": "qwen3", "attention": "eager"},
    "qwen3 eager checkpointed": {"family": "qwen3", "attention": "eager", "checkpoint": True},
    "qwen3 eager by transformers": {"family": "qwen3", "attention": "eager", "hf": True},
    "mixtral": {"family": "mixtral"}, "mixtral checkpointed": {"family": "mixtral", "checkpoint": True},
    "mistral": {"family": "mistral"}, "mistral checkpointed": {"family": "mistral", "checkpoint": True},
    "gemma": {"family": "gemma"}, "gemma checkpointed": {"family": "gemma", "checkpoint": True},
    "phi3": {"family": "phi3"}, "phi3 checkpointed": {"family": "phi3", "checkpoint": True},
    "gemma2 eager": {"family": "gemma2", "attention": "eager", "tied": True, "fields": WINDOWS},
    "gemma2 eager checkpointed": {"family": "gemma2", "attention": "eager", "checkpoint": True, "fields": WINDOWS},
    "gemma3": {"family": "gemma3_text", "tied": True, "fields": WINDOWS},
    "gemma3 eager": {"family": "gemma3_text", "attention": "eager", "fields": WINDOWS},
    "granite tied": {"family": "granite", "tied": True},
    "granite checkpointed": {"family": "granite", "checkpoint": True},
    "olmo2": {"family": "olmo2"}, "olmo2 checkpointed": {"family": "olmo2", "checkpoint": True},
    "falcon_h1": {"family": "falcon_h1", "fields": SCAN},
    "falcon_h1 checkpointed": {"family": "falcon_h1", "checkpoint": True, "fields": SCAN},
    "nemotron_h": {"family": "nemotron_h", "fields": HYBRID},
    "nemotron_h checkpointed": {"family": "nemotron_h", "checkpoint": True, "fields": HYBRID},
    "nemotron_h adapted, checkpointed": {"family": "nemotron_h", "lora": 8, "target_modules": ["*"],
                                         "checkpoint": True, "fields": HYBRID},
}
SEQ = 512


def tables(self: Any, x: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    self._ensure_cache(position_ids.shape[-1], x.device)
    return self._cos_cache[position_ids], self._sin_cache[position_ids]


def micro_step(model: Any, tr: Tracker, first: bool) -> None:
    tr.phase = "fwd"
    ids = torch.randint(0, model.config.vocab_size, (1, SEQ))
    labels = torch.randint(0, model.config.vocab_size, (1, SEQ))
    for given in (ids, labels):
        tr.tag(given, "input")
    out = model(input_ids=ids, use_cache=False)
    loss = MaskedCrossEntropy()(logits=out.logits, labels=labels)
    del out
    if first:
        tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    tr.mark("bwd:end")


class Norm(torch.autograd.Function):
    """`float32_rms_norm` without what its compiled kernels keep in registers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return tuple(torch.empty_like(x) if x.requires_grad else None for x in ctx.saved_tensors)


def hybrid_of(case: dict[str, Any]) -> Any:
    """Nemotron-H without attention and experts."""
    fields = {**dense.SHAPE, **case["fields"]}
    kinds = [{"M": "mamba", "-": "mlp"}[letter] for letter in fields.pop("hybrid_override_pattern")]
    cfg = NemotronHConfig(**fields, layers_block_type=kinds)
    cfg.torch_dtype = torch.bfloat16
    with torch.device("meta"):
        model = NemotronHForCausalLM(cfg, backend=replace(dense.BACKEND, rms_norm="torch_fp32"))
    cast_model_to_dtype(model, torch.bfloat16, skip_modules=("_fp32_params",))
    return model


def measure(case: dict[str, Any]) -> dict[str, Any]:
    model = (hybrid_of(case) if case["family"] == "nemotron_h" else dense.model_of(case)).train()
    model.config._experts_implementation = "grouped_mm"
    adapted(model, case)
    fsdp = FSDP2Config(**{k: case[k] for k in ("enable_fsdp2_prefetch",) if k in case})
    sizes = ParallelismSizes(tp_size=case.get("tp", 1))
    mesh = MeshContext.build(fsdp, sizes, world_size=case.get("world", 8), activation_checkpointing=bool(
        case.get("checkpoint")))
    model = parallelize_model(model, mesh)
    halves, traffic = two_steps(model, lambda tr, first: micro_step(model, tr, first))
    return {"case": case, **halves, "traffic": traffic}


def two_steps(model: Any, micro: Callable[[Tracker, bool], None], loaded: Callable[[], None] = lambda: None,
              ) -> tuple[dict[str, Any], dict[str, Any]]:
    """Peaks of forward and backward of the second of two steps, and its traffic before the optimizer.

    `micro`: forward and backward of one microbatch, told whether it is the first. `loaded`: runs when the parameters
    have memory, before the optimizer is made.
    """
    tr = Tracker()
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        loaded()
        for b in model.buffers():
            tr.tag(b, "buffer")
        optimizer = make_optim(model, {"optim": "adamw_fused", "optim_groups": "one"})
        for step in range(2):
            gc.collect()
            start, sent = len(tr.events), len(tr.comms)
            micro(tr, step == 0)
            gc.collect()
            done, comms = len(tr.events), tr.comms[sent:]
            optimizer_step(optimizer, tr)
    middle = next(place for place, label in reversed(tr.markers) if label == "bwd:begin")
    rp = Replay(tr)
    halves = {"forward": rp.segment(start, middle), "backward": rp.segment(middle, done)}
    return {name: {k: part[k] for k in ("peak", "breakdown")} | {"where": rp.locate(part["at"])}
            for name, part in halves.items()}, summarise_comms(comms)


def main() -> str:
    made = {}
    for name in sys.argv[1:] or CASES:
        world = CASES[name].get("world", 8)
        os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
        dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())
        made[name] = measure(CASES[name])
        dist.destroy_process_group()
    return dense.lines(made)


def masked(own: Callable[..., Any]) -> Callable[..., Any]:
    """Its own mask for eager attention, else none."""
    return lambda *args, **given: (own if given["config"]._attn_implementation == "eager" else no_mask)(*args, **given)


def stand_in() -> None:
    dense.stand_in()
    LlamaRotaryEmbedding.forward = tables
    mamba.put_in_place()
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.ops.triton.ssd_combined"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules[name])["mamba_split_conv1d_scan_combined"] = mamba.fused_mamba
    Float32RMSNorm.forward = lambda self, x: Norm.apply(x, self.weight)
    for module in (qwen3, modeling_falcon_h1, modeling_gemma, modeling_gemma2, modeling_gemma3, modeling_granite,
                   modeling_llama, modeling_mistral, modeling_mixtral, modeling_olmo2, modeling_phi3, modeling_qwen2,
                   modeling_qwen3):
        for name in ("create_causal_mask", "create_sliding_window_causal_mask", "create_recurrent_attention_mask"):
            if name in vars(module):
                setattr(module, name, masked(getattr(module, name)))


if __name__ == "__main__":
    stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
