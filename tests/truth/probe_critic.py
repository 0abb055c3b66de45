"""What verl's critic is to torch's FSDP 1: a value head, its units, one step, and the loss of values, on one CPU.

    python tests/truth/probe_critic.py VERL > tests/truth/verl/critic-torch-2.13.0.json

`VERL`: git directory of volcengine/verl with b178a3cd, whose own functions run: `get_fsdp_wrap_policy`
(`verl/utils/fsdp_utils.py`), `compute_value_loss` and what it calls. The process group is torch's fake one. `models`:
of transformers' AutoModelForTokenClassification with one label, over fake ranks: `units`, elements of every flat
parameter and of a rank's part, root first; `step`: collectives of a forward and backward pass with their bytes. `loss`:
for each number of tokens, bytes that forward of the loss keeps, the most it has at once, and the most of backward,
beside the values themselves; without the indices of rows, which the batch has.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from probe_verl import traced

COMMIT = "b178a3cd"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1001}
MODELS = {"llama": {**SIZES, "tie_word_embeddings": False}, "qwen2": {**SIZES, "tie_word_embeddings": True},
          "gemma2": {**SIZES, "tie_word_embeddings": True}}
RANKS = (1, 2, 8)
TOKENS = (256, 1024)


def functions(verl: str, path: str, *names: str) -> dict[str, Any]:
    """Functions of verl, each by its name, compiled from the commit's text without the module around them."""
    text = subprocess.run(["git", "-C", verl, "show", f"{COMMIT}:{path}"], capture_output=True, text=True,  # noqa: S607 - git
                          check=True)
    tree = ast.parse(text.stdout)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list, node.returns = [], None
        for one in node.args.args:
            one.annotation = None
    space: dict[str, Any] = {"torch": torch, "functools": functools}
    exec(compile(ast.Module(found, []), path, "exec"), space)  # noqa: S102 - verl's own functions are what is asked
    return space


def _model(family: str, sizes: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForTokenClassification
    config = AutoConfig.for_model(family, **sizes)
    config.num_labels, config.classifier_dropout = 1, 0.0
    return AutoModelForTokenClassification.from_config(config, dtype=torch.float32, attn_implementation="eager").train()


def _module_class(module: Any, name: str) -> Any:
    """As accelerate's `get_module_class_from_name`."""
    return next((type(part) for part in module.modules() if type(part).__name__ == name), None)


def units(verl: str, family: str, ranks: int, *, sizes: dict[str, Any] | None = None, copies: int = 1, tokens: int = 32,
          checkpoint: bool = False) -> dict[str, Any]:
    """Flat parameters and the second step of a critic over `ranks`; `copies`: groups of them that share nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from torch.testing._internal.distributed.fake_pg import FakeStore
    space = functions(verl, "verl/utils/fsdp_utils.py", "get_fsdp_wrap_policy")
    space |= {"transformer_auto_wrap_policy": transformer_auto_wrap_policy, "get_module_class_from_name": _module_class}
    os.environ.setdefault("LOCAL_RANK", "0")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    model = _model(family, sizes or MODELS[family])
    if checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    mesh = init_device_mesh("cpu", (copies, ranks // copies), mesh_dim_names=("ddp", "fsdp"))
    wrapped = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), device_mesh=mesh if copies > 1 else mesh["fsdp"],
        auto_wrap_policy=space["get_fsdp_wrap_policy"](model, {"min_num_params": 0}), sync_module_states=False,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if copies > 1 else ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.float32))
    ids = torch.randint(0, model.config.vocab_size, (1, tokens))
    steps = [_step(wrapped, ids) for _ in range(2)]
    handles = wrapped._all_handles
    found = [[h.flat_param._unpadded_unsharded_size.numel(), h.flat_param._local_shard.numel()] for h in handles]
    dist.destroy_process_group()
    return {"units": found, "step": steps[-1] if ranks > 1 else []}


def _step(wrapped: Any, tokens: Any) -> list[Any]:
    noted: list[Any] = []
    names = {"all_gather": "all_gather", "all_gather_into_tensor": "all_gather", "all_gather_single": "all_gather",
             "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_single": "reduce_scatter",
             "all_reduce": "all_reduce"}
    kept = {name: getattr(dist, name) for name in names if name in vars(dist)}

    def noting(name: str, call: Any, *given: Any, **named: Any) -> Any:
        tensors = [x if isinstance(x, list) else [x] for x in (*given, *named.values())
                   if torch.is_tensor(x) or isinstance(x, list)]
        noted.append([names[name], max(sum(x.numel() * x.element_size() for x in one) for one in tensors)])
        return call(*given, **named)

    for name, call in kept.items():
        setattr(dist, name, functools.partial(noting, name, call))
    with torch.autocast("cpu", torch.bfloat16):
        values = wrapped(input_ids=tokens, use_cache=False).logits
    assert values.shape == (1, tokens.shape[1], 1)
    assert values.dtype == torch.bfloat16
    values.float().sum().backward()
    for name, call in kept.items():
        setattr(dist, name, call)
    return noted


def loss(verl: str, tokens: int) -> dict[str, int]:
    space = functions(verl, "verl/trainer/ppo/core_algos.py", "compute_value_loss", "agg_loss")
    space["verl_F"] = type("verl_F", (), {name: staticmethod(value) for name, value in functions(
        verl, "verl/utils/torch_functional.py", "clip_by_value", "masked_mean", "masked_sum").items()
        if callable(value)})
    leaf = torch.randn(1, tokens, 1, dtype=torch.bfloat16, requires_grad=True)
    rows, mask = torch.arange(tokens), torch.ones(1, tokens, dtype=torch.int64)
    old, returns = torch.randn(1, tokens, dtype=torch.bfloat16), torch.randn(1, tokens)

    def forward() -> Any:
        padded = torch.zeros(tokens, 1, dtype=torch.bfloat16)  # flash_attn.bert_padding IndexPutFirstAxis
        padded = padded.index_put((rows,), leaf.squeeze(0)).view(1, tokens)
        made, _share = space["compute_value_loss"](padded, returns, old, mask, 0.5)
        return made * 0.25

    forward().backward()
    leaf.grad = None
    made, sizes = traced(forward)
    _, undone = traced(made.backward)
    kept, highest = _most(sizes)
    return {"tokens": tokens, "kept": kept, "forward": highest, "backward": kept + _most(undone)[1]}


def _most(sizes: list[int]) -> tuple[int, int]:
    now = highest = 0
    for size in sizes:
        now += size
        highest = max(highest, now)
    return now, highest


def main() -> None:
    verl = sys.argv[1]
    rows = [{"family": family, "ranks": ranks, **units(verl, family, ranks)} for family in MODELS for ranks in RANKS]
    print(json.dumps({"torch": torch.__version__, "verl": COMMIT, "sizes": MODELS, "models": rows,
                      "loss": [loss(verl, tokens) for tokens in TOKENS]}, indent=1))


if __name__ == "__main__":
    main()
