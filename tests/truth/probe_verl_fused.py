"""What verl's fused head makes, which scores tokens in chunks of 512 rows of logits: torch alone, on one CPU.

    python tests/truth/probe_verl_fused.py FILE > tests/truth/verl/fused-torch-2.13.0.json

FILE: `verl/utils/experimental/torch_functional.py` of verl b178a3cd, whose FusedLinearForPPO runs here as it is.
Allocations and frees of a chunk's logits in 16 bits and in fp32, of the weight and of hidden states, signed, forward
and backward apart, and without gradients; the entropy has no gradient, as verl has it with a coefficient of 0.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import torch
from probe_verl import traced

VOCAB, HIDDEN, TOKENS, CHUNK = 5000, 1000, 1100, 512


def measured(fused: Any) -> dict[str, list[str]]:
    """Events by name: "+c" the logits of a whole chunk in 16 bits, "+C" in fp32, "+W" the weight, "+H" hidden states.

    The chunk that is left over has other sizes, and is left out.
    """
    weight = torch.nn.Parameter(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    hidden = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, VOCAB, (1, TOKENS))
    sizes = {CHUNK * VOCAB * 2: "c", CHUNK * VOCAB * 4: "C", weight.nbytes: "W", hidden.nbytes: "H"}
    scores: Any = None
    for _ in range(2):
        weight.grad = hidden.grad = None
        (scores, _entropy), made = traced(lambda: fused(hidden, weight, labels, 0.9))
        ones = torch.ones_like(scores)
        _, undone = traced(lambda scores=scores, ones=ones: scores.backward(ones))
        del scores
    with torch.no_grad():
        _, passed = traced(lambda: fused(hidden, weight, labels, 0.9))
    return {name: [("+" if one > 0 else "-") + sizes[abs(one)] for one in found if abs(one) in sizes]
            for name, found in (("forward", made), ("backward", undone), ("no_grad", passed))}


def main() -> None:
    """Write the events of the function in the file that is named."""
    spec = importlib.util.spec_from_file_location("torch_functional", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {"vocab": VOCAB, "hidden": HIDDEN, "tokens": TOKENS, "chunk": CHUNK}
    print(json.dumps({**sizes, **measured(module.FusedLinearForPPO())}))


if __name__ == "__main__":
    main()
