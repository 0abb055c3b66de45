"""What bitsandbytes stores of a weight and of an optimizer, and which modules transformers hands to it.

    python tests/truth/probe_bitsandbytes.py > tests/truth/bitsandbytes/0.50.2.json

Runs on a CPU. `weights`: bytes of the storages of one `Linear4bit` after quantisation: the packed column, and what its
`QuantState` holds. `models`: last names of modules that `replace_with_bnb_linear` replaces in two layers of a
preset (as it is, under tied weights too), with how many; `kept`: dtype by parameter name of what it leaves.
`tensors`: torchao 0.18's NF4Tensor.
`states`: bytes of `AdamW` states of one parameter, 8 or 32 bits.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from oracle.steps.tracker import Tracker
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

PRESETS = Path(__file__).resolve().parents[2] / "simcore" / "models" / "presets"
SHAPES = ((4096, 4096), (1024, 4096), (14336, 4096), (10304, 2688), (100, 77), (64, 64), (3, 5))
STORAGES = {"uint8": torch.uint8, "bfloat16": torch.bfloat16, "float32": torch.float32}
NUMELS = (1, 255, 4095, 4096, 4097, 65536, 100_000, 1_000_003)


def weight(shape: tuple[int, int], kind: str, double: bool, storage: str) -> dict[str, Any] | None:
    """None where the packed bytes are no whole elements of the storage type."""
    module = bnb.nn.Linear4bit(shape[1], shape[0], bias=False)
    data = torch.randn(shape, dtype=torch.bfloat16)
    try:
        module.weight = bnb.nn.Params4bit(data, requires_grad=False, compress_statistics=double, quant_type=kind,
                                          quant_storage=STORAGES[storage], module=module).to("cpu")
    except RuntimeError:
        return None
    state = module.weight.quant_state
    parts = {"absmax": state.absmax, "code": state.code}
    if double:
        parts |= {"offset": state.offset, "nested_absmax": state.state2.absmax, "nested_code": state.state2.code}
    assert len({p.untyped_storage().data_ptr() for p in parts.values()}) == len(parts)
    return {"shape": shape, "format": kind, "double_quant": double, "storage": storage,
            "data": module.weight.untyped_storage().nbytes(), "rows": module.weight.shape[0],
            "constants": {name: part.untyped_storage().nbytes() for name, part in parts.items()}}


def tensor(shape: tuple[int, int]) -> dict[str, Any]:
    """torchao's, and the most that is there while the weight is made of it, beyond what it rests on."""
    made = to_nf4(torch.randn(shape, dtype=torch.bfloat16))
    parts = {name: getattr(made, name).untyped_storage().nbytes() for name in (
        "quantized_data", "quantized_scalers", "quantization_factor", "scaler_mean", "nf4")}
    seen = parts["quantized_scalers"] + parts["quantization_factor"]  # views of which are made, and counted
    tracker = Tracker()
    with tracker:
        whole = made.get_original_weight()
    found = list(accumulate(change for _, change in tracker.events))
    assert whole.untyped_storage().nbytes() == found[-1] - seen
    return {"shape": shape, "parts": parts, "peak": max(found) - seen}


def shared_tables() -> bool:
    """Whether two weights share a table."""
    one, two = (bnb.functional.quantize_4bit(torch.randn(64, 64, dtype=torch.bfloat16), compress_statistics=True)[1]
                for _ in range(2))
    return one.state2.code.data_ptr() == two.state2.code.data_ptr() or one.code.data_ptr() == two.code.data_ptr()


def model(fields: dict[str, Any]) -> dict[str, Any]:
    fields = dict(fields, num_hidden_layers=2)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    skipped = get_keys_to_not_convert(built)
    quantised = replace_with_bnb_linear(built, skipped, BitsAndBytesConfig(load_in_4bit=True))
    packed = [name for name, part in quantised.named_modules() if isinstance(part, bnb.nn.Linear4bit)]
    elements = {name: part.in_features * part.out_features for name, part in quantised.named_modules()
                if isinstance(part, bnb.nn.Linear4bit)}
    total = sum(p.numel() for p in quantised.parameters())
    return {"packed": dict(Counter(name.rpartition(".")[2] for name in packed)),
            "packed_elements": sum(elements.values()), "elements": total}


def state(numel: int, bits: int) -> dict[str, Any]:
    parameter = torch.nn.Parameter(torch.zeros(numel, dtype=torch.bfloat16))
    optimizer = bnb.optim.AdamW([parameter], optim_bits=bits)
    optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)
    kept = {name: value.untyped_storage().nbytes() for name, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and not name.startswith("qmap")}
    return {"numel": numel, "bits": bits, "states": kept}


def main() -> None:
    cases = itertools.product(SHAPES, ("nf4", "fp4"), (True, False), STORAGES)
    fields = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(PRESETS.glob("*.json"))}
    models = {}
    for name, one in fields.items():
        if one["model_type"] in sys.argv[1:] or one["model_type"] != "nemotron_h":
            models[name] = model(one)
    rows = {"version": bnb.__version__, "shared_tables": shared_tables(),
            "tensors": [tensor(shape) for shape in SHAPES[:3]],
            "weights": [row for row in (weight(*case) for case in cases) if row],
            "models": models, "states": [state(numel, bits) for numel in NUMELS for bits in (8, 32)]}
    json.dump(rows, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
