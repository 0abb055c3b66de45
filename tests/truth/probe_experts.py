"""Experts that are modules of two or three linears, packed in 4 bits by bitsandbytes and adapted by PEFT.

    python tests/truth/probe_experts.py loop > tests/truth/bitsandbytes/loop-0.50.2.json
    PYTHONPATH=TRANSFORMERS_4 python tests/truth/probe_experts.py blocks > tests/truth/bitsandbytes/blocks-0.50.2.json
    PYTHONPATH=TRANSFORMERS_4 python tests/truth/probe_experts.py steps > tests/truth/bitsandbytes/experts-0.50.2.json

Runs on a CPU, real tensors. `loop`: the loop over experts of Nemotron-3-Nano's repository, written here as
NemotronHMOE.moe runs it: bytes of every birth in order, each pass apart, what is kept when forward is over, and the
most in either pass; `blocks`: the same of one MoE block of transformers 4.57.1, router and all, whose logits are
held. `steps`: two steps of models of transformers 4.57.1 (TRANSFORMERS_4: a folder with it,
huggingface_hub 0.36.2 and tokenizers 0.22.1), measured as in `probe_qlora.py`, whose product of many rows they run;
they get a mask of ones, as collators make it (without one 4.57.1 `masking_utils.py` makes a mask for packed sequences
and SDPA leaves its fast kernels); `packed`: last names of the modules that transformers
replaces, with how many. Every expert gets its even share of rows: the numbers of the chosen ones are written over where
torch has put its own. Both ends of the numbers' range, which one_hot asks for on a CPU alone (8 bytes each), are left
out.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from itertools import accumulate
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import probe_qlora
import torch
import torch.nn.functional as F
import transformers
from oracle.steps.measured_steps import two_measured_steps
from oracle.steps.tracker import Tracker
from probe_hub import moe

HIDDEN, FFN, EXPERTS, TOP_K, TOKENS = 256, 128, 8, 2, 64
LOOPS: dict[str, dict[str, Any]] = {
    "frozen": {}, "without double quantisation": {"double_quant": False},
    "adapted": {"targets": ["up_proj", "down_proj"]},
    "adapted in fp32": {"targets": ["up_proj", "down_proj"], "adapters": "fp32"},
    "one linear adapted": {"targets": ["down_proj"], "double_quant": False}}
SHAPE = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "vocab_size": 512, "num_experts_per_tok": 2, "max_position_embeddings": 4096}
QWEN = {"model_type": "qwen3_moe", "moe_intermediate_size": 128, "intermediate_size": 512, "num_experts": 8,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, **SHAPE}
MIXTRAL = {"model_type": "mixtral", "intermediate_size": 128, "num_local_experts": 8, "sliding_window": None, **SHAPE}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
STEPS: dict[str, dict[str, Any]] = {
    "qwen3, attention": {"model": QWEN, "targets": ATTENTION},
    "qwen3, attention, replayed": {"model": QWEN, "targets": ATTENTION, "recompute": True},
    "qwen3, all": {"model": QWEN, "targets": [*ATTENTION, "gate_proj", "up_proj", "down_proj"]},
    "qwen3, all, replayed": {"model": QWEN, "targets": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
                             "recompute": True},
    "qwen3, experts, without double quantisation": {"model": QWEN, "targets": ["gate_proj", "up_proj", "down_proj"],
                                                    "double_quant": False},
    "mixtral, attention": {"model": MIXTRAL, "targets": ATTENTION},
    "mixtral, experts, replayed": {"model": MIXTRAL, "targets": ["w1", "w2", "w3"], "recompute": True},
    "mixtral, router": {"model": MIXTRAL, "targets": ["q_proj", "gate"], "adapters": "fp32"}}


def even(rows: int) -> torch.Tensor:
    """Numbers of experts: each has as many rows."""
    return torch.stack([(torch.arange(rows) + i) % EXPERTS for i in range(TOP_K)], 1)


def packed(model: Any, weights: dict[str, torch.Tensor], double: bool) -> Any:
    """Its linears of 4 bits get their values."""
    for name, part in model.named_modules():
        if isinstance(part, bnb.nn.Linear4bit):
            part.weight = bnb.nn.Params4bit(weights[f"{name}.weight"], requires_grad=False, compress_statistics=double,
                                            quant_type="nf4", module=part).to("cpu")
    return model


def adapted(model: Any, case: dict[str, Any]) -> Any:
    model.is_loaded_in_4bit = True  # what PEFT asks for
    made = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=case["targets"]))
    if case.get("adapters") != "fp32":
        for p in made.parameters():
            p.data = p.data.to(torch.bfloat16) if p.requires_grad else p.data
    return made


# ---- the loop of the repository --------------------------------------------------------------------------------------
class Expert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = bnb.nn.Linear4bit(HIDDEN, FFN, bias=False, compute_dtype=torch.bfloat16)
        self.down_proj = bnb.nn.Linear4bit(FFN, HIDDEN, bias=False, compute_dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.square(F.relu(self.up_proj(x))))


def blocked(case: dict[str, Any]) -> dict[str, Any]:
    """One block of a model, by itself."""
    model, _ = built(case)
    layer = model.base_model.model.model.layers[0]
    block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
    hidden = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    seed, tracker = torch.ones_like(hidden), Tracker()
    with tracker:
        for p in (hidden, seed, *block.parameters()):
            tracker.number_of(p)
        start = len(tracker.events)
        out, _logits = block(hidden)
        forward = len(tracker.events)
        out.backward(seed)
    return passes([change for _, change in tracker.events], start, forward)


def looped(case: dict[str, Any]) -> dict[str, Any]:
    model = torch.nn.Module()
    model.experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS))
    weights = {name: torch.randn_like(p, dtype=torch.bfloat16) for name, p in model.named_parameters()}
    packed(model, weights, case.get("double_quant", True))
    if "targets" in case:
        adapted(model, case)
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    probabilities, indices = torch.rand(TOKENS, TOP_K, requires_grad=True), even(TOKENS)
    seed, tracker = torch.ones_like(hidden), Tracker()
    with tracker:
        for p in (hidden, probabilities, indices, seed, *model.parameters()):
            tracker.number_of(p)
        start = len(tracker.events)
        out = moe(model.experts, hidden, indices, probabilities)
        forward = len(tracker.events)
        out.backward(seed)
    return passes([change for _, change in tracker.events], start, forward)


def passes(events: list[int], start: int, forward: int) -> dict[str, Any]:
    """Births and the most of either pass, without one_hot's two numbers."""
    births = [x for x in events[start:forward] if x > 0]
    for _ in range(2):
        births.remove(8)  # the first ones
    return {"forward": births,
            "backward": [x for x in events[forward:] if x > 0], "kept": sum(events[start:forward]),
            "peaks": [max(accumulate(events[start:forward])), max(accumulate(events[forward:]))]}


# ---- steps of transformers 4 -----------------------------------------------------------------------------------------
def built(case: dict[str, Any]) -> tuple[Any, Counter[str]]:
    from transformers.integrations.bitsandbytes import get_keys_to_not_convert, replace_with_bnb_linear

    torch.manual_seed(0)
    fields = dict(case["model"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    weights = {name: p.data for name, p in plain.named_parameters()}
    double = case.get("double_quant", True)
    model = replace_with_bnb_linear(plain, get_keys_to_not_convert(plain), quantization_config=(
        transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
                                        bnb_4bit_compute_dtype=torch.bfloat16)))
    names = Counter(name.rpartition(".")[2] for name, part in packed(model, weights, double).named_modules()
                    if isinstance(part, bnb.nn.Linear4bit))
    made = adapted(model, case)
    if case.get("recompute"):
        made.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
        made.base_model.model.enable_input_require_grads()
    return made.train(), names


def balanced(chosen: Any) -> Any:
    """torch.topk whose numbers are even."""
    numbers = even(TOKENS)

    def choose(x: torch.Tensor, *given: Any, **named: Any) -> Any:
        values, indices = chosen(x, *given, **named)
        indices.data.copy_(numbers)
        return values, indices
    return choose


def stepped(case: dict[str, Any]) -> dict[str, Any]:
    model, names = built(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)
    functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})  # type: ignore[attr-defined]
    tracker, seen = Tracker(), torch.ones(1, TOKENS, dtype=torch.int64)
    known = probe_qlora.rest_of(model)
    with tracker:
        for p in (*model.parameters(), *model.buffers(), seen):
            tracker.number_of(p)
        gc.collect()
        base = sum(change for _, change in tracker.events)
        steps = two_measured_steps(tracker, optimizer, lambda tokens, labels: model(
            input_ids=tokens, attention_mask=seen, labels=labels, use_cache=False).loss, SHAPE["vocab_size"], TOKENS)
    more = known - base - 4 * len(trained)
    return {"packed": names,
            "found": {"rest": known, **{name: size + more for name, size in steps.found().items()}}}


def main() -> None:
    head = {"version": bnb.__version__, "peft": peft.__version__, "torch": torch.__version__.partition("+")[0]}
    if sys.argv[1] == "loop":
        functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})  # type: ignore[attr-defined]
        rows: Any = {name: case | {"found": looped(case)} for name, case in LOOPS.items()}
        print(json.dumps(head | {"cases": rows}))
        return
    torch.topk = balanced(torch.topk)
    assert transformers.__version__ == "4.57.1"
    if sys.argv[1] == "blocks":
        functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})  # type: ignore[attr-defined]
        rows = {name: case | {"found": blocked(case)} for name, case in STEPS.items() if "recompute" not in case}
        print(json.dumps(head | {"transformers": transformers.__version__, "cases": rows}))
        return
    rows = {name: case | stepped(case) for name, case in STEPS.items()}
    print(json.dumps(head | {"transformers": transformers.__version__, "cases": rows}, indent=1))


if __name__ == "__main__":
    main()
