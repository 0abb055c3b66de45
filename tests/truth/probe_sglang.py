"""SGLang's own rules, run on stand-ins: defaults by memory, tokens of the pool; and verl's buckets of weights to it.

    python tests/truth/probe_sglang.py SGLANG VERL > tests/truth/sglang/0.5.6.json
    python tests/truth/probe_sglang.py SGLANG > tests/truth/sglang/0.5.12.post1.json

`SGLANG`: folder of the wheel's package, `VERL`: of a checkout of verl; without it the wheel is a later one, whose
sequences are counted. Functions are taken out of their files by name,
so that neither package is imported: what they call is given to them.
"""

from __future__ import annotations

import ast
import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 2**30
SGLANG, VERL = Path(sys.argv[1]), Path(sys.argv[-1])


def taken(file: Path, name: str, given: dict[str, Any]) -> Any:
    """A function or method of a file, with the names that it reads."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                 and node.name == name)
    exec(compile(ast.Module([found], []), str(file), "exec"), given)  # noqa: S102 - upstream's own code
    return given[name]


# ---- SGLang ----------------------------------------------------------------------------------------------------------
def settings(memory_mib: int, tp: int) -> dict[str, int]:
    """Tokens of a prefill and sequences of the largest graph, and the fraction that SGLang takes by itself."""
    file = SGLANG / "srt/server_args.py"
    rule = taken(file, "_handle_gpu_memory_settings", {"is_npu": lambda: False})
    given = dict.fromkeys(("chunked_prefill_size", "cuda_graph_max_bs", "cuda_graph_bs", "piecewise_cuda_graph_tokens",
                           "speculative_algorithm"))
    args = SimpleNamespace(
        tp_size=tp, pp_size=1, dp_size=1, max_prefill_tokens=16384, enable_dp_attention=False, mem_fraction_static=0.5,
        disable_cuda_graph_padding=False, enable_piecewise_cuda_graph=False, device="cuda", model_path="",
        max_total_tokens=None, enable_symm_mem=False, piecewise_cuda_graph_max_tokens=None,
        use_mla_backend=lambda: False, **given)
    sizes = taken(file, "_generate_cuda_graph_batch_sizes", {})
    args._generate_cuda_graph_batch_sizes = lambda: sizes(args)
    args._generate_piecewise_cuda_graph_tokens = list
    rule(args, memory_mib)
    return {"memory_mib": memory_mib, "tp": tp, "tokens": args.chunked_prefill_size, "graphs": args.cuda_graph_max_bs,
            "largest": max(args.cuda_graph_bs)}


def tokens(free: int, weights: int, fraction: float, heads: int, layers: int) -> dict[str, Any]:
    """Tokens of the pool where `free` bytes are free before weights of `weights` bytes."""
    rule = taken(SGLANG / "srt/model_executor/model_runner.py", "profile_max_num_token", {
        "get_available_gpu_memory": lambda *_, **__: (free - weights) / GIB, "get_attention_tp_size": lambda: 1,
        "get_world_group": lambda: SimpleNamespace(world_size=1, cpu_group=None),
        "is_float4_e2m1fn_x2": lambda _: False,
        "torch": SimpleNamespace(_utils=SimpleNamespace(_element_size=lambda _: 2))})
    runner = SimpleNamespace(
        device="cuda", gpu_id=0, is_draft_worker=False, mambaish_config=None, num_effective_layers=layers,
        use_mla_backend=False, kv_cache_dtype=None, mem_fraction_static=fraction,
        model_config=SimpleNamespace(get_num_kv_heads=lambda _: heads, head_dim=128))
    return {"free": free, "weights": weights, "fraction": fraction, "cell": heads * 128 * layers * 2 * 2,
            "tokens": rule(runner, free / GIB)}


# ---- verl ------------------------------------------------------------------------------------------------------------
LIVE = {"clones": 0, "gathered": 0}
HIGHEST = {"clones": 0, "gathered": 0}


class Counted:
    """Stand-in of a tensor of `size` bytes, which counts those that are alive."""

    def __init__(self, size: int, kind: str = "gathered") -> None:
        self.size, self.kind = size, kind
        LIVE[kind] += size
        if sum(LIVE.values()) > sum(HIGHEST.values()):
            HIGHEST.update(LIVE)

    def element_size(self) -> int:
        """One byte."""
        return 1

    def numel(self) -> int:
        """Its bytes."""
        return self.size

    def clone(self) -> Counted:
        """A copy."""
        return Counted(self.size, "clones")

    def __del__(self) -> None:
        LIVE[self.kind] -= self.size


def buckets(sizes: list[int], bucket: int) -> dict[str, Any]:
    """Bytes that are alive at once in verl's loop over buckets (`sglang_rollout.py` update_weights)."""
    given: dict[str, Any] = {"Iterator": Iterator, "torch": SimpleNamespace(Tensor=Counted)}
    taken(VERL / "workers/rollout/utils.py", "ensure_async_iterator", given)
    cut = taken(VERL / "workers/rollout/sglang_rollout/utils.py", "get_named_tensor_buckets", given)

    async def update(weights: AsyncIterator[Any]) -> None:
        async for params_batch in cut(weights, bucket):
            await asyncio.sleep(0 * len(params_batch))

    HIGHEST.update(clones=0, gathered=0)
    asyncio.run(update((str(number), Counted(size)) for number, size in enumerate(sizes)))  # type: ignore[arg-type]
    return {"sizes": sizes, "bucket": bucket, "highest": sum(HIGHEST.values())}


def drawn() -> Iterator[dict[str, Any]]:
    """Buckets of sizes by hand, and of drawn ones."""
    for sizes, bucket in (([5], 10), ([15], 10), ([6, 6, 6], 10), ([3] * 9, 10), ([20, 1, 1, 20], 10), ([1, 20, 1], 10),
                          ([10, 10], 10), ([4, 4], 100)):
        yield buckets(sizes, bucket)
    draw = random.Random(41)
    for _ in range(40):
        yield buckets([draw.randint(1, 40) for _ in range(draw.randint(1, 30))], draw.randint(10, 90))


def sequences(capacity: int, context: int, asked: int | None) -> dict[str, Any]:
    """Sequences of a pool of `capacity` tokens, by the later version."""
    rule = taken(SGLANG / "srt/model_executor/model_runner_kv_cache_mixin.py", "_resolve_max_num_reqs", {
        "ModelRunner": object})
    runner = SimpleNamespace(model_config=SimpleNamespace(context_len=context), dp_size=1, mambaish_config=None,
                             server_args=SimpleNamespace(max_running_requests=asked))
    return {"tokens": capacity, "context": context, "asked": asked, "sequences": rule(runner, capacity)}


if len(sys.argv) == 2:  # the later version
    json.dump({
        "settings": [settings(memory, tp) for memory in (16000, 24000, 40000, 81000, 140000, 183000) for tp in (1, 4)],
        "sequences": [sequences(*case) for case in (
            (1_000_000, 512, None), (1_000_000, 32768, None), (100_000, 32768, None), (3000, 512, None),
            (1_000_000, 32768, 256), (1_000_000, 32768, 8192))]}, sys.stdout)
    sys.exit()

json.dump({
    "settings": [settings(memory, tp) for memory in (16000, 24000, 40000, 81000, 140000, 183000) for tp in (1, 4)],
    "tokens": [tokens(*case) for case in (
        (79 * GIB, 15 * GIB, 0.5, 4, 28), (70 * GIB, 15 * GIB, 0.85, 2, 28), (60 * GIB, 8 * GIB, 0.3, 8, 36),
        (75 * GIB, 40 * GIB, 0.5, 8, 64), (131 * GIB, 1 * GIB, 0.61, 2, 24))],
    "buckets": list(drawn())}, sys.stdout, indent=None)
