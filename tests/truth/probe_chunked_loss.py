"""A tied head with torchtune's chunked loss: what is allocated and freed (bd2a0fc7 `ce_chunked_output_loss.py`).

    python tests/truth/probe_chunked_loss.py > tests/truth/losses/chunked-torch-2.13.0.json

The loss is written here as torchtune writes it: logits of all chunks first, then each chunk's cross entropy, compiled
by inductor. A CPU runs one step; its profiler gives allocations. Kept are those of a chunk's logits ("logits") and of
the weight ("weight"), signed, forward and backward apart; the products of a CPU in bf16 go through fp32 buffers, which
are left out (a GPU has none).
"""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

VOCAB, HIDDEN, TOKENS, CHUNKS = 5000, 64, 128, 8


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")


COMPILED = torch.compile(cross_entropy)


def loss_of(logits, labels):
    logits = [chunk.reshape(-1, VOCAB) for chunk in logits]
    total = 0.0
    for one, label in zip(logits, [chunk.reshape(-1) for chunk in labels.tensor_split(CHUNKS, 1)], strict=True):
        total += COMPILED(one, label)
    return total / TOKENS


def forward(weight, tokens):
    hidden = F.embedding(tokens, weight) * 2
    return loss_of([F.linear(chunk, weight) for chunk in hidden.tensor_split(CHUNKS, 1)], tokens)


def events(run):
    sizes = {TOKENS // CHUNKS * VOCAB * 2: "logits", VOCAB * HIDDEN * 2: "weight"}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    found = sorted((event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events()
                   if event.name() == "[memory]" and abs(event.nbytes()) in sizes)
    return kept, [("+" if size > 0 else "-") + sizes[abs(size)] for _, size in found]


def main():
    weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    tokens = torch.randint(0, VOCAB, (1, TOKENS))
    for _ in range(2):  # compiled in the first
        weight.grad = None
        loss, made = events(lambda: forward(weight, tokens))
        _, undone = events(loss.backward)
    print(json.dumps({"torch": torch.__version__, "chunks": CHUNKS, "forward": made, "backward": undone}, indent=1))


main()
