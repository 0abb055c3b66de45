"""Models of transformers, their wrappers and optimizers, made as a scenario says: real tensors on one device.

Every key of a scenario is taken by a maker; one that is left over raises, since the row would say what did not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle.steps import models

WITHOUT_EFFECT = ("topology", "framework", "training.global_batch_size")
"""Keys that name what a maker is for, or follow from one microbatch a step."""


@dataclass
class Made:
    """A step's parts. `loss`: from tokens and labels [batch, seq] to the loss; `batch`: makes both."""

    loss: Callable[[Any, Any], Any]
    batch: Callable[[], tuple[Any, Any]]
    optimizer: Any


class Keys:
    """Leaves of a scenario by dotted key, each of which has to be taken."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.left = dict(_flat(scenario))

    def take(self, key: str, default: Any = None) -> Any:
        return self.left.pop(key, default)

    def fields(self) -> dict[str, Any]:
        """All fields of the model's configuration."""
        fields = models.fields_of(self.take("model.config"))
        fields |= {key.split(".")[-1]: self.take(key) for key in list(self.left) if key.startswith("model.overrides.")}
        return {name: value for name, value in fields.items() if not name.startswith("_")}

    def check_all_taken(self) -> None:
        if unread := sorted(self.left.keys() - set(WITHOUT_EFFECT)):
            raise KeyError(f"the maker does not read {', '.join(unread)}")


def _flat(values: dict[str, Any], prefix: str = "") -> Any:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def dtype_of(torch: Any, name: str) -> Any:
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


def batches(keys: Keys, torch: Any, device: str, vocab: int) -> Callable[[], tuple[Any, Any]]:
    """Random tokens and labels."""
    shape = keys.take("training.micro_batch_size"), keys.take("training.seq_len")

    def batch() -> tuple[Any, Any]:
        return torch.randint(0, vocab, shape, device=device), torch.randint(0, vocab, shape, device=device)

    return batch


def plain(fields: dict[str, Any], torch: Any, device: str, dtype: Any, experts: str | None) -> Any:
    """The model as transformers initialises it, in `dtype`; rotary frequencies stay fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation, config.use_cache = "sdpa", False
    if experts:
        config._experts_implementation = experts
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.train()


def adamw(keys: Keys, torch: Any, model: Any) -> Any:
    """AdamW of torch over what is trained."""
    kinds = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for_loop": {"foreach": False}}
    assert keys.take("training.optimizer.name") == "adamw"
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5,
                             **kinds[keys.take("training.optimizer.implementation")])


def one_rank(torch: Any, device: str) -> None:
    """A process group of this process alone."""
    where = {"device_id": torch.device("cuda", 0)} if device == "cuda" else {}
    torch.distributed.init_process_group("nccl" if where else "gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1, **where)


def head_loss(model: Any) -> Callable[[Any, Any], Any]:
    """The loss that the model computes itself; logits are dropped."""
    def loss(tokens: Any, labels: Any) -> Any:
        return model(input_ids=tokens, labels=labels, use_cache=False).loss

    return loss


def autocast_loss(model: Any, torch: Any, device: str) -> Callable[[Any, Any], Any]:
    """`head_loss` with products in bf16."""
    plainly = head_loss(model)

    def loss(tokens: Any, labels: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return plainly(tokens, labels)

    return loss


def fsdp2(scenario: dict[str, Any], torch: Any, device: str) -> Made:
    """`fully_shard` of layers and root, in mixed precision."""
    from oracle.steps import setup
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    keys = Keys(scenario)
    one_rank(torch, device)
    fields, precision = keys.fields(), {name: dtype_of(torch, keys.take(f"training.precision.{name}"))
                                        for name in ("params", "compute", "grad_reduce")}
    model = plain(fields, torch, device, precision["params"], keys.take("framework_options.experts_implementation"))
    layers = models.decoder_layers(model)
    recompute = {None: "none", "full": "layer"}[keys.take("training.recompute")]
    setup.checkpoint(model, layers, {"ac": recompute})
    policy = MixedPrecisionPolicy(param_dtype=precision["compute"], reduce_dtype=precision["grad_reduce"])
    mesh = init_device_mesh(device, (1,), mesh_dim_names=("dp_shard",))
    setup.shard(model, layers, {"wrap": "layers_root"}, {"mesh": mesh, "mp_policy": policy}, None)
    made = Made(head_loss(model), batches(keys, torch, device, fields["vocab_size"]), adamw(keys, torch, model))
    keys.check_all_taken()
    return made


def ddp(scenario: dict[str, Any], torch: Any, device: str) -> Made:
    """As `process`, inside of DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    one_rank(torch, device)
    return process(scenario, torch, device, DistributedDataParallel)


def process(scenario: dict[str, Any], torch: Any, device: str, wrapper: Callable[[Any], Any] | None = None) -> Made:
    """A process alone over 16-bit weights, with adapters of PEFT if the method is LoRA; trainers do not wrap it."""
    keys = Keys(scenario)
    fields = keys.fields()
    assert keys.take("training.precision.compute") == keys.take("training.precision.params") == "bf16"
    model = plain(fields, torch, device, torch.bfloat16, keys.take("framework_options.experts_implementation"))
    recomputed = keys.take("training.recompute") == "full"
    if keys.take("training.method") == "lora":
        model = adapted(keys, torch, model)
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    wrapped = wrapper(model) if wrapper else model
    run = torch.compile(wrapped) if keys.take("framework_options.compile") else wrapped
    made = Made(head_loss(run), batches(keys, torch, device, fields["vocab_size"]), adamw(keys, torch, model))
    keys.check_all_taken()
    return made


def adapted(keys: Keys, torch: Any, model: Any) -> Any:
    """The model with PEFT's adapters in the type that the scenario gives; PEFT itself makes them fp32."""
    import peft

    rank = keys.take("training.lora.rank")
    made = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank,
                                                      target_modules=keys.take("training.lora.target_modules")))
    kind = keys.take("training.lora.dtype")
    for p in made.parameters():
        if p.requires_grad and kind:
            p.data = p.data.to(dtype_of(torch, kind))
    return made
