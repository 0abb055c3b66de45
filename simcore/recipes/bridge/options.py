"""Options of Bridge's launchers beside a recipe's name: the overrides that each stands for, or why it has no effect.

Megatron-Bridge 067f987d: scripts/training/run_recipe.py (_build_parser, COMMON_OVERRIDE_FIELDS),
scripts/training/setup_experiment.py (_build_parser), scripts/performance/argument_parser.py:171-1045, and what it makes
of its arguments, scripts/performance/utils/overrides.py set_user_overrides. Names are spelt as they are there; both
`--a b` and `--a=b` are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simcore.errors import InputError, Problem

__all__ = ["EXPERIMENT", "FLAGS", "MANY", "PERFORMANCE", "REFUSED", "SWITCHES", "TEXTS", "UNNAMED", "VARIABLES",
           "Launcher", "launcher_of", "switched", "variables_of"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launcher:
    """One of Bridge's launchers.

    `keys`: what each of its options sets, whole numbers but for those of `TEXTS`; `idle`: why nothing depends on an
    option; `unmodelled`: changes by an option that the answer leaves out, a value that says no changes nothing.
    `mocks_at`: place at which it replaces a benchmark's data set by mock samples. `is_named`: False where a launch
    names none. `rebuilds`: it sets a recipe up anew behind its overrides, as scripts/performance/utils/overrides.py
    does: optimizer, mock samples, lengths, batch, layout; it has `SWITCHES` and `VARIABLES`, too.
    """

    keys: Mapping[str, str]
    idle: Mapping[str, str]
    unmodelled: Mapping[str, str] = field(default_factory=dict)
    mocks_at: str = "scripts/training/run_recipe.py:401"
    is_named: bool = True
    rebuilds: bool = False


_COMMON: Final[Mapping[str, str]] = {
    "-ms": "train.train_iters", "--max_steps": "train.train_iters",
    "-gb": "train.global_batch_size", "--global_batch_size": "train.global_batch_size",
    "-mb": "train.micro_batch_size", "--micro_batch_size": "train.micro_batch_size",
    "-tp": "model.tensor_model_parallel_size", "--tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size", "--pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "--context_parallel_size": "model.context_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "--virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "--expert_model_parallel_size": "model.expert_model_parallel_size",
    "--expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
    "--lr": "optimizer.lr", "--min_lr": "optimizer.min_lr", "--warmup_iters": "scheduler.lr_warmup_iters",
    "--pretrained_checkpoint": "checkpoint.pretrained_checkpoint", "--save_dir": "checkpoint.save",
    "--load_dir": "checkpoint.load", "--save_interval": "checkpoint.save_interval"}
_RUN: Final = {**_COMMON, "-sl": "dataset.seq_length", "--seq_length": "dataset.seq_length",
               "-etp": "model.expert_tensor_parallel_size"}
_PERFORMANCE: Final = {**_COMMON, "-sl": "model.seq_length", "--seq_length": "model.seq_length",
                       "-et": "model.expert_tensor_parallel_size", "--hidden_size": "model.hidden_size",
                       "--num_layers": "model.num_layers", "--num_moe_experts": "model.num_moe_experts",
                       "--pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout"}
TEXTS: Final = frozenset({"optimizer.lr", "optimizer.min_lr", "checkpoint.pretrained_checkpoint", "checkpoint.save",
                          "checkpoint.load", "model.pipeline_model_parallel_layout"})
_STARTS: Final = "how the job is started"
_NAMES: Final = "names the recipe"
_OF_RUN: Final[Mapping[str, str]] = {
    "--recipe": _NAMES, "--dry-run": "nothing is trained", "--dry_run": "nothing is trained",
    "--dump-env": "it prints the environment", "--dump_env": "it prints the environment",
    "--step-func": "the recipe's step is taken", "--step_func": "the recipe's step is taken"}
_OF_EXPERIMENT: Final[Mapping[str, str]] = dict.fromkeys((
    "--account", "--partition", "--time", "--gres", "--additional-slurm-params", "--additional_slurm_params",
    "--no-gpu-resource-request", "--container-image", "--container_image", "--mount", "--env", "--srun-arg",
    "--experiment-name", "--submission-dry-run", "--dry-run", "--wait",
    "--nodes", "--gpus-per-node", "--gpus_per_node"), _STARTS)
_OF_PERFORMANCE: Final[Mapping[str, str]] = {**dict.fromkeys((
    "-m", "--model_family_name", "-mr", "--model_recipe_name", "-g", "--gpu", "-c", "--compute_dtype",
    "--task", "-cv", "--config_variant", "--list_config_variants", "--recipe", "-ng", "--num_gpus"),
    _NAMES),
    **dict.fromkeys(("--c4_root", "--c4_train_shards", "--dataset_paths", "--dataset_root", "--index_mapping_dir",
                     "--dataset_name", "--head_only", "--diffusion_dataset_path"),
                    "which samples are read"),
    **dict.fromkeys(("--packed_sequence", "--optimizer_type"), "nothing of the launcher reads it"),
    **dict.fromkeys(("--profiling_start_step", "--profiling_stop_step", "-mh", "--record_memory_history",
                     "--profiling_gpu_metrics", "--profiling_ranks", "--nsys_trace", "--nsys_extra_args",
                     "--export_nsys_sqlite"), "read with a profiler alone, which is told by itself"),
    **dict.fromkeys(("--is_long_convergence_run", "--retry_on_testing_failure", "--golden_values_path",
                     "--timing_threshold", "--skip_first_percent_time", "--correlation_threshold",
                     "--high_loss_tolerance", "--medium_loss_tolerance", "--low_loss_tolerance",
                     "--final_loss_tolerance", "--max_outlier_ratio", "--outlier_threshold",
                     "--skip_first_percent_loss", "--memory_threshold", "--eval_time_start_step",
                     "--eval_time_end_step"), "how the run is judged afterwards"),
    **dict.fromkeys((
        "-gn", "--gpus_per_node", "--enable_pct_binding", "--csp", "--kubeflow_namespace", "--kubeflow_workdir_pvc",
        "--kubeflow_workdir_pvc_path", "--kubeflow_workdir_local_path", "--kubeflow_image_pull_secrets",
        "--kubeflow_volumes_json", "--kubeflow_volume_mounts_json", "--kubeflow_tolerations_json",
        "--kubeflow_affinity_json", "--kubeflow_env_list_json", "--kubeflow_extra_resource_requests_json",
        "--kubeflow_extra_resource_limits_json", "--kubeflow_pod_spec_overrides_json",
        "--kubeflow_pod_annotations_json", "--kubeflow_container_kwargs_json", "--kubeflow_labels_json",
        "-nh", "--nemo_home", "--detach", "--max_retries", "-d", "--dryrun", "-hf", "--hf_token", "--offline", "-a",
        "--account", "-p", "--partition", "-t", "--time_limit", "--preempt_time", "-i", "--container_image", "-cm",
        "--custom_mounts", "-cs", "--custom_srun_args", "--gres", "--additional_slurm_params", "--packager",
        "--distributed_timeout_minutes"), _STARTS),
    **dict.fromkeys(("-l", "--log_dir", "--save_config_filepath", "--dump_env", "-wdk", "--wandb_key", "-wdp",
                     "--wandb_project_name", "-wde", "--wandb_entity_name", "-wdj", "--wandb_experiment_name", "-wds",
                     "--wandb_save_dir", "--most_recent_k"), "files and logging")}
FLAGS: Final = frozenset({"--dry-run", "--dry_run", "--dump-env", "--dump_env", "--deterministic", "--wait",
                          "--no-gpu-resource-request", "--submission-dry-run", "--use_recipes", "-d", "--dryrun",
                          "--offline", "--packed_sequence", "--head_only", "-en", "--enable_nsys",
                          "--export_nsys_sqlite", "--profiling_gpu_metrics", "--list_config_variants",
                          "--is_long_convergence_run", "--retry_on_testing_failure"})
"""Options without a value."""
MANY: Final = frozenset({"--c4_train_shards", "--dataset_paths", "-cb", "--custom_bash_cmds"})
"""Options of which all words up to the next option are values."""
_CLOCKS: Final = "clocks and power: rates are those of the machine as it is measured"
_PROFILES: Final = "a profiler, which takes time of its own"
UNNAMED: Final = Launcher(_RUN, _OF_RUN, is_named=False)
_RUN_RECIPE: Final = Launcher(_RUN, _OF_RUN)
EXPERIMENT: Final = Launcher(_RUN, {**_OF_RUN, **_OF_EXPERIMENT}, dict.fromkeys((
    "-lmc", "--peak-mem-clk", "--peak_mem_clk"), _CLOCKS))
PERFORMANCE: Final = Launcher(_PERFORMANCE, _OF_PERFORMANCE, {
    **dict.fromkeys(("-vb", "--enable_vboost", "-lgc", "--lock_gpu_freq", "-lmc", "--peak_mem_clk"), _CLOCKS),
    **dict.fromkeys(("-en", "--enable_nsys", "-pyp", "--pytorch_profiler"), _PROFILES),
    **dict.fromkeys(("-cb", "--custom_bash_cmds"), "commands before the training, which are not read")},
    mocks_at="scripts/performance/utils/overrides.py:523", rebuilds=True)
REFUSED: Final[Mapping[str, str]] = {
    "--use_recipes": "a recipe of the library by the benchmarks' launcher: name it for scripts/training/run_recipe.py",
    "--first_k_dense_replace": "other layers without experts than the model's own"}
"""Options of the performance launcher that are refused, each with what it asks for."""
VARIABLES: Final = frozenset({"-ce", "--custom_env_vars", "-E", "--env"})
"""Options of the performance launcher that set variables of the environment: KEY=VALUE, or several behind commas."""
SWITCHES: Final[Mapping[str, str]] = {
    "-rl": "--recompute_num_layers", "-ol": "--activation_offload_layers", **{name: name for name in (
        "--use_megatron_fsdp", "--nccl_ub", "--cuda_graph_impl", "--cuda_graph_scope", "--recompute_num_layers",
        "--activation_offload_layers", "--recompute_modules", "--moe_a2a_overlap", "--use_tokendrop",
        "--tokenizer_type", "--tokenizer_model", "--vocab_size", "--data", "--domain",
        "--moe_flex_dispatcher_backend")}}
"""Options of the performance launcher that set several keys, or keys by the values of others (`switched`)."""


def launcher_of(script: str) -> Launcher:
    """Launcher of Bridge's that a script is, by its path; `UNNAMED` for another."""
    name = script.rpartition("/")[2]
    if name in ("run_script.py", "bootstrap.py") or "performance/" in script:
        return PERFORMANCE
    if name in ("setup_experiment.py", "train.sh", "launch_with_nemo_run.py", "launch_with_sbatch.sh"):
        return EXPERIMENT
    return _RUN_RECIPE if name == "run_recipe.py" else UNNAMED


Set = tuple[str, Any, str]
"""Dotted key, value and place."""
_YES, _NO = ("true", "1", "t", "yes", "y"), ("false", "0", "f", "no", "n")
_IMPLEMENTATIONS: Final = ("none", "local", "transformer_engine")
_CAPTURED: Final = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_WHOLE: Final = "full_iteration"
_SHARD: Final[Mapping[str, Any]] = {
    "ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params",
    "ddp.keep_fp8_transpose_cache": False, "ddp.average_in_collective": False,
    "model.init_model_with_meta_device": True, "model.gradient_accumulation_fusion": True}
_DROPS: Final[Mapping[bool, Mapping[str, Any]]] = {
    True: {"model.moe_expert_capacity_factor": 1.0, "model.moe_pad_expert_input_to_capacity": True,
           "model.moe_router_force_load_balancing": False},
    False: {"model.moe_expert_capacity_factor": None, "model.moe_pad_expert_input_to_capacity": False,
            "model.moe_router_force_load_balancing": True}}
_DISPATCH, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"
_GRACE: Final = ("gb200", "gb300", "vr200", "r100")


def switched(given: Mapping[str, tuple[str, str]], values: Mapping[str, Any], gpu: str) -> tuple[list[Set], list[Set]]:
    """Keys that switches set, and switches that set none: (option, reason, place).

    `given`: text and place of each, by its name in `SWITCHES`; `values`: of the recipe and of overrides before them;
    `gpu`: that of the launch. InputError, at its place, for a value that the launcher does not take, or we do not.
    """
    work = _Switches(given, dict(values), gpu)
    for step in (work.shard, work.register, work.capture, work.recompute, work.overlap, work.drop, work.tokenize,
                 work.sample, work.dispatch):
        step()
    used = {place for _, _, place in work.found} | {option for option, _, _ in work.idle}
    rest = [(option, "as the recipe has it", where) for option, (_, where) in given.items()
            if f"{where} {option}" not in used and option not in used]
    return work.found, [*work.idle, *rest]


_TP, _PP, _CP, _EP = (f"model.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context",
                                                                "expert_model"))
_OVERLAP: Final = "comm_overlap.overlap_moe_expert_parallel_comm"
_BLACKWELL: Final = ("b200", "b300", "gb200", "gb300", "vr200")
_PIECES: Final = re.compile(r"(?:llama3_70b|llama31_405b)_pretrain_|llama\w*_sft_")
"""Recipes whose stages send in larger pieces."""


def variables_of(asked: Mapping[str, str], values: Mapping[str, Any], base: Mapping[str, Any], name: str,
                 gpu: str) -> list[Set]:
    """Variables of the environment that options of the performance launcher change.

    scripts/performance/utils/overrides.py:208 (_apply_flat_cli_environment_compatibility). `asked`: place of each
    option by the key that it sets, or its name; `values`: all that is set; `base`: the recipe's own.
    """
    found = list[Set]()
    degree = {key: values.get(key) or 1 for key in (_TP, _PP, _CP, _EP)}
    backend = base.get("model.moe_flex_dispatcher_backend")
    where = next((asked[key] for key in (_TP, _CP, "--moe_a2a_overlap") if key in asked), "")
    if where:
        overlaps = values.get(_OVERLAP) if "--moe_a2a_overlap" in asked else base.get(_OVERLAP)
        queues = 32 if backend in ("deepep", "hybridep") or gpu in _BLACKWELL else 8
        if gpu not in _BLACKWELL and max(degree[_TP], degree[_CP]) > 1 and not overlaps:
            queues = 1
        found.append(("env_vars.CUDA_DEVICE_MAX_CONNECTIONS", queues, where))
    if _EP in asked and backend == "hybridep":
        ranks = degree[_EP] if gpu in _GRACE else min(degree[_EP], 8)
        found.append(("env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", ranks, asked[_EP]))
    if _PP in asked:
        pieces = 2097152 if degree[_PP] > 1 and _PIECES.match(name) else None
        found.append(("env_vars.NCCL_P2P_NET_CHUNKSIZE", pieces, asked[_PP]))
    if "--nccl_ub" in asked and values.get("ddp.nccl_ub"):
        found += [(f"env_vars.NCCL_{one}", 1, asked["--nccl_ub"]) for one in ("NVLS_ENABLE", "CTA_POLICY")]
    return found


@dataclass
class _Switches:
    """Steps of set_user_overrides, in its order, each on the values that those before it left."""

    given: Mapping[str, tuple[str, str]]
    values: dict[str, Any]
    gpu: str
    found: list[Set] = field(default_factory=list)
    idle: list[Set] = field(default_factory=list)

    def shard(self) -> None:
        if self._flag("--use_megatron_fsdp"):
            late = "comm_overlap.defer_embedding_wgrad_compute"
            self._put("--use_megatron_fsdp", {**_SHARD, **({late: False} if self.values.get(late) else {})})

    def register(self) -> None:
        if self._flag("--nccl_ub"):
            self._put("--nccl_ub", {"ddp.nccl_ub": True, "ddp.average_in_collective": False})

    def capture(self) -> None:
        kind, scope = self._text("--cuda_graph_impl", _IMPLEMENTATIONS), self._words("--cuda_graph_scope")
        if kind is not None:
            self._put("--cuda_graph_impl", {"model.cuda_graph_impl": kind})
        current = self.values.get("model.cuda_graph_impl") or "none"
        if current == "none":
            if kind is not None:
                self._put("--cuda_graph_impl", {"model.cuda_graph_modules": None, "model.cuda_graph_scope": None})
            self._say("--cuda_graph_scope", "nothing is captured without --cuda_graph_impl")
        elif scope is not None:
            self._capture(scope, current)
        self._expect_captured("--cuda_graph_scope" if scope is not None else "--cuda_graph_impl")

    def _capture(self, scope: Sequence[str], current: str) -> None:
        option = "--cuda_graph_scope"
        if wrong := [one for one in scope if one not in (_WHOLE, *_CAPTURED)]:
            raise self._problem(option, f"expected some of {', '.join((_WHOLE, *_CAPTURED))}, got {wrong[0]!r}")
        if _WHOLE not in scope:
            self._put(option, {"model.cuda_graph_modules": list(scope), "model.cuda_graph_scope": None})
        elif len(scope) > 1:
            raise self._problem(option, "full_iteration is combined with no other scope")
        elif current == "transformer_engine":
            raise self._problem(option, "full_iteration is not captured by transformer_engine")
        else:
            self._put(option, {"model.cuda_graph_impl": _WHOLE, "model.cuda_graph_modules": None,
                               "model.cuda_graph_scope": None})

    def _expect_captured(self, option: str) -> None:
        """Raises InputError for what is not captured (utils/cuda_graph.py validate_cuda_graph_configuration)."""
        said = self.values.get("model.cuda_graph_modules") or self.values.get("model.cuda_graph_scope") or []
        names = [said] if isinstance(said, str) else list(said)
        kind = self.values.get("model.cuda_graph_impl")
        if option in self.given and kind == "local" and _WHOLE not in names:
            raise self._problem(option, "Bridge captures by local a full iteration alone (utils/cuda_graph.py:160)")
        wrong = [one for one in names if one not in ("full", *_CAPTURED)]
        if option in self.given and kind == "transformer_engine" and wrong:
            raise self._problem(option, f"transformer_engine does not capture {wrong[0]} (utils/overrides.py:148)")

    def recompute(self) -> None:
        away, whole = self._number("--activation_offload_layers"), self._number("--recompute_num_layers")
        if away:
            self._put("--activation_offload_layers", {
                "model.cpu_offloading": True, "model.cpu_offloading_weights": False,
                "model.cpu_offloading_num_layers": away})
        if whole is not None:
            self._put("--recompute_num_layers", {
                "model.recompute_granularity": "full", "model.recompute_method": "block",
                "model.recompute_num_layers": whole})
        modules = self._words("--recompute_modules")
        if modules is not None:
            self._put("--recompute_modules", {"model.recompute_modules": list(modules),
                                              "model.recompute_granularity": "selective"})

    def overlap(self) -> None:
        if not self._flag("--moe_a2a_overlap"):
            return
        has_one = any(key.startswith("comm_overlap.") for key in self.values)
        made = {} if has_one else {"comm_overlap.tp_comm_overlap":
                                   (self.values.get("model.tensor_model_parallel_size") or 1) > 1}
        self._put("--moe_a2a_overlap", {**made, "comm_overlap.overlap_moe_expert_parallel_comm": True,
                                        "comm_overlap.delay_wgrad_compute": True,
                                        "model.moe_shared_expert_overlap": False})

    def drop(self) -> None:
        drops = self._flag("--use_tokendrop")
        if drops is None:
            return
        if self.values.get(_DISPATCH) == "flex":
            raise self._problem("--use_tokendrop", "moe_expert_capacity_factor only works with the dispatcher alltoall "
                                                   "(training/utils/moe_token_drop.py:55)")
        self._put("--use_tokendrop", _DROPS[drops])

    def tokenize(self) -> None:
        kind = self._text("--tokenizer_type", ("NullTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer"))
        model, count = self._text("--tokenizer_model"), self._number("--vocab_size")
        if kind is None:
            for option in ("--tokenizer_model", "--vocab_size"):
                self._say(option, "it is read with --tokenizer_type alone")
            return
        if kind != "NullTokenizer" and model is None:
            raise self._problem("--tokenizer_type", f"--tokenizer_model is required for {kind}")
        rows = {"tokenizer.vocab_size": 32000 if count is None else count} if kind == "NullTokenizer" else {
            "tokenizer.tokenizer_model": model}
        self._put("--tokenizer_type", {**dict.fromkeys([key for key in self.values if key.startswith("tokenizer.")]),
                                       "tokenizer.tokenizer_type": kind, **rows})
        self._say("--tokenizer_model", "--tokenizer_type takes it, or has none")
        self._say("--vocab_size", "--tokenizer_type takes it, or has none")

    def sample(self) -> None:
        data = self._text("--data", ("mock", "rp2", "squad", "squad_packed", "c4"))
        if data is not None and data.startswith("squad"):
            raise self._problem("--data", f"not yet: {data}: conversations in place of the recipe's samples")
        self._say("--data", "which samples are read")
        if self._text("--domain", ("llm", "vlm", "qwen3vl", "diffusion")) not in (None, "llm"):
            raise self._problem("--domain", "not yet: a step over more than text")
        self._say("--domain", "text, as without it")

    def dispatch(self) -> None:
        option = "--moe_flex_dispatcher_backend"
        backend = self._text(option, ("deepep", "hybridep", "None"))
        if backend == "None" or (backend == "deepep" and self.gpu in _GRACE):  # flex_dispatcher_backend.py:61
            self._put(option, {_BACKEND: None, _DISPATCH: "alltoall"})
        elif backend is not None:
            self._put(option, {_DISPATCH: "flex", _BACKEND: backend, "model.moe_shared_expert_overlap": False})

    def _put(self, option: str, values: Mapping[str, Any]) -> None:
        self.values.update(values)
        self.found += [(key, value, f"{self.given[option][1]} {option}") for key, value in values.items()]

    def _say(self, option: str, why: str) -> None:
        if option in self.given:
            self.idle.append((option, why, self.given[option][1]))

    def _text(self, option: str, words: Sequence[str] = ()) -> str | None:
        if option not in self.given:
            return None
        text = self.given[option][0]
        if words and text not in words:
            raise self._problem(option, f"expected {', '.join(words)}, got {text!r}")
        return text

    def _words(self, option: str) -> list[str] | None:
        text = self._text(option)
        return None if text is None else text.split(",")

    def _number(self, option: str) -> int | None:
        text = self._text(option)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise self._problem(option, f"expected a whole number, got {text!r}")
        return int(text)

    def _flag(self, option: str) -> bool | None:
        text = self._text(option)
        if text is None:
            return None
        if text.lower() not in (*_YES, *_NO):
            raise self._problem(option, f"expected true or false, got {text!r}")
        return text.lower() in _YES

    def _problem(self, option: str, message: str) -> InputError:
        return InputError(Problem(self.given[option][1], f"{option}: {message}"))
