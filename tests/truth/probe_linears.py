"""Weights of `nn.Linear` in transformers' models, which optimizers of low rank may project.

    python tests/truth/probe_linears.py NAME... > tests/truth/optimizers/linears-transformers-5.23.0.json

NAME: presets. Each model is built on the meta device from its published configuration. Names of modules without the
layer's number, each with the shapes of its weights; only of parameters that have a name of their own (a tied head has
none).
"""

from __future__ import annotations

import json
import re
import sys

import torch
import transformers
from oracle.steps.models import fields_of
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

_LAYER = re.compile(r"^.*?(?:layers|h|blocks)\.\d+\.")


def linears(preset: str) -> dict[str, list[list[int]]]:
    """Shapes of the weights of each linear, by its name in its layer."""
    fields = dict(fields_of(preset))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    named = {name for name, _ in model.named_parameters()}
    found: dict[str, set[tuple[int, ...]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in named:
            found.setdefault(_LAYER.sub("", name), set()).add(tuple(module.weight.shape))
    return {name: sorted(map(list, shapes)) for name, shapes in sorted(found.items())}


def row(preset: str) -> str:
    """One line of the file."""
    try:
        return json.dumps({"preset": preset, "linears": linears(preset)})
    except ValueError as error:
        return json.dumps({"preset": preset, "error": str(error)[:60]})


if __name__ == "__main__":
    rows = ",\n".join(row(preset) for preset in sys.argv[1:])
    print(f'{{"transformers": "{transformers.__version__}", "cases": [\n{rows}\n]}}')
