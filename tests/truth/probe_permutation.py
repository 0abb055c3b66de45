"""Times what the host does to put tokens in the order of experts, on one CPU: `host/permutation-te-2.9.json`.

    python tests/truth/probe_permutation.py PATH-TO-TE PATH-TO-AUTOMODEL > tests/truth/host/permutation-te-2.9.json

TransformerEngine's permutation and its way back, and Automodel's conversion of indices to maps, as DeepEP's dispatcher
calls them, run forward and backward over tensors of a few numbers with kernels of Triton that do nothing. As in
`probe_scan.py` their time is told in operators of torch. The paths are checkouts of NVIDIA/TransformerEngine v2.9 and
of NVIDIA-NeMo/Automodel 2f805abd; nothing is installed.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # before Triton is replaced: it looks for the real one
from host_time import LAUNCHED, module_of, operator_s, replace_triton, timed

TOKENS, EXPERTS, CHOSEN, HIDDEN = 8, 4, 2, 8
_ON_CUDA = ("empty", "zeros")
Work = tuple[Callable[[Any], torch.Tensor], Callable[[], Any]]


def _replace(engine: str, automodel: str) -> None:
    """What the files import on their way; tensors of a few numbers lie on the host and say that they do not."""
    replace_triton()
    for package in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.triton"):
        module_of(package, __path__=[f"{engine}/{package.replace('.', '/')}"])
    module_of("transformer_engine_torch")
    module_of("transformer_engine.pytorch.constants", TE_DType={})
    module_of("transformer_engine.pytorch.tensor")
    for file, name in (("quantized_tensor", "QuantizedTensor"), ("float8_tensor", "Float8Tensor"),
                       ("float8_blockwise_tensor", "Float8BlockwiseQTensor"), ("mxfp8_tensor", "MXFP8Tensor")):
        module_of(f"transformer_engine.pytorch.tensor.{file}", **{name: type(name, (), {})})
    for package in ("nemo_automodel", "nemo_automodel.components", "nemo_automodel.components.moe",
                    "nemo_automodel.components.moe.megatron"):
        module_of(package, __path__=[f"{automodel}/{package.replace('.', '/')}"])
    torch.Tensor.is_cuda = True  # type: ignore[misc,assignment]
    for name in _ON_CUDA:
        setattr(torch, name, _on_host(getattr(torch, name)))


def _on_host(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*shape: Any, dtype: torch.dtype, device: str = "cpu") -> torch.Tensor:
        return make(*shape, dtype=dtype)

    return made


def _works() -> dict[str, Work]:
    """Each by its name: what is timed, and what makes its input."""
    permutation = importlib.import_module("transformer_engine.pytorch.permutation")
    converter = importlib.import_module("nemo_automodel.components.moe.megatron.fused_indices_converter")
    maps, rows = torch.ones(TOKENS, EXPERTS, dtype=torch.bool), TOKENS * CHOSEN
    row_map = torch.ones(TOKENS, 2 * EXPERTS + 1, dtype=torch.int32)
    indices, shape = torch.ones(TOKENS, CHOSEN, dtype=torch.int64), torch.Size((TOKENS, HIDDEN))

    def rows_of(num: int, width: int = HIDDEN) -> torch.Tensor:
        return torch.randn(num, width, requires_grad=True)

    return {
        "permute": (lambda x: permutation.moe_permute_with_probs(*x, maps, num_out_tokens=rows)[0],
                    lambda: (rows_of(TOKENS), rows_of(TOKENS, EXPERTS))),
        "unpermute": (lambda x: permutation.moe_unpermute(x, row_map, restore_shape=shape), lambda: rows_of(rows)),
        "multihot": (lambda x: converter.fused_indices_to_multihot(indices, x, EXPERTS)[1],
                     lambda: rows_of(TOKENS, CHOSEN)),
    }


def _launches(work: Work) -> dict[str, int]:
    forward, out_of = work
    LAUNCHED.clear()
    out = forward(out_of())
    ahead = len(LAUNCHED)
    out.backward(torch.ones_like(out))
    return {"forward": ahead, "backward": len(LAUNCHED) - ahead}


def _told(work: Work) -> dict[str, object]:
    rounds = [(operator_s(), *timed(*work)) for _ in range(25)]
    ahead, back = (statistics.median(each[place] / each[0] for each in rounds) for place in (1, 2))
    return {"launches": _launches(work), "operators": {"forward": round(ahead, 1), "backward": round(back, 1)}}


def main(engine: str, automodel: str) -> None:
    torch.set_num_threads(1)
    _replace(engine, automodel)
    versions = {"transformer_engine": "2.9", "automodel": "2f805abd", "torch": torch.__version__.partition("+")[0]}
    print(json.dumps({"versions": versions, **{name: _told(work) for name, work in _works().items()}}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
