"""What a step of axolotl's full fine-tuning without flash attention allocates: norms and tables in fp32.

    python tests/truth/probe_axolotl_wide.py 40 SEED > tests/truth/liger/axolotl-wide.json

As `probe_liger.py`, under autocast, with Liger's kernels in the classes or without any. The model is read in bf16, then
axolotl's own functions cast it (`loaders/model.py` _convert_embedding_modules_dtype, `loaders/utils.py`
get_linear_embedding_layers), which are taken out of their files: the package itself is not imported.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from importlib.metadata import distribution, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe_liger
import torch
from oracle.qlora import steps_of

NONE = [False, False, False, False]


def function(path: str, name: str, known: dict[str, Any]) -> Any:
    """The function `name` of a file of axolotl's, with the names in `known`."""
    text = Path(str(distribution("axolotl").locate_file(f"axolotl/{path}"))).read_text(encoding="utf-8")
    (found,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name)
    made: dict[str, Any] = dict(known)
    exec(compile(ast.Module([found], []), path, "exec"), made)  # noqa: S102 - axolotl's own source
    return made[name]


def cast(model: Any) -> None:
    """Norms and tables to fp32."""
    tables = function("loaders/utils.py", "get_linear_embedding_layers", {})(model.config.model_type)
    convert = function("loaders/model.py", "_convert_embedding_modules_dtype", {
        "torch": torch, "get_fp32_norm_patterns": lambda _cfg: (), "_matches_norm_class": None})
    loader = SimpleNamespace(cfg=SimpleNamespace(lora_on_cpu=False), model=model, model_config=model.config)
    convert(loader, tables, dist_dtype=torch.float32, before_kbit_train_or_finetune=True)


def step(case: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = probe_liger.built(case).to_empty(device="cpu").to(torch.bfloat16)
    model.tie_weights()
    for p in model.parameters():
        torch.nn.init.normal_(p.data, std=0.02)
    cast(model)
    if case["recompute"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(list(model.parameters()), foreach=False, fused=True)
    rest, sizes = steps_of(model, optimizer, autocast=True, vocab=case["shape"]["vocab_size"], tokens=case["tokens"])
    return {"rest": rest, **sizes, "trained": 0,
            "wide": sorted({name.rpartition(".layers.")[2].partition(".")[2] or name
                            for name, p in model.named_parameters() if p.dtype == torch.float32})}


def drawn(rng: random.Random) -> dict[str, Any]:
    case = probe_liger.drawn(rng) | {"way": "narrow"}
    return case | {"place": "classes"} if rng.random() < 0.5 else case | {"kernels": NONE, "place": ""}


if __name__ == "__main__":
    rng = random.Random(int(sys.argv[2]))
    cases = {str(number): drawn(rng) for number in range(int(sys.argv[1]))}
    print(json.dumps({name: version(name) for name in ("axolotl", "liger-kernel", "torch", "transformers")})[:-1]
          + ', "cases": {')
    print(",\n".join(probe_liger.rows(cases, step)) + "\n}}")
