"""A provider's own sizes, as a run writes them into its configuration, read as Megatron's arguments are."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Final

from simcore.recipes.bridge.rows import defaults, give_up
from simcore.recipes.bridge.vocabulary import read_vocabulary
from simcore.recipes.draft import Draft
from simcore.recipes.megatron.arguments import arguments, names_of
from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.model import write_model
from simcore.recipes.megatron.refused import REFUSED
from simcore.recipes.megatron.without_effect import left_out
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Unmodelled, leave_out, read_rows

__all__ = ["leave_rest", "read_provider"]

_RENAMED: Final = {"num_experts": "num_moe_experts", "encoder_num_layers": "", "vocab_file": "", "tokenizer_type": "",
                   "logit_dtype": "", "perform_rl_step": "", "max_position_embeddings": "seq_length"}
"""Fields that have another name here, or ("") none. Learned positions reach to seq_length (models/gpt_provider.py)."""


_FIELDS: Final = (
    Idle(("ddp.fp8_param_gather", "ddp.fp4_param_gather", "optimizer.fp8_recipe", "optimizer.hysteresis",
          "optimizer.params_dtype", "optimizer.*loss_scale*", "model.num_layers_at_*_in_bf16", "model.fp4",
          "model.fp4_param", "model.fp4_recipe"),
         "mixed_precision says it"),
    Idle(("ddp.megatron_fsdp_use_decoupled_grad", "comm_overlap.data_parallel_size", "*.timers", "model.*_scale_func",
          "model.*_sync_func", "model.finalize_model_grads_func", "peft.canonical_mapping", "peft.params_to_save"),
         "the run sets it itself"),
    Idle(("optimizer.config_logger_dir", "optimizer.barrier_with_L1_time"), "logging and measuring"),
    Idle(("optimizer.decoupled_weight_decay", "optimizer.grad_norm_skip_threshold"), "values of the optimizer's step"),
    Idle(("optimizer.adaptive_muon_*", "optimizer.soap_*"), "of other optimizers"),
    Unmodelled(("optimizer.pin_cpu_*",), "copies of an update on the host that are pinned, or not"),
    Unmodelled(("ddp.disable_symmetric_registration",), "which of NCCL's kernels run over registered buffers"),
    Unmodelled(("model.cuda_graph_retain_backward_graph", "model.cuda_graph_use_single_mempool"),
               "how captures share memory: it is in the band of captured runs"),
    Idle(("model.init_method", "model.embedding_init_method", "model.output_layer_init_method"),
         "before the first step"),
    Idle(("model.hetereogenous_dist_checkpoint",), "reading and writing files"),
    Idle(("model.inference_sampling_seed", "model.use_inference_optimized_layers"), "inference"),
    Idle(("model.beta_fast", "model.beta_slow", "model.rope_scaling*", "model.original_max_position_embeddings",
          "model.seq_len_interpolation_factor", "model.softmax_scale"), "values within kernels that run in any case"),
)
"""Fields that no recipe of Bridge's sets, each with its reason."""
_ACTIVATIONS: Final = {("silu", True): "swiglu", ("squared_relu", False): "squared_relu", ("gelu", False): "gelu",
                       ("quick_gelu", True): "quick_geglu"}
"""Switch of the arguments by the activation's function, and whether the MLP is gated."""


class ConfigFields:
    """Fields of Megatron by the keys of a configuration's model."""

    release = "Megatron-Bridge main 2026-08-22"

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def source(self, name: str) -> str:
        """Upstream file of a default."""
        del name
        return "core transformer/transformer_config.py"

    def integer(self, name: str) -> Setting[int | None]:
        """A whole number, or None.

        An MLP is four times as wide as the stream, gated or not (core transformer_config.py:1452); the launcher gives
        the model the length of the data (Bridge scripts/training/recipe_runner.py, sync_model_dataset_sequence_length).
        """
        found: Setting[int | None] = self._found(name, self.reader.integer)
        if name == "ffn_hidden_size" and not found.value:
            width = self.integer("hidden_size")
            return Setting(name, 4 * width.value if width.value else None, width.taken)
        if name == "max_position_embeddings" and not found.value:
            length = self.reader.integer("dataset.seq_length")
            return Setting(name, length.value if length else None, (length,) if length else ())
        return found

    def number(self, name: str) -> Setting[float | None]:
        """A number, or None."""
        return self._found(name, self.reader.number)

    def text(self, name: str) -> Setting[str | None]:
        """A text, or None; a list counts as its text."""
        found = self._found(name, self.reader.take)
        return Setting(name, None if found.value is None else str(found.value), found.taken)

    path = text

    def words(self, name: str) -> Setting[tuple[str, ...]]:
        """A list of texts."""
        found = self._found(name, self.reader.words)
        return Setting(name, tuple(found.value or ()), found.taken)

    def any(self, name: str) -> Setting[Any]:
        """A value of any kind; False counts as not given."""
        found = self._found(name, self.reader.take)
        return Setting(name, found.value or None, found.taken)

    def flag(self, name: str) -> Setting[bool]:
        """True or false; switches of activation and heads follow from other keys."""
        if name in ("swiglu", "squared_relu", "quick_geglu"):
            return self._activation(name)
        if name == "group_query_attention":
            groups = self.reader.integer("model.num_query_groups")
            return Setting(name, groups is not None, (groups,) if groups else ())
        if name == "untie_embeddings_and_output_weights":
            shared = self.reader.flag("model.share_embeddings_and_output_weights")
            return Setting(name, shared is not None and not shared.value, (shared,) if shared else ())
        found = self._found(name, self.reader.flag)
        return Setting(name, bool(found.value), found.taken)

    def _activation(self, name: str) -> Setting[bool]:
        function = activation_of(self.reader)
        gated = self.reader.flag("model.gated_linear_unit")
        kind = (function.value.rpartition(".")[2] if function else "gelu", bool(gated and gated.value))
        return Setting(name, _ACTIVATIONS.get(kind) == name, tuple(one for one in (function, gated) if one))

    def _found(self, name: str, read: Callable[[str], Taken[Any] | None]) -> Setting[Any]:
        key = _RENAMED.get(name, name)
        taken = read(f"model.{key}") if key and not self.reader.is_mapping(f"model.{key}") else None
        known = names_of((name,))
        default = arguments()[known[0]].default if known else None
        return Setting(name, taken.value if taken else default, (taken,) if taken else ())


def activation_of(reader: Reader) -> Taken[str] | None:
    """The MLP's function: by its path, as a run writes it, or by the name that an override gives."""
    key = "model.activation_func"
    return reader.text(f"{key}._target_" if reader.is_mapping(key) else key)


def read_provider(reader: Reader, draft: Draft) -> None:
    """Writes the model of a provider by its sizes. Raises nothing: what is not read is refused in `draft`."""
    writer = Writer(draft, ConfigFields(reader))
    function, gated = activation_of(reader), reader.flag("model.gated_linear_unit")
    if function and (function.value.rpartition(".")[2], bool(gated and gated.value)) not in _ACTIVATIONS:
        give_up(draft, function.where, f"not yet: {function.value}, gated_linear_unit {bool(gated and gated.value)}")
    write_model(writer)
    read_vocabulary(reader, draft, None, asks=True)


def leave_rest(reader: Reader, draft: Draft) -> None:
    """Lists keys of a provider that Megatron's arguments list too, by the same reasons, and those that are off."""
    nothing = [one.key for one in reader.untouched() if one.value is None]
    draft.idle(reader.matching(*nothing), "null: nothing is asked for")
    draft.refuse(reader.take("model.logit_dtype"), "logits in another format")
    for row in left_out(draft.values):
        keys = {one.key: name for one in reader.untouched() if one.path[0] == "model" for name in names_of(
            (str(one.path[1]),)) if any(fnmatchcase(name, pattern) for pattern in row.keys)}
        found = reader.matching(*keys)
        as_default = [one for one in found if one.value is True and arguments()[keys[one.key]].takes == "false"]
        draft.idle(as_default, "the default, as without it")
        changed = [one for one in found if one not in as_default]
        if isinstance(row, Unmodelled) and any(arguments()[keys[one.key]].takes == "false" for one in changed):
            draft.unmodelled(changed, row.why)
        else:
            leave_out(draft, row, changed)
    off = [one.key for one in reader.untouched() if one.path[0] == "model" and one.value is False
           and defaults().get(one.key) != [True]]
    draft.idle(reader.matching(*off), "off")
    _leave_fields(reader, draft)
    functions = [one.key for one in reader.untouched() if one.path[-1] in ("_target_", "_call_", "_partial_")]
    draft.idle(reader.matching(*functions), "names of classes and functions")


def _leave_fields(reader: Reader, draft: Draft) -> None:
    """Lists fields of Bridge's classes that nothing has read: by their reasons, or refused by name."""
    captures = "cuda_graph_impl" in draft.values.get("framework_options", {})
    if not captures:
        draft.idle(reader.matching("model.cuda_graph_*"), "nothing is captured")
    if not reader.has("peft._target_"):
        draft.idle(reader.matching("peft.*"), "there are no adapters")
    _leave_batches(reader, draft)
    read_rows(reader, draft, _FIELDS)
    for one in reader.untouched():
        key = ".".join(map(str, one.path[:2]))
        known = defaults()
        if key not in known or one.path[-1] in ("_target_", "_call_", "_partial_") or (
                one.path[0] == "model" and draft.refuses("model._target_")):
            continue
        taken = reader.take(one.key) or one
        if len(one.path) == 2 and known[key] == [one.value]:
            draft.idle(taken, "the default, as without it")
        else:
            draft.refuse(taken, _refusal(str(one.path[0]), str(one.path[1])))


def _leave_batches(reader: Reader, draft: Draft) -> None:
    """Lists what changes the batch during a run, as of Megatron's arguments (core/num_microbatches_calculator.py)."""
    draft.idle(reader.matching("train.rampup_batch_size*"), "main only warns of it: the batch is constant "
               "(core/num_microbatches_calculator.py:100)")
    cuts = reader.flag("train.decrease_batch_size_if_needed")
    training, mesh = draft.values.get("training", {}), draft.values.get("mesh", {})
    ranks = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1) * training.get("micro_batch_size", 1)
    if cuts is not None and cuts.value and training.get("global_batch_size", 0) % ranks:
        draft.refuse(cuts, "a batch that is cut to whole microbatches of all ranks: give train.global_batch_size")
    else:
        draft.idle(cuts, "off, or the batch is a multiple of the ranks' microbatches as it is")
    draft.refuse(reader.take("train.step_batch_size_schedule"), "batches by a schedule: give train.global_batch_size")


def _refusal(block: str, name: str) -> str:
    """Reason of Megatron's arguments why no scenario can say a field; of another field a general one."""
    names = {name, f"{block}_{name}"}
    return next((row.why for row in REFUSED if names & {*row.fields}), f"a field of Bridge's {block} that no scenario "
                                                                       "says")
