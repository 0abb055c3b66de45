r"""DPO and KTO of TRL 1.16.0 under FSDP2: what rests, what ranks exchange, and what a step holds.

    python tests/truth/probe_pairs_fsdp2.py > tests/truth/pairs/fsdp2-trl-1.16.0.json
    python tests/truth/probe_pairs_fsdp2.py SEED COUNT > tests/truth/pairs/fsdp2-drawn-trl-1.16.0.json

A CPU is one rank of a process group whose others answer nothing. TRL's trainer is made as in `probe_trl_preference.py`
and `probe_kto.py`; accelerate's own `fsdp2_prepare_model` wraps the policy, TRL's own `prepare_fsdp` the reference, and
the trainer's own `compute_loss` and a backward run three times; the last is kept. accelerate takes no CPU for FSDP, so
both functions are called as `Accelerator.prepare` and the trainer call them, with their plugin. `loaded`: the type in
which models were read; accelerate upcasts the policy of mixed precision. `rest`: bytes of shards, padding included, of
policy and reference. `calls`: of each part of the step (passes, then backward) kind, bytes of the whole, dtype.
`begins`, `ends`: bytes above those before the step at both ends of each pass; `backward`: where one begins; `most`: the
highest of each pass, and until the end of the last backward. `steps`: microbatches, of which the last reduces.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from contextlib import redirect_stdout
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import accelerate
import probe_kto
import probe_trl_pairs
import probe_trl_preference
import torch
import torch.distributed as dist
import trl
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.profiler import ProfilerActivity, profile, record_function
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM
from trl.models import prepare_fsdp

GATHERS = ("c10d._allgather_base_.default", "_c10d_functional.all_gather_into_tensor.default")
SCATTERS = ("c10d._reduce_scatter_base_.default",)
SIZES = {"hidden": 64, "layers": 4, "vocab": 1000}
CASES = tuple({**SIZES, "trainer": name, "method": method, "batch": batch, "seq": seq, "mixed": mixed,
               "replays": replays, "before": before, "tied": tied, "world": world, "rank": rank, "loaded": loaded}
              for name in ("dpo", "kto") for method, before, tied, mixed, replays, batch, seq, world, rank, loaded in (
                  ("full", False, False, True, False, 2, 48, 4, 1, "fp32"),
                  ("full", False, True, False, True, 4, 40, 2, 0, "bf16"),
                  ("full", False, False, True, True, 2, 40, 2, 1, "bf16"),
                  ("lora", False, False, True, False, 2, 48, 4, 3, "bf16"),
                  ("lora", False, False, True, True, 4, 40, 3, 1, "bf16"),
                  ("lora", True, False, True, False, 2, 48, 4, 0, "bf16"),
                  ("lora", False, True, True, False, 2, 48, 4, 2, "bf16")))


class Noted(TorchDispatchMode):
    """Kinds, bytes and dtypes of all that ranks exchange, part by part."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[list[Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, name = function(*args, **(kwargs or {})), str(function)
        if name in GATHERS or name in SCATTERS:
            whole = max((one for one in tree_leaves((args, found)) if isinstance(one, torch.Tensor)),
                        key=lambda one: one.numel())
            self.parts[-1].append(["all_gather" if name in GATHERS else "reduce_scatter", whole.nbytes,
                                   str(whole.dtype).removeprefix("torch.")])
        elif "c10d" in name and not name.endswith(("_wrap_tensor_autograd.default", "wait_tensor.default")):
            raise RuntimeError(name)
        return found


def model_of(case: dict[str, Any]) -> Any:
    """Function that makes the small Llama of a case, in the place of the probes' own."""
    def made(vocab: int, dtype: torch.dtype) -> LlamaForCausalLM:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=vocab, hidden_size=case["hidden"], intermediate_size=2 * case["hidden"],
                             num_hidden_layers=case["layers"], num_attention_heads=2, num_key_value_heads=2,
                             max_position_embeddings=8192, tie_word_embeddings=case["tied"])
        found = LlamaForCausalLM(config).to(torch.bfloat16 if case["loaded"] == "bf16" else dtype)
        vars(found)["warnings_issued"] = {}
        return found
    return made


def trainer(case: dict[str, Any]) -> Any:
    probe_trl_preference.model = probe_trl_pairs.model = model_of(case)
    if case["trainer"] == "kto":
        return probe_kto.trainer(case | {"chosen": 1})
    return probe_trl_preference.trainer(case | {"pairs": case["batch"] // 2, "loss": "sigmoid"})


def sharded(made: Any, case: dict[str, Any]) -> Any:
    """The policy as accelerate makes it, after the reference as TRL does."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    kind = "bf16" if case["mixed"] else "no"
    if case["mixed"]:
        plugin.set_mixed_precision(kind)
    state = SimpleNamespace(fsdp_plugin=plugin, device_mesh=None, mixed_precision=kind)
    accelerator: Any = SimpleNamespace(state=state, mixed_precision=kind, torch_device_mesh=None,
                                       device=torch.device("cpu"), is_main_process=True)
    if made.ref_model is not None:
        made.ref_model = prepare_fsdp(made.ref_model, accelerator)
    return fsdp2_prepare_model(accelerator, made.model)


def resting(model: Any) -> int:
    """Bytes of a model's shards with their padding."""
    groups = {id(group): group for module in model.modules() if hasattr(module, "_get_fsdp_state")
              for group in module._get_fsdp_state()._fsdp_param_groups}
    return sum(param._sharded_param_data.untyped_storage().nbytes()
               for group in groups.values() for param in group.fsdp_params)


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The case, and its step."""
    made = trainer(case)
    dist.init_process_group("fake", store=FakeStore(), rank=case["rank"], world_size=case["world"])
    model = sharded(made, case)
    batch = made._prepare_inputs(next(iter(made.get_train_dataloader())))
    noted = Noted()
    for one in (model, *([] if made.ref_model is None else [made.ref_model])):
        one.register_forward_pre_hook(lambda *_: begun(noted), prepend=True)
        one.register_forward_hook(lambda *_: ended())
    model.train()
    if case["replays"]:  # as the Trainer's train() does
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=made.args.gradient_checkpointing_kwargs)
    gc.disable()  # what an earlier step left in cycles is freed before the last
    for _ in range(3):
        noted.parts.clear()
        gc.collect()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, noted:
            for left in reversed(range(case.get("steps", 1))):  # as accelerate's no_sync
                model.set_requires_gradient_sync(left == 0)
                loss = made.compute_loss(model, batch)
                noted.parts.append([])
                with record_function("backward"):
                    loss.backward()
                del loss
        for param in model.parameters():
            param.grad = None
    found = {**case, "rest": [resting(model), 0 if made.ref_model is None else resting(made.ref_model)],
             "calls": [part[:] for part in noted.parts], **held(profiler)}
    dist.destroy_process_group()
    return found


def begun(noted: Noted) -> None:
    """Begins a part."""
    noted.parts.append([])
    with record_function("begin"):
        pass


def ended() -> None:
    with record_function("end"):
        pass


def held(profiler: Any) -> dict[str, Any]:
    """Bytes at the borders of passes, and the highest between them."""
    events = list(profiler.profiler.kineto_results.events())
    sizes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    at = {name: sorted(event.start_ns() for event in events if event.name() == name) for name in ("begin", "end")}
    backs = sorted((one.start_ns(), one.start_ns() + one.duration_ns()) for one in events if one.name() == "backward")
    total = list(zip((moment for moment, _ in sizes), accumulate(size for _, size in sizes), strict=True))

    def until(moment: int) -> int:
        return max(((when, size) for when, size in total if when <= moment), default=(0, 0))[1]

    spans = [*zip(at["begin"], at["end"], strict=True), (0, backs[-1][1])]
    return {"begins": [until(moment) for moment in at["begin"]], "ends": [until(moment) for moment in at["end"]],
            "backward": [until(moment) for moment, _ in backs],
            "most": [max([until(first), *(size for when, size in total if first <= when <= last)])
                     for first, last in spans]}


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Cases by chance."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        world = draw.choice((2, 3, 4, 8))
        full, mixed = draw.random() < 0.5, draw.random() < 0.6
        found.append({"trainer": draw.choice(("dpo", "kto")), "method": "full" if full else "lora",
                      "hidden": 32 * draw.randint(2, 4), "layers": draw.randint(1, 5),
                      "vocab": draw.randint(600, 40000), "tied": draw.random() < 0.4,
                      "batch": 2 * draw.randint(1, 2), "seq": draw.randint(32, 96), "mixed": mixed or not full,
                      "loaded": draw.choice(("fp32", "bf16")) if full and mixed else "bf16",
                      "replays": draw.random() < 0.5, "steps": draw.randint(1, 3),
                      "before": not full and draw.random() < 0.25, "world": world, "rank": draw.randrange(world)})
    return found


if __name__ == "__main__":
    os.environ |= {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true",
                   "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
    probe_trl_preference.as_on_a_gpu()
    asked = drawn(*map(int, sys.argv[1:3])) if len(sys.argv) > 2 else CASES
    with redirect_stdout(sys.stderr):
        rows = ",\n ".join(json.dumps(measured(case)) for case in asked)
    print(f'{{"torch": "{torch.__version__}", "trl": "{trl.__version__}", "accelerate": "{accelerate.__version__}", '
          f'"cases": [\n {rows}]}}')
