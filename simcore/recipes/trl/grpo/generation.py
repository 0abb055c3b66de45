"""Generation of a GRPO recipe: by vLLM on the GPUs that train, by a server, or by transformers' generate.

TRL 1.16.0 `trainer/grpo_config.py`, `generation/vllm_generation.py`. Without `vllm_max_model_length` vLLM takes the
longest sequence of the model's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows
from simcore.recipes.trl.grpo.batches import Generated
from simcore.recipes.trl.grpo.releases import Turn

__all__ = ["read_generation"]

_CONFIG: Final = "trainer/grpo_config.py"
_COLOCATE, _SERVER = "colocate", "server"
_CORRECTION: Final = "vllm_importance_sampling_correction"
_ITSELF: Final[tuple[Row, ...]] = (
    Idle(("vllm_*",), "vLLM is not used"),
    Off("use_transformers_continuous_batching", "generation by transformers' continuous batching"),
    Off("use_transformers_paged", "generation by transformers' continuous batching"),
    Idle(("transformers_continuous_batching_config", "transformers_continuous_batching_config.*"), "it is not used"),
    Says("cache_implementation", "", "text", {None: None}, {"dynamic": "the default"}, "keys and values kept as"))
_OTHERS: Final[tuple[Row, ...]] = (
    Says("vllm_model_impl", "", "text", {None: None}, {"vllm": "the default", "auto": "vLLM's own, where it has one"},
         "layers of vLLM by"),
    Idle(("use_transformers_continuous_batching", "use_transformers_paged", "transformers_continuous_batching_config",
          "transformers_continuous_batching_config.*", "cache_implementation", "ds3_gather_for_generation"),
         "vLLM generates"))
_OF_COLOCATED: Final[tuple[Row, ...]] = (
    Idle(("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode"),
         "of an engine on the GPUs that train"),)


def read_generation(reader: Reader, draft: Draft, generated: Generated | None, turn: Turn) -> None:
    """Writes the engine, and whether the policy's own log-probabilities are made."""
    wanted, correction = reader.flag("use_vllm"), reader.flag(_CORRECTION)
    by_vllm = wanted is not None and wanted.value
    if not by_vllm:
        draft.infer("generation.engine", "transformers", "use_vllm is off", wanted)
        gathers = reader.flag("ds3_gather_for_generation")
        if gathers is not None and not gathers.value and "zero3" in str(draft.values.get("framework")):
            draft.put("rl.gather_for_generation", gathers)
        else:
            draft.idle(gathers, "the default, or nothing is sharded by ZeRO 3")
        draft.idle(correction, "vLLM is not used")
        read_rows(reader, draft, _ITSELF)
    else:
        draft.use(wanted, why="vLLM generates")
        _read_vllm(reader, draft, turn)
        read_rows(reader, draft, _OTHERS)
    scores = by_vllm and turn.step.corrects and (correction is None or correction.value)
    if by_vllm:
        draft.use(correction, why="the policy's own log-probabilities are made where it is on")
    if generated is None:
        return
    at_once, step, epochs = generated
    rule = f"{turn.name} trainer/grpo_trainer.py _generate_and_score_completions"
    if not scores and not turn.step.needs_scores(step, at_once, epochs):
        draft.infer("rl.on_policy_ratio", value=True, rule="each optimizer step has its own generation", source=rule)


def _read_vllm(reader: Reader, draft: Draft, turn: Turn) -> None:
    mode = reader.text("vllm_mode")
    name = mode.value if mode is not None else turn.mode
    if mode is None:
        draft.release_default("vllm_mode", turn.mode, turn.name, _CONFIG)
    elif name not in (_COLOCATE, _SERVER):
        draft.fail(mode.where, f"vllm_mode must be either 'server' or 'colocate', got '{name}'")
    longest = reader.integer("vllm_max_model_length")
    if turn.cut:
        draft.use(longest, why="the longest sequence")  # the engine's own limit is that of a sequence
    elif longest is not None:
        draft.put("generation.max_model_len", longest)
    elif (positions := _positions(draft)) is not None:
        draft.infer("generation.max_model_len", positions, "the model's longest sequence", source="vLLM 0.12.0 "
                    "config/model.py _get_and_verify_max_len")
    if name == _SERVER:
        draft.infer("generation.colocated", False, "a server on GPUs of its own", mode)  # noqa: FBT003 - a value
        draft.default("generation.tp", 1, "vLLM 0.12.0", "config/parallel.py: another is said where the server is "
                      "started")
        read_rows(reader, draft, _OF_COLOCATED)
        return
    draft.use(mode, why="vLLM on the GPUs that train")
    share, tp = reader.number("vllm_gpu_memory_utilization"), reader.integer("vllm_tensor_parallel_size")
    if share is not None:
        draft.put("generation.gpu_memory_utilization", share)
    else:
        draft.default("generation.gpu_memory_utilization", 0.3, turn.name, _CONFIG)
    if tp is not None:
        draft.put("generation.tp", tp)
    sleeps = reader.flag("vllm_enable_sleep_mode")
    draft.infer("generation.sleep_level", turn.step.sleeps if sleeps is not None and sleeps.value else 0,
                "vllm_enable_sleep_mode", sleeps, source=f"{turn.name} self.llm.sleep")


def _positions(draft: Draft) -> int | None:
    """Longest sequence of the model's configuration; None where the model is not known."""
    model: Any = draft.values.get("model") or draft.answers.settings.get("model") or ""
    try:
        fields = model_config(str(model.get("config") if isinstance(model, Mapping) else model), None, "")
    except InputError:
        return None
    text = fields.get("text_config")
    found = (text if isinstance(text, Mapping) else fields).get("max_position_embeddings")
    return found if isinstance(found, int) else None
