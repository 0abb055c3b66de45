"""What DeepSpeed's ZeRO sends and keeps, over small transformers models in bf16 on one CPU.

    python tests/truth/probe_deepspeed.py CHECKOUT > tests/truth/deepspeed/0.19.6.json
    python tests/truth/probe_deepspeed.py CHECKOUT offload > tests/truth/deepspeed/offload-0.19.6.json
    python tests/truth/probe_deepspeed.py CHECKOUT shards > tests/truth/deepspeed/shards-0.19.6.json
    python tests/truth/probe_deepspeed.py CHECKOUT apart > tests/truth/deepspeed/apart-0.19.6.json
    python tests/truth/probe_deepspeed.py CHECKOUT nvme > tests/truth/deepspeed/nvme-0.19.6.json
    python tests/truth/probe_deepspeed.py CHECKOUT averaged > tests/truth/deepspeed/averaged-0.19.6.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6), with hjson, msgpack, ninja, psutil and py-cpuinfo importable;
nothing is compiled. The process group is torch's fake one: collectives do nothing and are noted with the bytes of their
largest tensor. Two microbatches of the fourth step (`microbatches`, the order is recorded by then) and its update
(`step`), with its allocations (`memory`); `backward`: allocations of the third step's second microbatch that
are as long as a bucket that is reduced; `kept`: elements of what the optimizer object holds.
`offload`: what lies on the host, and on the device for it. There the optimizer is torch's (DeepSpeedCPUAdam is not
compiled) and `looked_at` are the elements of tensors in which infinities are looked for in the last microbatch.
`apart`: without `contiguous_gradients`; `averaged`: bytes of the storages that the optimizer holds of gradients before
its step, `bucket`: elements of buckets that it has.
`nvme`: states of ZeRO-3 swapped through a handle that moves nothing and notes bytes: `buffers` that it made, `moved` in
the last microbatch's backward and in the update, `unswapped`: elements of gradients that are no files by then.
`averaged`: single ranks of stages 1 and 2 just before the step: bytes of the storages of averaged gradients, and how
many parameters still have a gradient of their own.
`shards`: each collective with the size of its group; `order`: elements of tensors as they lie in the flat buffer.
Each case is a process: DeepSpeed has global state.
ZeRO-3 compares its record with rank 0's, which only rank 0 survives here.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import tempfile
from functools import partial

from json_lines import with_cases
from oracle.apart import run_apart

LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4000, "tie_word_embeddings": False}
DEEP = LLAMA | {"num_hidden_layers": 10}
SMALL = {"reduce_bucket_size": 300_000, "overlap_comm": False}
THREE = SMALL | {"stage3_prefetch_bucket_size": 100_000, "stage3_param_persistence_threshold": 1_000,
                 "stage3_max_reuse_distance": 1_000_000}


def case(stage, model=LLAMA, ranks=4, rank=0, kind="llama", checkpoint=True, **options):
    return {"stage": stage, "type": kind, "model": model, "ranks": ranks, "rank": rank, "checkpoint": checkpoint,
            "options": (THREE if stage == 3 else SMALL) | options}


CASES = {
    "one": case(1), "two": case(2), "two, 3 ranks": case(2, ranks=3, rank=1),
    "two, large bucket": case(2, reduce_bucket_size=2_000_000), "two, qwen2": case(2, kind="qwen2"),
    "three": case(3), "three, plain": case(3, checkpoint=False), "three, 3 ranks": case(3, ranks=3),
    "three, deep": case(3, model=DEEP), "three, deep, plain": case(3, model=DEEP, checkpoint=False),
    "three, no reuse": case(3, model=DEEP, stage3_max_reuse_distance=0),
    "three, little ahead": case(3, model=DEEP, stage3_prefetch_bucket_size=10_000),
    "three, nothing ahead": case(3, model=DEEP, stage3_prefetch_bucket_size=0),
    "three, few live": case(3, model=DEEP, stage3_max_live_parameters=1_500_000),
    "three, groups": case(3, model=DEEP, sub_group_size=500_000),
    "three, qwen2": case(3, kind="qwen2", model=DEEP),
}
TO_CPU = {"device": "cpu", "pin_memory": False}
OFFLOADED = {
    "one, optimizer": case(1, offload_optimizer=TO_CPU), "two, optimizer": case(2, offload_optimizer=TO_CPU),
    "two, optimizer, 3 ranks": case(2, ranks=3, rank=1, offload_optimizer=TO_CPU),
    "three, optimizer": case(3, offload_optimizer=TO_CPU),
    "three, both": case(3, offload_optimizer=TO_CPU, offload_param=TO_CPU),
    "three, both, groups": case(3, sub_group_size=500_000, offload_optimizer=TO_CPU, offload_param=TO_CPU),
    "three, parameters": case(3, offload_param=TO_CPU),
}
SHARDS = {
    "two, round robin": case(2, round_robin_gradients=True),
    "three, hpz": case(3, zero_hpz_partition_size=2, stage3_max_reuse_distance=0),
    "three, mics": case(3, mics_shard_size=2),
}
APART = {
    "one": case(1, contiguous_gradients=False), "two": case(2, contiguous_gradients=False),
    "two, 3 ranks": case(2, ranks=3, rank=1, contiguous_gradients=False),
    "two, overlapped": case(2, contiguous_gradients=False, overlap_comm=True),
    "three": case(3, contiguous_gradients=False), "three, plain": case(3, checkpoint=False, contiguous_gradients=False),
}
TO_NVME = {"device": "nvme", "pin_memory": False}
NVME = {
    "three": case(3, ranks=2, offload_optimizer=TO_NVME),
    "three, groups": case(3, ranks=2, sub_group_size=600_000, offload_optimizer=TO_NVME),
    "three, six buffers": case(3, ranks=2, offload_optimizer=TO_NVME | {"buffer_count": 6}),
}
AVERAGED = {
    **{f"two, rank {rank} of 4": case(2, rank=rank, checkpoint=False) for rank in range(4)},
    "one, rank 1 of 4": case(1, rank=1, checkpoint=False),
    "two, rank 2 of 3": case(2, ranks=3, rank=2, checkpoint=False),
    "two, rank 1 of 64": case(2, ranks=64, rank=1, checkpoint=False),
    "two, rank 40 of 64": case(2, ranks=64, rank=40, checkpoint=False),
}
MODES = {"averaged": AVERAGED, "nvme": NVME, "offload": OFFLOADED, "shards": SHARDS, "apart": APART}
CALLS = []
SHARDED = sys.argv[2:] == ["shards"]
NOTED = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce_coalesced")


def numel(tensors):
    return [tensor.numel() for tensor in tensors]


def kept(optimizer, stage):
    if stage < 3 and SHARDED:
        return {"order": numel(optimizer.round_robin_bit16_groups[0])}
    if stage < 3:
        return {"flat": numel(optimizer.bit16_groups_flat), "masters": numel(optimizer.single_partition_of_fp32_groups)}
    offload = optimizer.parameter_offload
    return {"parts": [p.ds_tensor.numel() for group in optimizer.fp16_groups for p in group],
            "masters": numel(optimizer.fp32_partitioned_groups_flat),
            "bucket": numel(b.buffer for b in optimizer.ipg_buckets.values() if b.buffer is not None),
            "gradients": [optimizer.grad_partitions_flat_buffer.numel()],
            "persistent": [p.ds_numel for p in offload.persistent_parameters]}


def on_host(optimizer, stage):
    """Elements of what offload keeps; after steps."""
    if stage < 3:
        groups = optimizer.single_partition_of_fp32_groups
        return {"masters": numel(groups), "gradients": numel(group.grad for group in groups),
                "moments": [state.numel() for group in groups for state in optimizer.optimizer.state[group].values()
                            if state.numel() > 1],
                "way_back": numel(optimizer.param_buffer_of_bit16_for_cpu_offload_groups),
                "largest": [optimizer.temp_grad_buffer_for_cpu_offload.numel(),
                            optimizer.temp_grad_buffer_for_gpu_offload.numel()],
                "accumulated": sorted(numel(optimizer.accumulated_grads_in_cpu.values()))}
    groups = optimizer.fp32_partitioned_groups_flat
    return {"masters": numel(groups), "gradients": [g.grad.numel() for g in groups if g.grad is not None],
            "accumulated": [optimizer.grad_partitions_flat_buffer.numel()],
            "parameters": numel(optimizer.param_groups_fp16_flat_cpu_memory)}


class Drives:
    """DeepSpeed's handle of asynchronous files, without files."""

    buffers, moved, made = [], [], set()

    def __init__(self, *given, **named):
        self.pending = 0

    def new_cpu_locked_tensor(self, numel, like):
        import torch
        made = torch.zeros(numel, dtype=like.dtype)
        Drives.buffers.append(made.nbytes)
        Drives.made.add(made.untyped_storage().data_ptr())
        return made

    def free_cpu_locked_tensor(self, tensor):
        return True

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in Drives.made

    def async_pread(self, buffer, path, offset):
        return self._move("read", buffer)

    def async_pwrite(self, buffer, path, offset):
        return self._move("write", buffer)

    def _move(self, way, buffer):
        Drives.moved.append([way, buffer.nbytes])
        self.pending += 1
        return 0

    def wait(self):
        done, self.pending = self.pending, 0
        return done


def swapped(engine, config):
    """One more step, of two microbatches."""
    import torch
    for _ in range(2):
        Drives.moved.clear()
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        backward = list(Drives.moved)
        unswapped = sorted(x.numel() for info in engine.optimizer.optimizer_swapper.swap_params_info.values()
                           for x in info.unswapped_gradients.values())
        Drives.moved.clear()
        engine.step()
    return {"buffers": Drives.buffers, "moved": {"backward": backward, "step": list(Drives.moved)},
            "unswapped": unswapped}


def apart(optimizer, stage):
    """What is held of gradients, after backward; and whether there are buckets."""
    if stage == 3:
        return {"bucket": [b.buffer.numel() for b in optimizer.ipg_buckets.values() if b.buffer is not None]}
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for group in optimizer.averaged_gradients.values() for x in group or ()}
    return {"averaged": sorted(held.values()),
            "bucket": [x.numel() for b in optimizer.ipg_buckets.values() for x in b.buffer]}


def averaged(row):
    """The second microbatch's backward is over."""
    import torch
    engine, config = started(row)
    for _ in range(2):
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
                for group in (engine.optimizer.averaged_gradients or {}).values() for x in group or ()}
        own = sum(p.grad is not None for p in engine.module.parameters())
        engine.step()
    return {"averaged": sorted(held.values()), "own": own}


def looking(optimizer, found):
    """Every tensor in which infinities are looked for is noted."""
    call = optimizer._has_inf_or_nan

    def noted(tensor, *given, **named):
        found.append(tensor.numel())
        return call(tensor, *given, **named)
    optimizer._has_inf_or_nan = noted


def prepare():
    """Everything is imported once, collectives are noted from the beginning."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345"}
    import torch
    import torch.distributed as dist

    def noting(name, call):
        def noted(*given, **named):
            tensors = [x for x in (*given, *named.values()) if torch.is_tensor(x)]
            listed = [x for one in (*given, *named.values()) if isinstance(one, list) for x in one
                      if torch.is_tensor(x)]
            size = sum(x.numel() * x.element_size() for x in listed) or max(
                x.numel() * x.element_size() for x in tensors)
            groups = [x for x in (*given, *named.values()) if isinstance(x, dist.ProcessGroup)]
            group = [dist.get_world_size(groups[0] if groups else None)] if SHARDED else []
            CALLS.append([name, size, *group])
            return call(*given, **named)
        return noted

    for name in NOTED:
        setattr(dist, name, noting(name, getattr(dist, name)))
    import deepspeed  # noqa: F401
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401
    importlib.import_module("deepspeed.comm.torch")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    if sys.argv[2:] == ["nvme"]:
        builder = importlib.import_module("deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper")
        handle = type("Op", (), {"aio_handle": Drives})
        builder.AsyncIOBuilder = type("Builder", (), {"load": lambda _: handle})
    if sys.argv[2:] == ["apart"]:  # it knows the types of a GPU's tensors alone, and would send none
        importlib.import_module("deepspeed.runtime.zero.stage_1_and_2").split_half_float_double = lambda x: [list(x)]


def profiled(call):
    """Allocations and frees of 100 kB and more in a call, in bytes, in order; not of what was there before."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    return [size for _, size in sorted((event.start_ns(), event.nbytes())
                                       for event in profiler.profiler.kineto_results.events()
                                       if event.name() == "[memory]" and abs(event.nbytes()) >= 100_000)]


def model_of(row):
    """The case's model and its configuration, in the case's rank of torch's fake process group."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM
    os.environ |= {"RANK": str(row["rank"]), "WORLD_SIZE": str(row["ranks"])}
    dist.init_process_group("fake", store=FakeStore(), rank=row["rank"], world_size=row["ranks"])
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    config = AutoConfig.for_model(row["type"], **row["model"])
    attention = row.get("attn_implementation", "sdpa")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention).train()
    if row["checkpoint"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, config


def started(row):
    """The engine and the configuration of its model."""
    import deepspeed
    import torch
    model, config = model_of(row)
    if "lora" in row:
        from peft import LoraConfig, get_peft_model
        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=row["lora"], lora_alpha=8, target_modules=["q_proj", "v_proj"]),
                               autocast_adapter_dtype=False)
    options = dict(row["options"])
    if sys.argv[2:] == ["nvme"]:
        options["offload_optimizer"] = {"nvme_path": tempfile.mkdtemp(), **options["offload_optimizer"]}
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row.get("steps", 2),
            "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": row["stage"], **options}})
    return engine, config


def run(row):
    import torch
    engine, config = started(row)
    if row["options"].get("offload_optimizer") and sys.argv[2:] == ["nvme"]:
        for _ in range(2):
            result = swapped(engine, config)
        return result | {"groups": [int(n) for n in engine.optimizer.fp16_partitioned_groups_flat_numel]}
    found = {"kept": kept(engine.optimizer, row["stage"])}
    for number in range(4):  # what was made while the profiler ran is all whose end it sees
        found["microbatches"] = []
        for _ in range(2):
            CALLS.clear()
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
            if number == 2:
                moved = profiled(partial(engine.backward, loss))
                sent = {size for name, size, *_ in CALLS if name != "all_gather_into_tensor"}
                found["backward"] = [size for size in moved if size in sent]
            else:
                engine.backward(loss)
            found["microbatches"].append(list(CALLS))
            CALLS.clear()
            if number == 3 and not row["options"].get("contiguous_gradients", True):
                found |= apart(engine.optimizer, row["stage"])
            if number == 3:
                found["memory"] = profiled(engine.step)
            else:
                engine.step()
        found["step"] = list(CALLS)
    if any(key.startswith("offload") for key in row["options"]):
        return kept_away(engine, config, found)
    return found


def kept_away(engine, config, found):
    """One more step, watched."""
    import torch
    looked = []
    looking(engine.optimizer, looked)
    for _ in range(2):
        looked.clear()
        tokens = torch.randint(0, config.vocab_size, (1, 32))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        watched = list(looked)
        engine.step()
    del found["memory"], found["backward"]
    stage = engine.zero_optimization_stage()
    return found | {"offload": on_host(engine.optimizer, stage), "looked_at": sorted(watched)}


def rest_of(tracker):
    """Bytes of all tensors on the CPU that there are, which the tracker knows from now on."""
    import torch

    known = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.device.type == "cpu"]
    for one in known:
        tracker.number_of(one)
    del known, one
    gc.collect()
    return sum(change for _, change in tracker.events)


def main():
    sys.path.insert(0, sys.argv[1])
    prepare()
    rows = run_apart(MODES[sys.argv[2]] if sys.argv[2:] else CASES,
                     averaged if sys.argv[2:] == ["averaged"] else run)
    print(with_cases({"deepspeed": "0.19.6 edaa72212"}, rows, indent=" "))


if __name__ == "__main__":
    main()
