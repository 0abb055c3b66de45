"""Tensors of quantised models as vLLM itself makes them, on a machine without a GPU: no bytes, but names and shapes.

    python tests/truth/probe_vllm_weights.py 9.0 132 FILE        and 8.0 108; some cases of 8.9 142 and 10.0 148
    python tests/truth/probe_vllm_weights.py loaded FILE         what bitsandbytes' loader leaves, from files on a CPU
    python tests/truth/probe_vllm_weights.py merge FILE ... > tests/truth/vllm/weights-0.12.0.json

Runs in an environment where vLLM's wheel is installed with its torch (and bitsandbytes 0.48.2); `libcuda.so.1` may be
a library of empty functions. vLLM builds small models with `initialize_model` on torch's device "meta" and repacks them
with `process_weights_after_loading`. Stand-ins: the device's capability and its multiprocessors (the arguments), groups
of ranks, the two operators that only a GPU has (`scaled_fp8_quant`, zero points of Marlin, whose outputs have the
shapes of `_custom_ops.py` and `marlin_utils.py` pack_cols), and the files of AWQ and GPTQ, from which vLLM reads what
is packed: here all linears of layers but routers. A value that Python reads from a tensor is 1. Each row has what is
registered, what is held after repacking, all bytes of both, and the highest bytes that were alive in between.

States of bitsandbytes are no tensors of modules: its loader makes them while it reads files. `loaded` lets vLLM's own
`BitsAndBytesModelLoader` read small checkpoints (written by transformers; quantised ones with bitsandbytes' own
`quantize_4bit` and `QuantState.as_dict`) on the CPU, and lists the states of each parameter, with all bytes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import MagicMock

from json_lines import listed

os.environ |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1"}

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

BASE = {
    "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 256, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024}
MODELS = {
    "llama": BASE | {"architectures": ["LlamaForCausalLM"]},
    "qwen2": BASE | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
    "qwen3": BASE | {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False, "attention_bias": False},
    "qwen3_moe": BASE | {
        "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 256, "num_experts": 8,
        "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "attention_bias": False, "use_sliding_window": False},
    "mixtral": BASE | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2,
                       "sliding_window": None},
    "nemotron_h": BASE | {
        "architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "ME*-", "num_hidden_layers": 4,
        "mamba_num_heads": 16, "mamba_head_dim": 64, "n_groups": 4, "ssm_state_size": 128, "conv_kernel": 4,
        "chunk_size": 128, "use_bias": False, "use_conv_bias": True, "mamba_proj_bias": False, "mlp_bias": False,
        "attention_bias": False, "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "layer_norm_epsilon": 1e-5,
        "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 256,
        "moe_shared_expert_intermediate_size": 512, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "residual_in_fp32": False},
}
for family, model_fields in MODELS.items():
    model_fields["model_type"] = family


def compressed(weights, inputs=None, form="float-quantized", ignore=("lm_head",)):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": list(ignore),
            "config_groups": {"group_0": group}}


def gptq(**changed):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False} | changed


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group", "group_size": 128}
FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
TOKEN = FLOAT8 | {"strategy": "token", "dynamic": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
CONFIGS = {
    "none": None,
    "fp8-static": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-dynamic": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-ignored": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": [
        "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj",
        "model.layers.1.mlp.experts.0.gate_proj", "model.layers.1.mlp.down_proj"]},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8-block-64": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
    "ct-fp8-channel": compressed(FLOAT8 | {"strategy": "channel"}, TOKEN),
    "ct-fp8-tensor": compressed(FLOAT8 | {"strategy": "tensor"}, FLOAT8 | {"strategy": "tensor"}),
    "ct-fp8-ignored": compressed(FLOAT8 | {"strategy": "channel"}, TOKEN, ignore=(
        "lm_head", "re:.*gate$", "re:.*layers\\.0\\.self_attn.*", "model.layers.1.mlp.down_proj")),
    "ct-w4a16": compressed(INT4, None, "pack-quantized", ("lm_head", "re:.*gate$")),
    "ct-w4a16-channel": compressed(INT4 | {"strategy": "channel", "group_size": None}, None, "pack-quantized",
                                   ("lm_head", "re:.*gate$")),
    "ct-nvfp4": compressed(FLOAT4 | {"dynamic": False}, FLOAT4 | {"dynamic": "local"}, "nvfp4-pack-quantized",
                           ("lm_head", "re:.*gate$")),
    "awq": AWQ,
    "awq-64": AWQ | {"group_size": 64},
    "awq-ignored": AWQ | {"modules_to_not_convert": ["layers.0.self_attn", "mlp.gate.", "block_sparse_moe.gate"]},
    "gptq": gptq(),
    "gptq-8": gptq(bits=8),
    "gptq-act": gptq(desc_act=True),
    "gptq-channel": gptq(group_size=-1),
    "modelopt-fp8": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    "modelopt-ignored": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": [
        "lm_head", "*.layers.0.mixer.in_proj", "*self_attn*", "model.layers.2.mixer.q_proj", "router"]},
    "modelopt-nvfp4": {"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}},
}
ONLINE = ("fp8", "bitsandbytes")
WIDTHS = {"bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8", "int64": "int64"}


# ---- stand-ins -------------------------------------------------------------------------------------------------------
def device(capability, sms) -> None:
    """A device of that capability, for vLLM and for torch."""
    properties = types.SimpleNamespace(multi_processor_count=sms, name="GPU", total_memory=80 << 30,
                                       major=capability[0], minor=capability[1])
    for name, value in {"get_device_properties": properties, "get_device_capability": capability, "device_count": 8,
                        "is_available": True, "current_device": 0, "get_device_name": "GPU", "empty_cache": None,
                        "synchronize": None, "_lazy_init": None}.items():
        setattr(torch.cuda, name, lambda *_, value=value, **__: value)
    torch.cuda.Stream = MagicMock
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    def pair(number):
        return number if isinstance(number, tuple) else divmod(number, 10)

    class Platform(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(*capability)

        @classmethod
        def has_device_capability(cls, number, device_id=0):
            return capability >= pair(number)

        @classmethod
        def is_device_capability(cls, number, device_id=0):
            return capability == pair(number)

    vllm.platforms._current_platform = Platform()


def operators() -> None:
    import vllm._custom_ops as ops
    import vllm.model_executor.layers.quantization.awq_marlin as awq
    from vllm.model_executor.layers.quantization import gptq_marlin

    def scaled(tensor, scale=None, *_, use_per_token_if_dynamic=False, **__):
        rows = (tensor.shape[0], 1) if use_per_token_if_dynamic else 1
        scale = torch.empty(rows, dtype=torch.float32, device=tensor.device) if scale is None else scale
        return torch.empty(tensor.shape, dtype=torch.float8_e4m3fn, device=tensor.device), scale

    def zeros(packed, size_k, size_n, num_bits, is_a_8bit=False):
        return torch.empty((*packed.shape[:-1], size_n * num_bits // 32), dtype=torch.int32, device=packed.device)

    ops.scaled_fp8_quant = scaled
    ops.cutlass_scaled_mm_supports_fp8 = lambda capability: capability >= 89
    ops.cutlass_scaled_mm_supports_fp4 = lambda capability: capability >= 100
    torch.allclose = lambda *_, **__: True
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    awq.awq_to_marlin_zero_points = awq.moe_awq_to_marlin_zero_points = zeros
    awq.get_safetensors_params_metadata = gptq_marlin.get_safetensors_params_metadata = files


def groups(tp) -> None:
    import vllm.distributed.parallel_state as state

    for name in ("_TP", "_PP", "_DP", "_EP", "_WORLD", "_DCP", "_PCP"):
        if hasattr(state, name):
            group = MagicMock(world_size=tp if name in ("_TP", "_WORLD") else 1, rank_in_group=0, rank=0)
            group.device_group.rank = lambda: 0
            group.device_group.size = lambda size=group.world_size: size
            setattr(state, name, group)


ASKED: dict[str, object] = {}


def files(*_, **__):
    """Formats that the files of a checkpoint would have: linears of layers packed, embedding, head, router not."""
    experts = {"llama": [], "qwen3_moe": [f"mlp.experts.{e}.{name}_proj" for e in range(8)
                                          for name in ("gate", "up", "down")],
               "mixtral": [f"block_sparse_moe.experts.{e}.{name}" for e in range(4) for name in ("w1", "w2", "w3")]}
    family = ASKED["model_type"]
    names = [f"self_attn.{name}_proj" for name in "qkvo"] + experts.get(family, [])
    if family in ("llama", "qwen2", "qwen3"):
        names += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    router = {"qwen3_moe": ["mlp.gate"], "mixtral": ["block_sparse_moe.gate"]}.get(family, [])
    found = {"lm_head.weight": {"dtype": "BF16"}, "model.embed_tokens.weight": {"dtype": "BF16"}}
    for layer in range(ASKED["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}.qweight": {"dtype": "I32"} for name in names}
        found |= {f"model.layers.{layer}.{name}.weight": {"dtype": "BF16"} for name in router}
    return found


# ---- what is alive ---------------------------------------------------------------------------------------------------
class Alive(TorchDispatchMode):
    """The highest bytes of the model's tensors and of all that operators made, storages counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.model, self.peak = WeakIdKeyDictionary(), None, 0

    def total(self) -> int:
        tensors = [*tensors_of(self.model).values(), *self.made.keys()]
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors
                    if t.device.type == "meta"}.values())

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            return True if args[0].dtype == torch.bool else 1.0
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.made[leaf] = True
        if self.model is not None:
            self.peak = max(self.peak, self.total())
        return out


def tensors_of(model) -> dict[str, torch.Tensor]:
    """Every tensor that a module, or the kernel of its method, holds."""
    found = {}
    for path, module in model.named_modules():
        held = {**module.__dict__, **module._parameters, **module._buffers}
        for method in (held.get("quant_method"), held.get("scheme")):
            kernel = getattr(method, "kernel", None)
            if kernel is not None:
                held |= {f"kernel.{name}": value for name, value in vars(kernel).items()}
        found |= {f"{path}.{name}": value for name, value in held.items() if isinstance(value, torch.Tensor)}
    return found


def counted(model) -> tuple[dict[str, str], int]:
    """(format and shape of each tensor, their bytes), without the scales of attention's cache."""
    tensors = {name: t for name, t in tensors_of(model).items() if ".attn." not in name}
    rows = {name: f"{WIDTHS.get(str(t.dtype)[6:], str(t.dtype)[6:])}{list(t.shape)}" for name, t in tensors.items()
            if any(part in name for part in ("_proj", "experts", ".gate.")) and (
                ".layers.0." in name or "mixer" in name)}
    return rows, sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors.values()}.values())


# ---- one case --------------------------------------------------------------------------------------------------------
def engine_config(fields, quantization):
    from vllm.engine.arg_utils import EngineArgs

    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(fields))
    return EngineArgs(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=256,
                      quantization=quantization, enforce_eager=True).create_engine_config()


def measure(fields, tp, quantization):
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    groups(tp)
    ASKED.clear()
    ASKED.update(fields)
    config = engine_config(fields, quantization)
    alive = Alive()
    with alive, set_default_torch_dtype(torch.bfloat16), set_current_vllm_config(config):
        with torch.device("meta"):
            model = initialize_model(vllm_config=config)
        created, created_bytes = counted(model)
        alive.model = model
        gc.collect()
        scales = alive.total() - created_bytes
        alive.peak = alive.total()
        process_weights_after_loading(model, config.model_config, torch.device("meta"))
    held, held_bytes = counted(model)
    return {"created": created, "created_bytes": created_bytes, "held": held, "held_bytes": held_bytes,
            "peak_bytes": alive.peak, "scales_bytes": scales}


def main(capability: str, sms: str, file: str, *only: str) -> None:
    numbers = tuple(int(number) for number in capability.split("."))
    device(numbers, int(sms))
    operators()
    from transformers import AutoConfig, PretrainedConfig

    import vllm

    class Hybrid(PretrainedConfig):
        model_type = "nemotron_h"

        @property
        def layers_block_type(self):
            return [{"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}[c] for c in self.hybrid_override_pattern]

    AutoConfig.register("nemotron_h", Hybrid)
    cases = [(name, None, config) for name, config in CONFIGS.items()] + [(f"online-{name}", name, None)
                                                                          for name in ONLINE]
    rows = []
    for family, fields in MODELS.items():
        for name, quantization, config in cases:
            for tp in (2,) if family in ("qwen2", "qwen3") else (1, 2, 4):
                if only and name not in only:
                    continue
                row = {"version": vllm.__version__, "capability": capability, "sms": int(sms), "model": family,
                       "case": name, "tp": tp}
                try:
                    row |= measure(fields | ({"quantization_config": config} if config else {}), tp, quantization)
                except Exception as error:  # noqa: BLE001  what vLLM refuses is a row too
                    row["refused"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                if tp != 2:  # names of one degree are enough, bytes of all are kept
                    row.pop("created", row.pop("held", None))
                rows.append(row)
                print(family, name, tp, row.get("refused") or row["held_bytes"], file=sys.stderr)
    Path(file).write_text(f"{listed(rows)}\n")


def states() -> list[dict[str, object]]:
    """Tensors of a matrix's state as the loader keeps it: scales are made whole, as without double quantisation."""
    from bitsandbytes.functional import quantize_4bit

    rows = []
    for shape in ((512, 512), (1544, 512), (256, 1000), (7, 30)):
        packed, state = quantize_4bit(torch.zeros(shape), compress_statistics=False, quant_type="nf4")
        held = {name: value for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
        rows.append({"shape": shape, "packed": list(packed.shape), "held": {
            name: f"{WIDTHS[str(value.dtype)[6:]]}{list(value.shape)}" for name, value in held.items()}})
    return rows


# ---- bitsandbytes, loaded from files ---------------------------------------------------------------------------------
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
             "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
LOADED = {"online": None, "file": FOUR_BITS | {"llm_int8_skip_modules": ["lm_head", "gate"]},
          "file-all": FOUR_BITS | {"llm_int8_skip_modules": ["lm_head"]},
          "file-part": FOUR_BITS | {"llm_int8_skip_modules": ["lm_head", "gate", "self_attn"]},
          "file-experts": FOUR_BITS | {"llm_int8_skip_modules": ["lm_head", "gate", "experts"]},
          "file-8": {"quant_method": "bitsandbytes", "load_in_8bit": True}}


def checkpoint(fields, config) -> str:
    """Folder of a checkpoint with random weights in 16 bits, or with linears that bitsandbytes has quantised."""
    from bitsandbytes.functional import quantize_4bit
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    known = {name: value for name, value in fields.items() if name not in ("architectures", "model_type")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields["model_type"], **known)).bfloat16()
    linears = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    found = {}
    for name, tensor in model.state_dict().items():
        skipped = set(name.split(".")) & set((config or {}).get("llm_int8_skip_modules", ()))
        if config is None or skipped or name not in linears:
            found[name] = tensor.contiguous()
            continue
        found[name], state = quantize_4bit(tensor.contiguous(), compress_statistics=True, quant_type="nf4")
        found |= {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(fields | ({"quantization_config": config} if config else {})))
    save_file(found, Path(folder, "model.safetensors"))
    return folder


def load(folder, tp) -> dict[str, object]:
    """States that the loader binds to parameters, and bytes of parameters and states, each storage once."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.bitsandbytes_loader import BitsAndBytesModelLoader
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    groups(tp)
    config = EngineArgs(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=256,
                        quantization="bitsandbytes", enforce_eager=True).create_engine_config()
    with set_default_torch_dtype(torch.bfloat16), set_current_vllm_config(config):
        model = initialize_model(vllm_config=config)
        BitsAndBytesModelLoader(config.load_config).load_weights(model, config.model_config)
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
    states = {}
    for name, parameter in model.named_parameters():
        bound = getattr(parameter, "bnb_quant_state", {})
        for number, state in bound.items() if isinstance(bound, dict) else [("", bound)]:
            states |= {f"{name}:{number}.{key}": value for key, value in vars(state).items()
                       if isinstance(value, torch.Tensor)}
    alive = [*states.values(), *(t for name, t in tensors_of(model).items() if ".attn." not in name)]
    return {"states": {name: f"{WIDTHS.get(str(t.dtype)[6:], str(t.dtype)[6:])}{list(t.shape)}"
                       for name, t in states.items() if ".layers.0." in name},
            "held_bytes": sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in alive}.values())}


def loaded(file: str, *only: str) -> None:
    device((9, 0), 132)
    from vllm.platforms import current_platform

    import vllm

    current_platform.device_type = "cpu"
    torch.cuda.empty_cache = lambda: None
    rows = []
    for family, fields in MODELS.items():
        if family == "nemotron_h" or (only and family not in only):  # its experts are refused when they are made
            continue
        for case, config in LOADED.items():
            torch.set_default_dtype(torch.float32)  # vLLM leaves its own behind where it raises
            if case == "file-8" and family not in ("qwen3_moe", "mixtral"):  # refused for experts alone
                continue
            folder = checkpoint(fields, None if case == "file-8" else config)
            if case == "file-8":
                Path(folder, "config.json").write_text(json.dumps(fields | {"quantization_config": config}))
            for tp in (1, 2, 4) if case == "online" else (1, 2):
                row = {"version": vllm.__version__, "model": family, "case": case, "tp": tp}
                torch.set_default_dtype(torch.float32)
                try:
                    row |= load(folder, tp)
                except Exception as error:  # noqa: BLE001  what vLLM refuses is a row too
                    row["refused"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
                rows.append(row)
                print(family, case, tp, row.get("refused") or row["held_bytes"], file=sys.stderr)
    Path(file).write_text(json.dumps(rows))


def merged(*parts: str) -> str:
    """All rows, with the models and configurations that they name; rows of `loaded` are those with states."""
    every = [row for part in parts for row in json.loads(Path(part).read_text())]
    rows = [json.dumps(row) for row in every if "capability" in row]
    heads = {"states": states(), "models": MODELS, "configs": CONFIGS | {f"loaded-{k}": v for k, v in LOADED.items()},
             "loaded": [row for row in every if "capability" not in row]}
    return "\n".join(["{", *(f"{json.dumps(name)}: {json.dumps(value)}," for name, value in heads.items()), '"rows": [',
                      ",\n".join(rows), "]}"])


if __name__ == "__main__":
    if sys.argv[1] == "merge":
        print(merged(*sys.argv[2:]))
    elif sys.argv[1] == "loaded":
        loaded(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
