"""OpenRLHF on one CPU: what its actor makes of logits, step after step, and its configuration of DeepSpeed.

    python tests/truth/probe_openrlhf.py CLONE > tests/truth/openrlhf/0.11.0.json

`CLONE`: git directory of OpenRLHF, whose own functions run at each of RELEASES. `loss`: allocations and frees of the
logits' size ("+", "-") and of twice that, fp32 ("++", "--"), in the second step of the supervised trainer's loop:
`Actor.forward` and `log_probs_from_logits` (`openrlhf/models/`) around a head alone, with `SFTLoss`. flash-attn's cross
entropy runs on CUDA alone; a function that saves and makes what it does stands in for it (flash-attn 2.8
`ops/triton/cross_entropy.py`, not in place). `arguments`: options of `openrlhf/cli/train_sft.py`. `configurations`:
`get_train_ds_config` of switches that recipes set; `resolved`: what deepspeed 0.19.6 reads from it in bytes and
switches, and whether that is the same without "auto".
"""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
import types
from typing import Any

import torch
from probe_verl import traced

RELEASES = ("v0.8.9", "v0.11.0")
VOCAB, HIDDEN, TOKENS = 4096, 8, 64
SWITCHES: tuple[dict[str, Any], ...] = (
    {}, {"stage": 3}, {"stage": 3, "adam_offload": True},
    {"stage": 2, "overlap_comm": True, "grad_accum_dtype": "fp32"}, {"stage": 3, "zpg": 4},
    {"stage": 1, "tensor_parallel_size": 2}, {"stage": 3, "max_norm": 0.5, "deepcompile": True},
    {"stage": 2, "use_ds_universal_ckpt": True})
READ = ("stage", "reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients",
        "reduce_scatter", "prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters",
        "max_reuse_distance", "sub_group_size", "zero_hpz_partition_size", "round_robin_gradients")


def source(clone: str, release: str, path: str) -> ast.Module:
    return ast.parse(subprocess.run(["git", "-C", clone, "show", f"{release}:{path}"], capture_output=True,  # noqa: S607
                                    text=True, check=True).stdout)


def defined(tree: ast.Module, space: dict[str, Any], *names: str) -> dict[str, Any]:
    """Functions and classes of a module by their names, without the module around them; annotations are text."""
    found = [node for node in tree.body if getattr(node, "name", "") in names]
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *found], []), "openrlhf", "exec"), space)  # noqa: S102 - what is asked
    return space


class Apart(torch.autograd.Function):
    """Saves logits, sums and labels; the gradient is a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.save_for_backward(logits, torch.empty(len(logits)), labels)
        return torch.empty(len(logits))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0]), None


def cross_entropy_loss(logits: Any, labels: Any) -> tuple[Any, Any]:
    return Apart.apply(logits, labels), None


class Head(torch.nn.Module):
    """Logits of hidden states, as a model of transformers puts them out."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
        self.hidden = torch.randn(batch, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)

    def forward(self, *_: Any, **__: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast
        return CausalLMOutputWithPast(logits=torch.nn.functional.linear(self.hidden, self.weight))


def loss(clone: str, release: str, batch: int) -> dict[str, list[str]]:
    stand_in = types.ModuleType("flash_attn.ops.triton.cross_entropy")
    stand_in.cross_entropy_loss = cross_entropy_loss  # type: ignore[attr-defined]
    for name in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[stand_in.__name__] = stand_in
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    defined(source(clone, release, "openrlhf/models/utils.py"), space, "log_probs_from_logits", "masked_mean")
    defined(source(clone, release, "openrlhf/models/loss.py"), space, "SFTLoss", "aggregate_loss")
    defined(source(clone, release, "openrlhf/models/actor.py"), space, "Actor")
    actor, scored = space["Actor"](Head(batch)), space["SFTLoss"]()
    actor.packing_samples, actor.temperature, actor.is_vlm = False, 1.0, False
    ids, mask, size = torch.randint(0, VOCAB, (batch, TOKENS)), torch.ones(batch, TOKENS), 2 * batch * TOKENS * VOCAB
    found: dict[str, list[str]] = {}

    def signs(sizes: list[int]) -> list[str]:
        return [("+" if one > 0 else "-") * (abs(one) // size) for one in sizes if abs(one) in (size, 2 * size)]

    kept: list[Any] = [None, None]

    def forward() -> None:  # openrlhf/trainer/sft_trainer.py: `per_token_log_probs, output = self.model(...)`
        kept[0], kept[1] = actor.forward(ids, attention_mask=mask, return_output=True, return_logprobs=True)

    for _ in range(2):
        actor.model.weight.grad = actor.model.hidden.grad = None
        _, made = traced(forward)
        of_step = scored(kept[0], mask[:, :-1])
        _, undone = traced(lambda of_step=of_step: of_step.backward())
        del of_step
        found = {"forward": signs(made), "backward": signs(undone)}
    return found


def configuration(clone: str, release: str, given: dict[str, Any]) -> dict[str, Any]:
    """Configuration as `DeepspeedStrategy.get_ds_train_config` asks for it, and what DeepSpeed reads."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    space = defined(source(clone, release, "openrlhf/utils/deepspeed/deepspeed_utils.py"), {}, "get_train_ds_config")
    made = space["get_train_ds_config"](**{"offload": False, "adam_offload": False, "zpg": 1, **given})
    zero = made["zero_optimization"]
    plain = {name: value for name, value in zero.items() if value != "auto"}
    read = [{name: getattr(DeepSpeedZeroConfig(**one), name) for name in READ} for one in (zero, plain)]
    return {"given": given, "made": made, "resolved": {name: int(value) if isinstance(value, float) and math.isfinite(
        value) else value for name, value in read[0].items()}, "same": read[0] == read[1]}


def arguments(clone: str, release: str) -> list[str]:
    """Options of the supervised trainer, without their dashes."""
    tree = source(clone, release, "openrlhf/cli/train_sft.py")
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)
             and getattr(node.func, "attr", "") == "add_argument")
    return sorted(node.args[0].value.removeprefix("--") for node in calls if isinstance(node.args[0], ast.Constant))


def main() -> None:
    clone = sys.argv[1]
    import deepspeed
    print(json.dumps({"torch": torch.__version__, "deepspeed": deepspeed.__version__, "releases": {
        release: {"loss": {str(batch): loss(clone, release, batch) for batch in (1, 2)},
                  "arguments": arguments(clone, release),
                  "configurations": [configuration(clone, release, one) for one in SWITCHES]}
        for release in RELEASES}}, indent=1))


if __name__ == "__main__":
    main()
