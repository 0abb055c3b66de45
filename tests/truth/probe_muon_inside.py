"""Measures what DeepSpeed's compiled update of a matrix by Muon holds inside.

    python tests/truth/probe_muon_inside.py > tests/truth/deepspeed/muon-inside-0.19.6.json

DeepSpeed 0.19.6 `runtime/zero/muon/original_muon.py`, muon_update with its defaults, through Inductor's own code of
torch 2.13 for a CPU (`oracle/inductor.py`), in fp16 as on a GPU. `peak`: the most bytes beside gradient and momentum.
"""

from __future__ import annotations

import os
from itertools import accumulate

from json_lines import with_cases

SHAPES = ((256, 512), (512, 256), (256, 256), (512, 2048), (1024, 4096), (4096, 1024), (768, 768), (1024, 512),
          (320, 777), (400, 128), (128, 400), (64, 256), (96, 1024))


def peak(module, shape):
    import torch
    from oracle import inductor
    from oracle.steps.tracker import Tracker
    from torch._subclasses.fake_tensor import FakeTensorMode
    torch._dynamo.reset()
    parts, tracker = [], Tracker()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        grad, momentum = (torch.empty(shape, dtype=torch.bfloat16) for _ in range(2))
        update = module.muon_update._torchdynamo_orig_callable
        torch.compile(update, backend=inductor.backend(parts), dynamic=False)(grad, momentum, 0.95)
        (part,) = parts
        with tracker:
            given = part.inputs()
            for one in given.values():
                tracker.tag(one, "input")
            _, events = inductor.run(part.code, list(given.values()), tracker)
    return max(accumulate(events))


def main():
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    from deepspeed.runtime.zero.muon import original_muon
    kind = type(original_muon.get_accelerator())
    kind.is_fp16_supported = lambda self: True
    rows = {f"{rows} x {columns}": {"shape": [rows, columns], "peak": peak(original_muon, (rows, columns))}
            for rows, columns in SHAPES}
    print(with_cases({"deepspeed": "0.19.6", "torch": "2.13.0"}, rows, indent=" "))


if __name__ == "__main__":
    main()
