"""Megatron-FSDP on one CPU: no streams, no data, collectives that do nothing; what it builds and does is noted.

Streams, events and coalescing are replaced, and checks that read values; everything that decides is upstream's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from . import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core.distributed.distributed_data_parallel_config import (  # noqa: E402
    DistributedDataParallelConfig as DdpConfig,
)
from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp as hooks  # noqa: E402
from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer as buffers  # noqa: E402
from megatron.core.distributed.fsdp.src.megatron_fsdp.utils import FSDPDistributedIndex  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

HIDDEN, RANK = 16, 4


class Stream:
    """One that never waits."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: self


class Pool:
    """The global memory buffer; here each tensor is new."""

    def get_tensor(self, shape: list[int], dtype: torch.dtype, name: str, mem_alloc_context: Any) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


@contextlib.contextmanager
def no_coalescing(*_args: Any, **_kwargs: Any) -> Iterator[Stream]:
    yield Stream()


def start(world: int, rank: int) -> None:
    """A fake process group."""
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK=str(rank))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def without_gpu() -> None:
    """Streams that never wait, collectives one by one, and no look at values."""
    for name, made in (("Stream", Stream), ("current_stream", lambda *_: Stream()),
                       ("stream", lambda _: contextlib.nullcontext()), ("current_device", lambda: 0),
                       ("empty_cache", lambda: None), ("synchronize", lambda *_: None)):
        setattr(torch.cuda, name, made)
    buffers._coalescing_manager = no_coalescing
    buffers.get_global_memory_buffer = Pool
    buffers.validate_uneven_dtensor = lambda *_args, **_kwargs: None
    buffers.update_uneven_dtensor_chunk_metadata = lambda *_args, **_kwargs: None


# ---- buckets --------------------------------------------------------------------------------------------------------
def buckets(model: nn.Module, units: list[type], bucket_size: int | None, sizes: dict[bool, int],
            ranks: dict[bool, int]) -> list[dict[str, Any]]:
    """Every bucket: unit, experts, chunk, elements with padding; of each tensor its name, shape and start.

    `sizes`, `ranks`: of the data parallel group, by whether it is the experts'.
    """
    policy = buffers.BucketingPolicy(bucket_size, units, "optim_grads_params")
    config = DdpConfig(data_parallel_sharding_strategy="optim_grads_params")
    names = {p: name for name, p in model.named_parameters()}
    found = []
    for number, group in enumerate(buffers._get_parameter_groups(model, policy, {})[0]):
        parts = sizes[group.is_expert_param]
        items, bucket, shard = buffers.build_data_parallel_buffer_index(
            [p.shape for p in group.params], ranks[group.is_expert_param], parts, True, config, number,
            group.chunk_size_factor)
        found.append({
            "unit": -1 if group.fsdp_unit_id is None else group.fsdp_unit_id, "expert": group.is_expert_param,
            "chunk": group.chunk_size_factor, "numel": bucket.size, "shard": shard.size,
            "tensors": [[names[p], list(p.shape), items[i].global_data_index] for i, p in enumerate(group.params)]})
    return found


# ---- hand-over ------------------------------------------------------------------------------------------------------
def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, dtype=torch.bfloat16)


class Adapted(nn.Module):
    """A frozen linear and its adapter, named as Bridge's LoRALinear names them."""

    def __init__(self, to_wrap: nn.Linear) -> None:
        super().__init__()
        self.to_wrap = to_wrap.requires_grad_(False)
        self.adapter = nn.Sequential(*(nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16) for columns, rows in (
            (to_wrap.in_features, RANK), (RANK, to_wrap.out_features))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.to_wrap(x) + self.adapter(x)


class Layer(nn.Module):
    """A unit."""

    def __init__(self, *, adapted: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN, dtype=torch.bfloat16).requires_grad_(not adapted)
        self.up, self.down = linear(4 * HIDDEN, HIDDEN), linear(HIDDEN, 4 * HIDDEN)
        if adapted:
            self.up, self.down = Adapted(self.up), Adapted(self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)))


class Model(nn.Module):
    """Embedding, units, norm and head: what is in no unit is one bucket, the first.

    `plain`: the layers without adapters, if the others have some; all else is frozen then.
    """

    def __init__(self, layers: int, *, recompute: bool, plain: list[int] | None = None) -> None:
        super().__init__()
        self.recompute, self.adapted = recompute, plain is not None
        self.embedding = nn.Embedding(64, HIDDEN, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer(adapted=plain is not None and layer not in plain) for layer in range(layers))
        self.norm = nn.LayerNorm(HIDDEN, dtype=torch.bfloat16)
        self.head = linear(64, HIDDEN)
        for part in (self.embedding, self.norm, self.head, *(self.layers[layer] for layer in plain or ())):
            part.requires_grad_(not self.adapted)

    def begun(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens)

    def ended(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x)).float().logsumexp(-1).sum()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.begun(tokens)
        if self.recompute and self.adapted and not x.requires_grad:  # Bridge's peft/recompute.py
            x = x.detach().requires_grad_(True)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.recompute else layer(x)
        return self.ended(x)


def held(allocator: Any) -> set[int]:
    """Buckets that have memory, of their own or of the pool."""
    own = getattr(allocator, "backup_allocator", allocator).buckets
    return {*getattr(allocator, "using_buffer", ()), *(b for b, bucket in own.items()
                                                       if bucket.data.untyped_storage().size())}


def _elements(buffer: Any) -> int:
    """Elements that a rank keeps; frozen parameters have no such buffer."""
    return int(buffer.data.numel()) if buffer else 0


def _in_copies(world: int, copies: int) -> FSDPDistributedIndex:
    """Ranks of several copies, whose optimizer is cut over all."""
    mesh = init_device_mesh("cpu", (copies, world // copies, 1), mesh_dim_names=("outer", "dp_cp", "tp"))
    return FSDPDistributedIndex(device_mesh=mesh, dp_outer_dim="outer", dp_shard_dim="dp_cp", tp_dim="tp",
                                hsdp_outer_dp_shard=True, hybrid_fsdp_group=dist.group.WORLD)


class Noted:
    """Megatron-FSDP around a small model, and what its two pipelines do.

    `between`: names of buffers within a copy, where the optimizer is cut over copies.
    """

    between = (("hfsdp_helper_wbuf", "hfsdp_helper_gbuf") if "hfsdp_helper_wbuf" in {
        field.name for field in fields(buffers.ParameterGroup)} else ("hsdp_wbuf", "hsdp_gbuf"))

    def __init__(self, world: int, layers: int, *, recompute: bool, copies: int = 1, sent: str = "",
                 plain: list[int] | None = None, model: nn.Module | None = None, stages: int = 1,
                 **config: Any) -> None:
        self.events: list[str] = []
        self.widths: dict[str, int] = {}
        self.model = model or Model(layers, recompute=recompute, plain=plain)
        index = _in_copies(world, copies) if copies > 1 else FSDPDistributedIndex(
            device_mesh=init_device_mesh("cpu", (stages, world // stages, 1), mesh_dim_names=("pp", "dp_cp", "tp"))[
                "dp_cp", "tp"], dp_shard_dim="dp_cp", tp_dim="tp")
        ddp = DdpConfig(
            use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params", grad_reduce_in_fp32=True,
            overlap_grad_reduce=True, check_for_nan_in_grad=False, bucket_size=40_000_000, **config)
        policy = {"mixed_precision_policy": hooks.MixedPrecisionPolicy(
            main_grads_dtype=torch.float32, grad_comm_dtype=getattr(torch, sent))} if sent else {}
        self.fsdp = hooks.MegatronFSDP(self.model, index, ddp, fsdp_unit_modules=[Layer], device=torch.device("cpu"),
                                       **policy)
        self._listen()
        if copies > 1:
            self._listen_between(index.get_outer_fsdp_group())

    def _listen_between(self, group: Any) -> None:
        """Calls between copies, with the elements of the larger side."""
        calls = {"all_gather_into_tensor": "output_tensor", "reduce_scatter_tensor": "input", "all_reduce": ""}
        for name, large in calls.items():
            call = getattr(torch.distributed, name)

            def noted(*args: Any, name: str = name, large: str = large, call: Any = call, **kwargs: Any) -> Any:
                if name == "reduce_scatter_tensor":
                    self.widths["between" if kwargs["group"] is group else "whole"] = kwargs[large].element_size()
                if kwargs.get("group") is group:
                    self.events.append(f"{name} {(kwargs[large] if large else args[0]).numel()}")
                return call(*args, **kwargs)

            setattr(torch.distributed, name, noted)

    def listen_to_casts(self) -> None:
        """Copies of reduced shards in the format that is sent."""
        for number, group in enumerate(self.fsdp.param_and_grad_buffer.parameter_groups):
            lent = group.hsdp_comm_gbuf
            if lent is None:
                continue
            allocate, free = lent.allocate_bucket_storage, lent.free_bucket_storage

            def noted_allocate(*args: Any, number: int = number, allocate: Any = allocate, **kwargs: Any) -> Any:
                made = allocate(*args, **kwargs)
                self.events.append(f"cast {number} {made.data.numel() * made.data.element_size()}")
                return made

            def noted_free(number: int = number, free: Any = free) -> None:
                self.events.append(f"uncast {number}")
                free()

            lent.allocate_bucket_storage, lent.free_bucket_storage = noted_allocate, noted_free

    def kept(self) -> list[dict[str, int]]:
        """Elements that a rank keeps of each bucket, and of the whole one."""
        whole, parts = self.between
        return [{"numel": group.model_weight_buffer.bucket_index.size,
                 "params": _elements(getattr(group, whole) or group.model_weight_buffer),
                 "grads": _elements(getattr(group, parts) or group.main_grad_buffer),
                 "masters": _elements(group.main_weight_buffer)}
                for group in self.fsdp.param_and_grad_buffer.parameter_groups]

    def _listen(self) -> None:
        gathers, empty = self.fsdp.all_gather_pipeline, buffers.BucketStatus.EMPTY
        gather, release = gathers.async_bucket_gather, gathers.release_bucket
        reduce = self.fsdp.grad_reduce_pipeline._bucket_group_gradient_reduce

        def noted_gather(bucket: int, bwd: bool) -> None:
            was_empty = gathers.bucket_status[gathers.get_bucket_key(bucket, bwd)] is empty
            gather(bucket, bwd)
            self.events += [f"gather {bucket}"] * was_empty

        def noted_release(bucket: int, bwd: bool, lazy: bool = False) -> None:
            if gathers.bucket_status[gathers.get_bucket_key(bucket, bwd)] is not empty and not lazy:
                self.events.append(f"release {bucket}")
            release(bucket, bwd, lazy)

        def noted_reduce(group: list[int], *args: Any, **kwargs: Any) -> bool:
            self.events += [f"reduce {bucket}" for bucket in group]
            return bool(reduce(group, *args, **kwargs))

        gathers.async_bucket_gather, gathers.release_bucket = noted_gather, noted_release
        self.fsdp.grad_reduce_pipeline._bucket_group_gradient_reduce = noted_reduce
        self._listen_to_gradients()

    def _listen_to_gradients(self) -> None:
        groups = self.fsdp.param_and_grad_buffer.parameter_groups
        shared = {id(made): made for made in (
            group.main_grad_buffer.temporary_bucket_allocator for group in groups if group.requires_grad)}
        for allocator in shared.values():
            allocate, free = allocator.allocate, allocator.free

            def noted_allocate(bucket_id: int, *args: Any, allocator: Any = allocator, allocate: Any = allocate,
                               **kwargs: Any) -> Any:
                self.events += [f"fill {bucket_id}"] * (bucket_id not in held(allocator))
                return allocate(bucket_id, *args, **kwargs)

            def noted_free(bucket_id: int, allocator: Any = allocator, free: Any = free) -> None:
                self.events += [f"drop {bucket_id}"] * (bucket_id in held(allocator))
                free(bucket_id)

            allocator.allocate, allocator.free = noted_allocate, noted_free

    def step(self, microbatches: int) -> list[str]:
        """What happens in a step that follows another."""
        for _ in range(2):
            self.events.clear()
            for number in range(microbatches):
                self.fsdp.is_last_microbatch = number == microbatches - 1
                self.events.append("forward")
                loss = self.fsdp(torch.zeros(2, 8, dtype=torch.long))
                self.events.append("backward")
                loss.backward()
            self.end_step()
        return list(self.events)

    def end_step(self) -> None:
        """Call of the trainer when all gradients exist."""
        self.fsdp.finish_grad_sync()
        self.events.append("step")
        self.fsdp.start_param_sync()
        self.fsdp.zero_grad_buffer()
