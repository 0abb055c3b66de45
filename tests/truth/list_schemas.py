"""Names of fields that upstream's schemas have and `tests/recipes/schemas.json` does not.

    python tests/truth/list_schemas.py      # in an environment with TRL, accelerate, DeepSpeed and torchtitan

Exit code 1 if there are any. LLaMA-Factory is no package; its arguments are listed by `list_trainer_fields.py`.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
STORED = Path(__file__).resolve().parents[1] / "recipes" / "schemas.json"


def of_dataclass(kind, at=""):
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(default):
            yield from of_dataclass(type(default), f"{at}{field.name}.")
        else:
            yield f"{at}{field.name}"


def of_trl():
    import trl
    return {name for kind in (trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig) for name in of_dataclass(kind)}


def of_torchtitan():
    from torchtitan.config.job_config import JobConfig
    return {*of_dataclass(JobConfig)}


def of_accelerate():
    from accelerate.commands.config.config_args import ClusterConfig
    blocks = {"deepspeed_config", "fsdp_config", "fp8_config", "parallelism_config", "megatron_lm_config",
              "mpirun_config", "dynamo_config", "distributed_type"}
    return {*of_dataclass(ClusterConfig)} - blocks


def of_deepspeed():
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero import offload_config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    kinds = {"zero_optimization": DeepSpeedZeroConfig, "fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config,
             "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
             "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig}
    return {f"{at}.{field.alias or name}" for at, kind in kinds.items() for name, field in kind.model_fields.items()}


def main():
    stored = {one["format"]: {*one["fields"]} for one in json.loads(STORED.read_text(encoding="utf-8"))}
    missing = {name: sorted(listed() - stored[name]) for name, listed in (
        ("trl", of_trl), ("torchtitan", of_torchtitan), ("accelerate", of_accelerate), ("deepspeed", of_deepspeed))}
    for name, keys in missing.items():
        sys.stdout.write("".join(f"{name}: {key}\n" for key in keys))
    return int(any(missing.values()))


if __name__ == "__main__":
    sys.exit(main())
