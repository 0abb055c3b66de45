"""Tensors of an engine that NeMo RL asks for in fp8, as vLLM makes them and NeMo RL's own functions leave them.

    python tests/truth/probe_nemo_fp8.py FP8.py > tests/truth/vllm/refit-0.25.1.json

Runs as `probe_vllm_weights.py`, whose small models and stand-ins it takes, in an environment with vLLM 0.25.1 and its
torch. `FP8.py`: `nemo_rl/models/generation/vllm/quantization/fp8.py` of NeMo RL 7ea279ab, which replaces vLLM's
`process_weights_after_loading`; ray and the modules of mxfp8 are stand-ins. DeepGEMM's layout of scales, which asks the
driver, is one too: on compute capability 9.0 it hands scales of 128 x 128 blocks back as they are (DeepGEMM
`csrc/apis/layout.hpp` transform_sf_into_required_layout), and NeMo RL copies them in place, so no shape can change.
A checkpoint of these models has no files: only shapes are asked for. `refit`: the temporaries of quantising one matrix,
from `cast_tensor_to_fp8_blockwise`, in bytes at their highest, without the matrix itself in 16 bits.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from unittest.mock import MagicMock

import probe_vllm_weights as small
import torch

CAPABILITY = (9, 0)
SHAPES = ((512, 512), (1024, 256), (130, 200))


def trainer(path: str) -> types.ModuleType:
    """NeMo RL's module, with its functions in the place of vLLM's."""
    from transformers import AutoConfig, AutoModel  # noqa: F401  before accelerate has a stand-in

    for name in ("nemo_rl", *(f"nemo_rl.models{part}" for part in (
            "", ".generation", ".generation.vllm", ".generation.vllm.quantization"))):
        sys.modules[name] = types.ModuleType(name)
    for name in ("nemo_rl.models.generation.vllm.quantization.mxfp8_utils", "ray", "xgrammar", "vllm.v1.engine.core",
                 "vllm.v1.engine.utils", "accelerate"):
        sys.modules[name] = MagicMock()
    spec = importlib.util.spec_from_file_location("fp8", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.print = lambda *_: None
    module.apply_fp8_patches(None, module.FP8Config(model_parallel_size=1))
    import vllm.model_executor.layers.quantization.utils.fp8_utils as utils

    utils.transform_sf_into_required_layout = lambda sf, **_: sf
    return module


class Highest(small.Alive):
    """The highest bytes of what operators made, whatever the device."""

    def total(self) -> int:
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in self.made}.values())


def refits(module) -> list[dict[str, object]]:
    """Shapes, formats and temporaries of one matrix."""
    rows = []
    for shape in SHAPES:
        matrix = torch.zeros(shape, dtype=torch.bfloat16)
        alive = Highest()
        alive.model = torch.nn.Module()
        with alive:
            data, scale = module.cast_tensor_to_fp8_blockwise(matrix.to(torch.float), weight_block_size=[128, 128])
            scale = torch.squeeze(scale, dim=-1)
        rows.append({"shape": list(shape), "peak_bytes": alive.peak, "held": [
            f"{small.WIDTHS[str(t.dtype)[6:]]}{list(t.shape)}" for t in (data, scale)]})
    return rows


def main(path: str) -> None:
    small.device(CAPABILITY, 132)
    import vllm

    small.groups(1)
    module = trainer(path)
    config = dict(module.FP8_BLOCK_QUANT_KWARGS)
    rows = []
    for family, fields in small.MODELS.items():
        for tp in (1, 2, 4):
            row = {"version": vllm.__version__, "model": family, "tp": tp}
            torch.set_default_dtype(torch.float32)
            try:
                found = small.measure(fields | {"quantization_config": config}, tp, "fp8")
                row |= {name: found[name] for name in ("held", "created_bytes", "held_bytes")}
            except Exception as error:  # noqa: BLE001  what vLLM refuses is a row too
                row["refused"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            rows.append(row)
            print(family, tp, row.get("refused") or row["held_bytes"], file=sys.stderr)
    heads = {"models": small.MODELS, "config": config, "refit": refits(module)}
    print("\n".join(["{", *(f"{json.dumps(name)}: {json.dumps(value)}," for name, value in heads.items()), '"rows": [',
                     ",\n".join(json.dumps(row) for row in rows), "]}"]))


if __name__ == "__main__":
    main(sys.argv[1])
