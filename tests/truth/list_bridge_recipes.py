"""Values of Megatron-Bridge's recipes, read from its sources, which are parsed and never run.

    python tests/truth/list_bridge_recipes.py BRIDGE_GIT

Comes in: a git directory of Megatron-Bridge. Goes out: `simcore/recipes/bridge/recipes.json`, one recipe a line: its
name, and every value that its function sets, by dotted key; of an older name the present one (`name`, where a benchmark
has that). `benchmark`: Bridge's launcher changes it (`launched`), and scales its batch. A small interpreter
(`bridge_interpreter.py`) follows assignments, calls of functions of the package itself, and conditions whose values it
knows; classes become mappings of what they are given, with `_target_`. A value that it does not know is left out, and
named in `?`. Keys on which nothing depends here (logging, files, learning rates) are left out.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from bridge_interpreter import UNKNOWN, Found, Name, Package, Run, Thing, Unknown

TARGET = Path(__file__).resolve().parents[2] / "simcore" / "recipes" / "bridge" / "recipes.json"
LEFT_OUT = ("logger.*", "checkpoint.*", "scheduler.*", "validation.*", "rng.*", "dist.*", "profiling.*",
            "rerun_state_machine.*", "optimizer.lr", "optimizer.*_lr", "optimizer.adam_*",
            "optimizer.weight_decay", "optimizer.clip_grad", "optimizer.muon_*", "optimizer.lion_*", "optimizer.sgd_*",
            "optimizer._target_", "ddp._target_", "train._target_", "dataset.data*", "dataset.*path*", "dataset.blend*",
            "dataset.split", "dataset.num_workers", "dataset.random_seed", "dataset.*mask*", "dataset.reset_*",
            "dataset.eod_*", "dataset.num_*", "dataset.mmap*", "dataset.source*", "dataset.preprocessing*",
            "dataset.do_*", "dataset.seed", "dataset.rewrite", "dataset.persistent*", "dataset.pin_memory",
            "dataset.memmap*", "dataset.tokenizer*", "dataset.hf_*", "dataset.max_train*", "dataset.enable_in*",
            "train.manual_gc*", "train.train_iters", "train.eval_*", "train.exit_*", "inprocess_restart*",
            "straggler*", "ft.*", "nvrx*", "tensor_inspect*", "model.init_method_std", "model.pipeline_dtype",
            "model.*_init_method*", "comm_overlap.tp_comm_overlap_cfg*", "model.params_dtype", "model.autocast_dtype",
            "comm_overlap.data_parallel_size", "comm_overlap._target_", "mixed_precision._target_", "model.bf16",
            "model.fp16", "optimizer.bf16", "optimizer.fp16", "optimizer.min_lr", "mixed_precision.params_dtype",
            "mixed_precision.pipeline_dtype", "mixed_precision.autocast*", "optimizer.params_dtype", "_target_",
            "dataset._target_", "ddp.check_for_*", "ddp.average_in_collective", "mixed_precision.*_scale*",
            "mixed_precision.hysteresis", "mixed_precision.fp8_margin", "mixed_precision.fp8_amax*", "model.rotary_*",
            "model.moe_aux_loss_coeff", "model.moe_router_bias*", "model.use_te_rng_tracker", "model.moe_*_num_sms*",
            "model.persist_layer_norm", "model.apply_query_key_layer_scaling", "model.mtp_loss_scaling_factor",
            "model.hf_model_revision", "model.should_pad_vocab", "model.make_vocab_size_divisible_by",
            "dataset.pad_to*", "dataset.prompt*", "dataset.validation*", "dataset.defer*", "dataset.fast*",
            "model.moe_router_topk_scaling_factor", "model.moe_router_load*", "model.moe_router_enable*",
            "model.moe_router_fusion", "comm_overlap.tp_comm_bootstrap_backend", "optimizer.apply_wd*",
            "model.calculate_per_token_loss", "model.attention_softmax_in_fp32", "model.bias_dropout_fusion",
            "dataset.trust*", "dataset.offline_packing_specs.tok*", "dataset.offline_packing_specs.pad_*",
            "dataset.offline_packing_specs._target_", "model._pipeline_model_parallel_layout_builder",
            "model.moe_a2a_overlap", "train.check_*", "train.skip_*", "model.yarn_*", "optimizer.main_grads_dtype")
BENCHMARK = re.compile(r"_(?P<task>pretrain|sft|peft)_[1-9][0-9]*gpu_[a-z0-9]+_"
                       r"(?P<precision>bf16|fp8cs|fp8ds|fp8mx|fp8sc|nvfp4)(?:_[a-z0-9_]+)?_config$")
GPU = re.compile(r"_\d+gpu_([a-z]+\d+)")
OTHER_STEPS = ("qwen3_vl_", "qwen35_vl_", "wan_", "kimi_k25_vl_")
"""Names of benchmarks that train no texts."""
VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of the environment on which memory depends; the others are left out."""
USUAL = {"mixed_precision.fp32": False, "mixed_precision.fp16": False, "mixed_precision.bf16": True,
         "mixed_precision.fp8_wgrad": True, "mixed_precision.first_last_layers_bf16": False,
         "mixed_precision.fp8_dot_product_attention": False, "mixed_precision.fp8_multi_head_attention": False,
         "mixed_precision.fp4_recipe": "nvfp4", "mixed_precision.fp4_param_gather": False,
         "mixed_precision.num_layers_at_start_in_bf16": 0, "mixed_precision.num_layers_at_end_in_bf16": 0,
         "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False, "model.fine_grained_activation_offloading": False,
         "optimizer.main_params_dtype": "fp32", "optimizer.exp_avg_dtype": "fp32", "optimizer.exp_avg_sq_dtype": "fp32",
         "optimizer.use_precision_aware_optimizer": False, "ddp.use_megatron_fsdp": False,
         "model.transformer_impl": "transformer_engine", "model.moe_router_force_load_balancing": False,
         "model.moe_router_padding_for_fp8": False, "model.moe_shared_expert_overlap": False,
         "comm_overlap.overlap_moe_expert_parallel_comm": False, "comm_overlap.delay_wgrad_compute": False,
         "model.cuda_graph_impl": "none", "model.moe_router_num_groups": 1, "model.moe_router_group_topk": 1,
         "optimizer.overlap_param_gather_with_optimizer_step": False, "model.freeze_vision_model": False,
         "comm_overlap.overlap_param_gather_with_optimizer_step": False, "model.masked_softmax_fusion": True,
         "model.freeze_language_model": False, "model.freeze_vision_projection": False}
"""Values that are left out as well: the defaults of what reads them."""  # fmt: skip


def flat(thing, prefix=""):
    """(dotted key, value) of what was set; unknown values come as UNKNOWN."""
    for name, value in thing.values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Thing):
            yield from flat(value, f"{key}.")
        elif key == "env_vars" and isinstance(value, dict):
            yield from ((f"{key}.{name}", _plain(value[name])) for name in VARIABLES if name in value)
        else:
            yield key, _plain(value)


def _plain(value):
    if isinstance(value, Name):
        return value.name
    if isinstance(value, Found):
        return value.node.name
    try:
        json.dumps(value)
    except TypeError:
        return UNKNOWN
    return value


def recipes(package):
    """(name, module, {key: value}) of every recipe."""
    for module in package.modules.values():
        if not module.name.startswith(("megatron.bridge.recipes.", "megatron.bridge.perf_recipes.")):
            continue
        for name, node in module.defined.items():
            if isinstance(node, ast.FunctionDef) and name.endswith("_config") and not name.startswith("_"):
                gpu = GPU.search(name)
                try:
                    made = Run(package, gpu[1] if gpu else "").call(module, node, [], {})
                except (RuntimeError, RecursionError):
                    made = None
                if isinstance(made, Thing) and made.values.get("model") is not None and "train" in made.values:
                    yield name, module.name, dict(flat(made))


def launched(name, values):
    """Values of a benchmark's recipe as Bridge's launchers leave them; other names as they are.

    Bridge scripts/training/run_recipe.py, _apply_benchmark_runtime_defaults and _apply_benchmark_dataset_defaults (and
    scripts/performance/run_script.py): Adam in bf16 is the precision-aware one; fine-tuning of texts reads mock samples
    of the model's length, which are no packs. recipe_metadata.py, BENCHMARK_RECIPE_PATTERN.
    """
    found = BENCHMARK.search(name)
    if found is None:
        return values
    changed = dict(values)
    if found["precision"] == "bf16" and values.get("optimizer.optimizer") == "adam":
        changed["optimizer.use_precision_aware_optimizer"] = True
    if found["task"] != "pretrain" and not name.startswith(OTHER_STEPS):
        changed = {key: value for key, value in changed.items() if not key.startswith("dataset.")}
        changed["dataset.seq_length"] = values.get("model.seq_length", 4096)
    return changed


def aliases(package, known):
    """(older name, name) of every recipe that a module imports under another name."""
    for module in package.modules.values():
        if module.name.startswith("megatron.bridge.recipes."):
            yield from ((name, original) for name, (_, original) in module.imported.items()
                        if name != original and original in known and name not in known)


def counted(values):
    """Keys of the tokenizer whose number of tokens makes the model's rows; none where they are the model's own.

    training/setup.py, _validate_and_set_vocab_size: the tokenizer counts if it is told to, or the model has no number.
    Recipes that give the tokenizer the number of the model compute it, which is not known here.
    """
    own = values.get("model.vocab_size") is not None or values.get("model.hf_model_id") is not None
    if isinstance(values.get("tokenizer.vocab_size"), Unknown) or not (
            values.get("tokenizer.use_tokenizer_vocab_size") or not own):
        return ()
    return tuple(f"tokenizer.{name}" for name in ("tokenizer_type", "tokenizer_model", "vocab_size",
                                                  "use_tokenizer_vocab_size"))


def kept(values):
    """Values that matter here, and names of those that are not known."""
    found, unknown, of_tokenizer = {}, [], counted(values)
    for key, value in values.items():
        if key.startswith("tokenizer.") and key not in of_tokenizer:
            continue
        if any(fnmatchcase(key, pattern) for pattern in LEFT_OUT) or value is None or (
                key in USUAL and value == USUAL[key]):
            continue
        if isinstance(value, Unknown):
            unknown.append(key)
        else:
            found[key] = value
    return found | ({"?": unknown} if unknown else {})


def main(git):
    """Write the table; a name that both packages have is a benchmark's, and the library's recipe has an older one."""
    package = Package(git)
    library, benchmarks = {}, {}
    for name, module, values in recipes(package):
        if module.startswith("megatron.bridge.perf_recipes."):
            benchmarks[name] = kept(launched(name, values)) | {"benchmark": True}
        else:
            library[name] = kept(values)
    found = library | benchmarks
    older = {alias: {"name": name, **library[name]} if name in library and name in benchmarks else name
             for alias, name in aliases(package, found)}
    rows = found | older
    lines = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in sorted(rows.items()))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8", newline="\n")
    print(len(found), "recipes,", len(rows) - len(found), "older names")


if __name__ == "__main__":
    main(*sys.argv[1:])
