"""States that OpenRLHF's sleep mode takes off the GPU, from DeepSpeed's own engine on one CPU.

    python tests/truth/probe_openrlhf_sleep.py CLONE [SEED COUNT] > tests/truth/openrlhf/sleep.json

`CLONE`: git directory of OpenRLHF, whose own functions of 0.11.0 run: `get_train_ds_config` makes the configuration,
`offload_deepspeed_states` and `reload_deepspeed_states` (`openrlhf/utils/deepspeed/deepspeed_utils.py`) the sleep. The
process group is torch's fake one, the optimizer torch's Adam in the place of FusedAdam. `asleep`: bytes of each kind of
states that DeepSpeed moves, one call of `offload_states` for each, and of the buckets of gradients that it drops;
`pinned`: those of host buffers that are made for it; `gathered`, `asleep_gathered`: elements of parameters that are
whole before and after; `awake`: bytes that come back; `refused`: what is raised instead. Sleep follows two steps.
Layouts are drawn. Each case is a process.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from json_lines import with_cases
from oracle.apart import run_apart
from probe_openrlhf import defined, source

RELEASE = "v0.11.0"
KINDS = ("optim_states", "hp_params", "lp_grads", "contiguous_grad_buffer")


def drawn(seed: int, count: int) -> dict[str, dict[str, Any]]:
    """Cases by their names."""
    pick, cases = random.Random(seed), {}
    for number in range(count):
        head = pick.choice((16, 32))
        heads = pick.choice((4, 8))
        ranks = pick.choice((2, 3, 4, 8))
        cases[f"{seed}-{number}"] = {
            "stage": pick.choice((1, 2, 3, 3)), "ranks": ranks, "rank": 0,
            "overlap": pick.random() < 0.3, "adam_offload": pick.random() < 0.15,
            "model": {"hidden_size": head * heads, "intermediate_size": pick.choice((192, 320, 448)),
                      "num_hidden_layers": pick.choice((2, 3, 5)), "num_attention_heads": heads,
                      "num_key_value_heads": pick.choice((2, 4)), "head_dim": head,
                      "vocab_size": pick.choice((1000, 1504, 2001)),
                      "tie_word_embeddings": pick.random() < 0.3}}
    return cases


def prepare() -> None:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    import importlib

    import deepspeed
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.ops.adam.fused_adam.FusedAdam = torch.optim.AdamW
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None


def engine_of(clone: str, row: dict[str, Any]) -> tuple[Any, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    os.environ |= {"RANK": str(row["rank"]), "WORLD_SIZE": str(row["ranks"])}
    dist.init_process_group("fake", store=FakeStore(), rank=row["rank"], world_size=row["ranks"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = AutoConfig.for_model("llama", **row["model"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    space = defined(source(clone, RELEASE, "openrlhf/utils/deepspeed/deepspeed_utils.py"), {}, "get_train_ds_config",
                    "get_optimizer_grouped_parameters")
    made = space["get_train_ds_config"](offload=False, adam_offload=row["adam_offload"], stage=row["stage"], zpg=1,
                                        overlap_comm=row["overlap"])
    made |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2 * row["ranks"],
             "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    groups = space["get_optimizer_grouped_parameters"](model, 0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=made)
    return engine, config


def watched(optimizer: Any) -> dict[str, dict[str, int]]:
    """Bytes by kind as they leave, filled in by the optimizer's own method, which is called once for each kind."""
    import torch
    from deepspeed.accelerator import get_accelerator
    found: dict[str, dict[str, int]] = {"moved": {}, "pinned": {}}
    call, pin, copy, to = (optimizer.offload_states, type(get_accelerator()).pin_memory, torch.Tensor.copy_,
                           torch.Tensor.to)
    now = [""]

    def pinning(self: Any, tensor: Any, *_: Any, **__: Any) -> Any:
        found["pinned"][now[0]] = found["pinned"].get(now[0], 0) + tensor.nbytes
        return tensor.clone()

    def copying(self: Any, other: Any, *given: Any, **named: Any) -> Any:
        found["moved"][now[0]] = found["moved"].get(now[0], 0) + other.nbytes
        return copy(self, other, *given, **named)

    def moving(self: Any, *given: Any, **named: Any) -> Any:
        if given and str(given[0]) in ("cpu", "meta"):
            found["moved"][now[0]] = found["moved"].get(now[0], 0) + self.nbytes
        return to(self, *given, **named)

    def offload_states(include: Any, **named: Any) -> None:
        type(get_accelerator()).pin_memory, torch.Tensor.copy_, torch.Tensor.to = pinning, copying, moving
        for kind in include:
            now[0] = kind.value
            call(include=[kind], **named)
        type(get_accelerator()).pin_memory, torch.Tensor.copy_, torch.Tensor.to = pin, copy, to
    optimizer.offload_states = offload_states
    return found


def whole(engine: Any) -> int:
    """Elements of parameters that are gathered, under stage 3."""
    return sum(p.numel() for p in engine.module.parameters() if getattr(p, "ds_status", None) is not None
               and p.ds_status.name == "AVAILABLE")


def run(row: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch
    from packaging import version
    engine, config = engine_of(sys.argv[1], row)
    for _ in range(4):
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()
    space = {"torch": torch, "version": version, "deepspeed": deepspeed}
    defined(source(sys.argv[1], RELEASE, "openrlhf/utils/deepspeed/deepspeed_utils.py"), space,
            "offload_deepspeed_states", "reload_deepspeed_states")
    found, before = watched(engine.optimizer), whole(engine)
    try:
        space["offload_deepspeed_states"](engine)
        after, asleep = whole(engine), sorted(str(one) for one in getattr(engine.optimizer, "offloaded_states", ()))
        space["reload_deepspeed_states"](engine)
    except Exception as error:  # noqa: BLE001 - what upstream raises is the answer
        return {"refused": f"{type(error).__name__}: {str(error)[:120]}"}
    return {"moved": found["moved"], "pinned": found["pinned"], "gathered": before, "asleep_gathered": after,
            "offloaded": [one.rpartition(".")[2] for one in asleep]}


def main() -> None:
    import deepspeed
    prepare()
    seed, count = (int(one) for one in (sys.argv[2:] or (7341, 40)))
    rows = run_apart(drawn(seed, count), run)
    print(with_cases({"deepspeed": deepspeed.__version__, "openrlhf": RELEASE}, rows, indent=" "))


if __name__ == "__main__":
    main()
