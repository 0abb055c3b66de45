"""What PEFT adapts in transformers' mixtures of experts, and what a step of such a model allocates.

    PYTHONPATH=tests/truth python tests/truth/probe_expert_parameters.py > tests/truth/adapters/experts-peft-0.21.2.json

Runs on a CPU. `adapters`: paths and shapes of trained tensors in published models with two layers (the first dense
where the family has dense ones), built on the meta device, or the first line of PEFT's error. `steps`: two steps of
small models with real tensors and grouped products of experts, measured as in `probe_qlora.py`; `events`: bytes of
every birth and death of the experts' module alone, each pass apart. What a CPU has otherwise: counts of tokens are
made from fp32 numbers, as many bytes as the int32 of a GPU.
"""

from __future__ import annotations

import json
from typing import Any

import peft
import torch
import transformers
from json_lines import by_name
from oracle.steps import models
from oracle.steps.measured_steps import two_measured_steps
from oracle.steps.tracker import Tracker

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
DENSE_FIRST = {"num_hidden_layers": 2, "first_k_dense_replace": 1}
TARGETS: dict[str, dict[str, Any]] = {
    "qwen3, all": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, *MLP]},
    "qwen3, attention": {"model": "qwen3-30b-a3b", "targets": ATTENTION},
    "qwen3, down": {"model": "qwen3-30b-a3b", "targets": ["down_proj"]},
    "qwen3, gate without up": {"model": "qwen3-30b-a3b", "targets": ["gate_proj", "down_proj"]},
    "qwen3, router": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, "gate"]},
    "qwen3, fused name": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, "gate_up_proj"]},
    "qwen3, excluded": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, *MLP], "exclude": MLP},
    "qwen3, dropout": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, *MLP], "dropout": 0.1},
    "qwen3, DoRA": {"model": "qwen3-30b-a3b", "targets": [*ATTENTION, *MLP], "dora": True},
    "mixtral, all": {"model": "mixtral-8x7b", "targets": [*ATTENTION, "w1", "w2", "w3"]},
    "mixtral, by other names": {"model": "mixtral-8x7b", "targets": [*ATTENTION, *MLP]},
    "mixtral, w1 alone": {"model": "mixtral-8x7b", "targets": ["w1"]},
    "deepseek 3, all": {"model": "deepseek-v3", "targets": ["q_a_proj", "o_proj", *MLP], "fields": DENSE_FIRST},
    "deepseek 2, all": {"model": "deepseek-v2-lite", "targets": ["q_proj", "o_proj", *MLP], "fields": DENSE_FIRST},
    "moonlight, all": {"model": "moonlight-16b-a3b", "targets": ["q_proj", "o_proj", *MLP], "fields": DENSE_FIRST},
    "qwen1.5, all": {"model": "qwen1.5-moe-a2.7b", "targets": [*ATTENTION, *MLP]},
    "nemotron 3, all": {"model": "nemotron-3-nano-30b-a3b", "targets": [*ATTENTION, *MLP],
                        "fields": {"hybrid_override_pattern": "M*E", "num_hidden_layers": 3}},
    "granite 4, all": {"model": "granite-4.0-h-tiny", "targets": [*ATTENTION, *MLP, "input_linear", "output_linear"],
                       "fields": {"layer_types": ["attention", "mamba"]}},
    "glm 4.5, all": {"model": "glm-4.5-air", "targets": [*ATTENTION, *MLP], "fields": DENSE_FIRST},
    "glm 4.7 flash, all": {"model": "glm-4.7-flash", "targets": ["o_proj", *MLP]},
    "olmoe, all": {"model": "olmoe-1b-7b", "targets": [*ATTENTION, *MLP]},
    "qwen3-next, all": {"model": "qwen3-next-80b-a3b", "targets": [*ATTENTION, *MLP]},
    "minimax 2, all": {"model": "minimax-m2", "targets": [*ATTENTION, "w1", "w2", "w3"]},
    "gpt-oss, all": {"model": "gpt-oss-20b", "targets": [*ATTENTION, *MLP],
                     "fields": {"layer_types": ["sliding_attention", "full_attention"]}}}
SHAPE = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "vocab_size": 512, "num_experts_per_tok": 2, "max_position_embeddings": 4096}
QWEN = {"moe_intermediate_size": 128, "intermediate_size": 512, "num_experts": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, **SHAPE}
MIXTRAL = {"intermediate_size": 128, "num_local_experts": 8, "sliding_window": None, **SHAPE}
STEPS: dict[str, dict[str, Any]] = {
    f"{name}{how}{', replayed' if recompute else ''}": {"preset": preset, "fields": fields, "targets": targets,
                                                        **of, "recompute": recompute}
    for name, preset, fields, targets in (
        ("qwen3, all", "qwen3-30b-a3b", QWEN, [*ATTENTION, *MLP]),
        ("qwen3, down", "qwen3-30b-a3b", QWEN, ["down_proj"]),
        ("mixtral, experts", "mixtral-8x7b", MIXTRAL, ["w1", "w2", "w3"]))
    for how, of in (("", {}), (", adapters in fp32", {"adapters": "fp32"}))
    for recompute in (False, True)}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def config_of(case: dict[str, Any]) -> peft.LoraConfig:
    return peft.LoraConfig(r=8, lora_alpha=16, target_modules=case["targets"], exclude_modules=case.get("exclude"),
                           lora_dropout=case.get("dropout", 0.0), use_dora=case.get("dora", False))


def adapted(case: dict[str, Any]) -> dict[str, Any]:
    """Trained tensors by path, or PEFT's error."""
    model = models.build_meta(case["model"], {"num_hidden_layers": 2, **case.get("fields", {})})
    try:
        model = peft.get_peft_model(model, config_of(case))
    except ValueError as error:
        return {"refused": str(error).splitlines()[0]}
    return {"trained": {path.removeprefix("base_model.model."): list(p.shape)
                        for path, p in model.named_parameters() if p.requires_grad}}


def built(case: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    plain = models.build_meta(case["preset"], case["fields"]).to_empty(device="cpu")
    plain.config._experts_implementation = "grouped_mm"
    plain = plain.to(torch.bfloat16)
    for p in plain.parameters():
        torch.nn.init.normal_(p.data)
    model = peft.get_peft_model(plain, config_of(case))
    for p in model.parameters():
        p.data = p.data.to(TYPES[case.get("adapters", "bf16")]) if p.requires_grad else p.data
    if case["recompute"]:
        model.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def measured(case: dict[str, Any]) -> dict[str, Any]:
    model, tracker = built(case), Tracker()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False, fused=True)

    def loss_of(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=labels, use_cache=False).loss

    known = sum(p.untyped_storage().nbytes() for p in model.parameters())
    with tracker:
        for p in (*model.parameters(), *model.buffers()):
            tracker.number_of(p)
        base = sum(change for _, change in tracker.events)
        steps = two_measured_steps(tracker, optimizer, loss_of, SHAPE["vocab_size"])
    more = known - base - 4 * len(trained)
    return {"rest": known, **{name: size + more for name, size in steps.found().items()},
            "trained": sum(p.numel() for p in trained)}


def events(case: dict[str, Any]) -> dict[str, list[int]]:
    """Signed bytes of the experts' module in the first layer: forward with 64 rows, then backward."""
    experts = built(case | {"recompute": False}).base_model.model.model.layers[0].mlp.experts
    hidden, weights = (torch.rand(64, size, dtype=torch.bfloat16, requires_grad=True) for size in (256, 2))
    numbers, seed, tracker = (torch.arange(128) % 8).view(64, 2), torch.ones_like(hidden), Tracker()
    with tracker:
        for p in (hidden, weights, numbers, seed, *experts.parameters(), *experts.buffers()):
            tracker.number_of(p)
        start = len(tracker.events)
        out = experts(hidden, numbers, weights)
        forward = len(tracker.events)
        out.backward(seed)
        del out
    changes = [change for _, change in tracker.events]
    return {"forward": changes[start:forward], "backward": changes[forward:]}


def main() -> None:
    print(json.dumps({"peft": peft.__version__, "transformers": transformers.__version__,
                      "torch": torch.__version__.partition("+")[0]})[:-1] + ', "adapters": {')
    print(by_name({name: case | adapted(case) for name, case in TARGETS.items()}))
    for title, cases, measure in (("steps", STEPS, measured), ("events", STEPS, events)):
        print(f'}}, "{title}": {{')
        print(by_name({name: case | {"found": measure(case)} for name, case in cases.items()
                       if title == "steps" or not case["recompute"]}))
    print("}}")


if __name__ == "__main__":
    main()
