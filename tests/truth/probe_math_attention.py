"""What torch's own attention of grouped heads allocates where no kernel takes it (SDPBackend.MATH).

    python tests/truth/probe_math_attention.py > tests/truth/tape/math-torch-2.13.0.json

Runs on a CPU, real tensors, without a dispatch mode, under which torch would add the mask in a new tensor: torch's own
profiler logs the allocator. `scaled_dot_product_attention(enable_gqa=True)` is one function of plain operators on
every device (`ATen/native/transformers/attention.cpp`, _scaled_dot_product_attention_math). Query, key and value are
views of [batch, sequence, width], as linears leave them, and the output is copied in that order, as transformers does.
`forward`, `backward`: births in order; `kept`: bytes that stay when forward is over, without the output; `peaks`: the
most of each pass. Numbers that a CPU puts in tensors of 8 bytes or less are left out.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

HEADS, DIM = 8, 64
CASES: dict[str, dict[str, Any]] = {
    f"{dtype}, {kv} of {HEADS} heads, {batch} x {seq}": {"dtype": dtype, "kv": kv, "batch": batch, "seq": seq}
    for dtype in ("float16", "bfloat16", "float32") for kv, batch, seq in ((2, 1, 256), (4, 2, 128), (1, 1, 512))}


def found(case: dict[str, Any]) -> dict[str, Any]:
    batch, seq, dtype = case["batch"], case["seq"], getattr(torch, case["dtype"])
    leaves = [torch.randn(batch, seq, heads * DIM, dtype=dtype).requires_grad_() for heads in
              (HEADS, case["kv"], case["kv"])]
    grad = torch.randn(batch, seq, HEADS, DIM, dtype=dtype)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with record_function("forward"):
            q, k, v = (x.view(batch, seq, -1, DIM).transpose(1, 2) for x in leaves)
            with sdpa_kernel(SDPBackend.MATH):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out = out.transpose(1, 2).contiguous()
            del q, k, v
        with record_function("backward"):
            out.backward(grad)
    events = sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    passes: dict[str, list[int]] = {"forward": [], "backward": []}
    now = ""
    for event in events:
        if event.name() in passes:
            now = event.name()
        elif event.name() == "[memory]" and now and abs(event.nbytes()) > 8:
            passes[now].append(event.nbytes())
    return {**{name: [size for size in changes if size > 0] for name, changes in passes.items()},
            "kept": sum(passes["forward"]) - out.nbytes,
            "peaks": [max(accumulate(changes)) for changes in passes.values()]}


if __name__ == "__main__":
    rows = {name: case | {"found": found(case)} for name, case in CASES.items()}
    print(json.dumps({"torch": torch.__version__.partition("+")[0], "cases": rows}))
