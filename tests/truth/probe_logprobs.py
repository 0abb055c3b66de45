"""Log-probabilities in chunks: what NeMo RL's own function, behind Megatron-Core's own head, allocates and frees.

    python tests/truth/probe_logprobs.py MODEL_UTILS TRAIN > tests/truth/losses/logprobs-nemo-rl-7ea279ab.json

MODEL_UTILS, TRAIN: `nemo_rl/distributed/model_utils.py` and `nemo_rl/models/automodel/train.py` of NVIDIA-NeMo/RL
7ea279ab; functions are run from there ("local": those of DTensor's workers, over fp32 logits that are there). One CPU
runs a pass without gradients and a training pass; torch's profiler gives allocations. Kept are those with as many
elements as the logits, or a chunk of them, has, as signed bytes: those of bf16, fp32 or int64. Products of a CPU in
bf16 go through fp32 buffers of all logits, which are left out (a GPU has none, and no chunk is as long).
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch.profiler import ProfilerActivity, profile

VOCAB, HIDDEN = 512, 5
CASES = ((1, 10, 4), (2, 10, 4), (1, 8, 8), (1, 6, 16))
NAMES = ("_compute_distributed_log_softmax_with_grad", "_compute_distributed_log_softmax", "ChunkedDistributedLogprob",
         "_compute_local_logprobs")


def functions(path):
    """Definitions of one of NeMo RL's files that are asked for, by name."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    tree.body = [node for node in ast.walk(tree) if getattr(node, "name", "") in NAMES]
    found = {"torch": torch, "Any": Any, "Optional": Optional,
             "apply_top_k_top_p_filtering_for_local_logits": lambda logits, sampling: logits}
    exec(compile(tree, path, "exec"), found)  # noqa: S102
    return found


def local(function, batch, seq, chunk):
    """Signed bytes of tensors as large as a position's logits or larger, of one sequence or more."""
    logits, ids = torch.randn(batch, seq, VOCAB), torch.randint(0, VOCAB, (batch, seq))
    worker = SimpleNamespace(logprob_chunk_size=chunk, sampling_params=None)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function(worker, logits, ids)
    found = sorted((event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events()
                   if event.name() == "[memory]" and abs(event.nbytes()) >= 4 * VOCAB)
    return {"batch": batch, "seq": seq, "chunk": chunk, "vocab": VOCAB, "pass": [size for _, size in found]}


def events(run, sizes):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    found = sorted((event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events()
                   if event.name() == "[memory]" and abs(event.nbytes()) in sizes)
    return kept, [size for _, size in found]


def reduced(run):
    """Result of a run, and bytes of the all-reduces that it asks for over the vocabulary's parts."""
    found, all_reduce = [], dist.all_reduce

    def counted(tensor, *given, **named):
        found.append(tensor.nbytes)
        return all_reduce(tensor, *given, **named)

    dist.all_reduce = counted
    try:
        return run(), found
    finally:
        dist.all_reduce = all_reduce


def case(function, head, batch, seq, chunk):
    rows = {min(chunk, seq - start) for start in range(0, seq, chunk)}
    sizes = {width * batch * VOCAB * count for count in rows for width in (4, 8)} | {2 * batch * VOCAB * seq}
    if chunk < seq:
        sizes.discard(4 * batch * VOCAB * seq)
    target = torch.randint(0, VOCAB, (batch, seq))

    def logprobs(hidden, *, inference):
        def model():
            logits, _ = head(hidden)
            return logits.transpose(0, 1).contiguous()  # GPTModel._postprocess without labels
        logits = model()
        return function.apply(logits, target, 0, VOCAB, chunk, dist.group.WORLD, inference).contiguous()

    hidden = torch.randn(seq, batch, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with torch.no_grad():
        passed = events(lambda: logprobs(hidden, inference=True), sizes)[1]
    out, forward = events(lambda: logprobs(hidden, inference=False), sizes)
    total = out.sum()
    del out
    backward = events(total.backward, sizes)[1]
    again, sent = reduced(lambda: logprobs(hidden, inference=False).sum())
    return {"batch": batch, "seq": seq, "chunk": chunk, "vocab": VOCAB, "pass": passed, "forward": forward,
            "backward": backward, "reduced": sent, "reduced_backward": reduced(again.backward)[1]}


def main(utils, train):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = ModelParallelConfig(params_dtype=torch.bfloat16, use_cpu_initialization=True)
    head = ColumnParallelLinear(HIDDEN, VOCAB, config=config, init_method=torch.nn.init.normal_, bias=False)
    found = [case(functions(utils)["ChunkedDistributedLogprob"], head, *one) for one in CASES]
    whole = [local(functions(train)["_compute_local_logprobs"], *one) for one in (*CASES, (1, 10, None), (2, 10, None))]
    print(json.dumps({"torch": torch.__version__, "cases": found, "local": whole}).replace('{"batch"', '\n {"batch"'))


if __name__ == "__main__":
    main(*sys.argv[1:])
