"""Settings without effect that would surprise the author of a recipe.

A row is about keys of one format and the reader's own reason, so that it holds only where the reader found the case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from simcore.lint.finding import Severity
from simcore.recipes.imported import Left

__all__ = ["IGNORED", "Ignored"]


def _says_something(value: str) -> bool:
    return value not in ("{}", "[]", "''", "null", "false", "0")


def _above_one(value: str) -> bool:
    return value.isdigit() and int(value) > 1


def _partial(value: str) -> bool:
    return _says_something(value) and value.strip("'\"").upper() not in ("FULL_SHARD", "1")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Keys (patterns) of recipes of some formats that the reader leaves out for a reason (a pattern too).

    `message`: why it surprises; `instead`: what to write. `counts`: tells for which values, as text, it does.
    """

    formats: tuple[str, ...]
    keys: tuple[str, ...]
    why: str
    message: str
    instead: str
    source: str
    severity: Severity = "warning"
    counts: Callable[[str], bool] = _says_something

    def fits(self, form: str, left: Left) -> bool:
        """True for a key that the row is about."""
        return (form in self.formats and fnmatchcase(left.why, self.why) and self.counts(left.value)
                and any(fnmatchcase(left.key, key) for key in self.keys))


_PLUGIN: Final = "accelerate 1.15.0 utils/dataclasses.py FullyShardedDataParallelPlugin.__post_init__"
_HUGGING: Final = ("axolotl", "trl", "accelerate")
_STRATEGY: Final = ("*sharding_strategy",)
_MEGATRON: Final = "Megatron-LM d98e8a64 megatron/training/arguments.py"

IGNORED: Final[tuple[Ignored, ...]] = (
    Ignored(("accelerate", "trl"), _STRATEGY, "a key of FSDP 1", "FSDP 2 has no sharding_strategy: all is sharded, and "
            "reshard_after_forward says if layers stay gathered", "reshard_after_forward: false for SHARD_GRAD_OP",
            _PLUGIN, counts=_partial),
    Ignored(_HUGGING, ("*use_orig_params", "*backward_prefetch", "*forward_prefetch"), "a key of FSDP 1",
            "FSDP 2 has no such option", "leave it out", _PLUGIN, "note"),
    Ignored(_HUGGING, ("*reshard_after_forward",), "under version 1 *", "under FSDP 1 sharding_strategy decides, "
            "FULL_SHARD where no file says it", "sharding_strategy", _PLUGIN, counts=_partial),
    Ignored(("axolotl",), ("fsdp_version",), "no FSDP is asked for", "without fsdp_config each GPU has the whole model",
            "an fsdp_config, or leave it out", "axolotl 067b021c core/builders/base.py: FSDP with fsdp or fsdp_config"),
    Ignored(("accelerate", "trl"), ("fsdp_config*", "deepspeed_config*"), "distributed_type is *",
            "another distributed_type is launched, which does not read this block",
            "distributed_type: FSDP or DEEPSPEED, or leave the block out", "accelerate 1.15.0 commands/launch.py"),
    Ignored(("accelerate", "trl"), ("num_processes",), "distributed_type NO starts one rank",
            "distributed_type NO starts one process", "distributed_type: MULTI_GPU, FSDP or DEEPSPEED",
            "accelerate 1.15.0 commands/launch.py simple_launcher", counts=_above_one),
    Ignored(("trl",), ("fsdp_config*",), "fsdp is off", "fsdp is not asked for, and the block is not read",
            "fsdp: true, or leave the block out", "transformers 5.23 training_args.py _process_fsdp_args"),
    Ignored(("trl",), ("bnb_4bit_*", "use_bnb_nested_quant"), "no base is packed", "the base is not packed into 4 bits",
            "load_in_4bit: true, or leave it out", "TRL 1.16.0 trainer/utils.py get_quantization_config"),
    Ignored(("automodel",), ("parallelizer.*", "autopipeline.*", "distributed_config.*"), "nothing reads this block*",
            "no part of Automodel reads this block: what it asks for does not happen",
            "the same below the block distributed",
            "Automodel 36044ad3 recipes/_dist_utils.py parse_distributed_section"),
    Ignored(("automodel",), ("model.backend.*",), "transformers' layers take no BackendConfig",
            "with force_hf transformers' layers run, which read no backend", "no force_hf, or leave backend out",
            "Automodel 0.7.0 _transformers/model_init.py"),
    Ignored(("automodel",), ("model.attn_implementation",), "the layers of this family take model.backend.attn alone",
            "layers of this family do not read it", "model.backend.attn",
            "Automodel 0.7.0 components/models/common/utils.py BackendConfig"),
    Ignored(("automodel",), ("quantization.bnb_*",), "settings of a packed base alone", "the base is not packed",
            "load_in_4bit: true, or leave it out", "Automodel 0.7.0 components/quantization/qlora.py"),
    Ignored(("megatron",), ("*--recompute-*",), "nothing is recomputed without --recompute-granularity",
            "nothing is recomputed without --recompute-granularity", "--recompute-granularity full or selective",
            f"{_MEGATRON}, core/transformer/transformer_config.py recompute_granularity"),
    Ignored(("megatron",), ("*--moe-flex-dispatcher-backend", "*--moe-enable-deepep"),
            "it is read with the dispatcher flex", "another dispatcher runs", "--moe-token-dispatcher-type flex",
            "Megatron-Core 0.16.1 transformer/moe/token_dispatcher.py"),
    Ignored(("torchtitan",), ("parallelism.enable_async_tensor_parallel",),
            "torchtitan 0.2.2 enables no symmetric memory*",
            "in this release collectives and products of tensor parallelism do not run at the same time",
            "a release before 69cf2075 or after 73759474, or false",
            "torch 2.13 _inductor/fx_passes/micro_pipeline_tp.py fuse_all_gather_matmul"),
    Ignored(_HUGGING, ("*fsdp_config.*",), "is dropped by the program that reads the block*",
            "the program that reads this block knows no such key and drops it", "the program's own word for it",
            "transformers 5.23.0 training_args.py, accelerate 1.15.0 commands/launch.py, axolotl 0.19.0 utils/schemas"),
)
