"""What torch's FullyShardedDataParallel keeps, sends and frees of llm-foundry's MPT (0.3.0), small, on one CPU.

    python tests/truth/probe_foundry_fsdp1.py CASE... (JSON, as in `fsdp1/llmfoundry-0.3.0-torch-2.13.0.json`)

As `probe_fsdp1.py`, whose rows these are. Blocks and the token embedding are units, `apart` names more: llm-foundry
itself wraps `wpe` and `norm_f` too. Attention is llm-foundry's own in plain torch; weights keep what torch gave them.
The source of `llmfoundry` is to be on the path.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import probe_fsdp1
from oracle.worker import serve

VOCAB = 128


class Trained:
    """The model that FSDP wrapped, with a loss outside of it, as Composer has it."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: Any, labels: Any, **_: Any) -> Any:
        import torch
        logits = self.model(input_ids=input_ids).logits.float()
        return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def model_of(case: dict[str, Any]) -> Any:
    """With parameters in fp32 on the CPU."""
    from oracle import foundry
    modelling = foundry.prepare()
    modelling.MPTModel.apply = lambda self, _init: self
    config = importlib.import_module("llmfoundry.models.mpt.configuration_mpt").MPTConfig(
        **case["model"], vocab_size=VOCAB, init_device="cpu", attn_config={"attn_impl": "torch"})
    config.tie_word_embeddings = True
    return modelling.MPTForCausalLM(config).train()


def wrapped(case: dict[str, Any], model: Any, _mesh: Any) -> Any:
    """Composer 0.16.4 `trainer/dist_strategy.py`: a policy over modules, mixed precision PURE, use_orig_params."""
    import torch
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy
    apart = {id(getattr(model.transformer, name)) for name in ("wte", *case.get("apart", ()))}
    block = type(model.transformer.blocks[0])
    return Trained(FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy[case.get("strategy", "FULL_SHARD")],
        auto_wrap_policy=CustomPolicy(lambda module: isinstance(module, block) or id(module) in apart),
        mixed_precision=MixedPrecision(*[torch.bfloat16] * 3), use_orig_params=True,
        backward_prefetch=BackwardPrefetch[case.get("backward_prefetch", "BACKWARD_POST")],
        forward_prefetch=case.get("forward_prefetch", False)))


if __name__ == "__main__":
    probe_fsdp1._model, probe_fsdp1._wrapped, probe_fsdp1.LLAMA = model_of, wrapped, {"vocab_size": VOCAB}
    serve(probe_fsdp1.measure, probe_fsdp1.named)
