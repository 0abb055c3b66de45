"""Keys of the supervised trainer's defaults: those with a value are not appended (`+a.b=c`), others are not set.

Hydra's rule (1.3.2 `_internal/config_loader_impl.py`, _apply_overrides_to_config): what is null may be appended, and a
list or a mapping is merged into what is there. Keys are those of verl b178a3cd `trainer/config/sft_trainer.yaml` and of
its group `optim/fsdp.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.recipes.draft import Draft

__all__ = ["expect_new", "expect_there"]

_FILE: Final = "sft_trainer.yaml"
_DATA: Final = """
    train_batch_size micro_batch_size_per_gpu train_files val_files train_max_samples val_max_samples prompt_key
    response_key multiturn.enable multiturn.messages_key multiturn.tools_key multiturn.enable_thinking_key max_length
    truncation balance_dp_token use_shm"""
_MODEL: Final = """
    partial_pretrain use_shm fsdp_config.model_dtype fsdp_config.wrap_policy.min_num_params fsdp_config.cpu_offload
    fsdp_config.offload_params enable_gradient_checkpointing trust_remote_code lora_rank lora_alpha target_modules
    use_liger strategy"""
_OPTIM: Final = """
    optimizer optimizer_impl lr betas lr_warmup_steps_ratio total_training_steps weight_decay lr_warmup_steps clip_grad
    min_lr_ratio num_cycles lr_scheduler_type lr_scheduler"""
_TRAINER: Final = """
    default_local_dir project_name experiment_name total_epochs logger seed save_freq test_freq nnodes n_gpus_per_node
    resume_mode checkpoint.save_contents checkpoint.load_contents device"""
_KEYS: Final = frozenset({
    "ulysses_sequence_parallel_size", "use_remove_padding",
    *(f"{block}.{key}" for block, keys in (("data", _DATA), ("model", _MODEL), ("optim", _OPTIM),
                                           ("trainer", _TRAINER)) for key in keys.split())})


_NULLS: Final = frozenset({
    "data.micro_batch_size", "data.prompt_dict_keys", "data.response_dict_keys", "data.chat_template",
    "data.custom_cls.path", "data.custom_cls.name", "data.apply_chat_template_kwargs", "model.external_lib",
    "optim._target_", "optim.warmup_style", "optim.override_optimizer_config", "trainer.default_hdfs_dir",
    "trainer.total_training_steps", "trainer.max_ckpt_to_keep", "trainer.resume_from_path"})
"""Keys that are null, or hold nothing."""


def expect_new(draft: Draft, appended: Sequence[tuple[KeyPath, Any, str]], below: Sequence[Document]) -> None:
    """Records keys that a command appends though they have a value. `appended`: path, value and place of each.

    `below`: the files that the command goes over; without any it goes over the trainer's own defaults.
    """
    for path, value, where in appended:
        if isinstance(value, list | dict):
            continue
        has = [document.where(path) for document in below if _is_set(document.data, path)]
        if not below and dotted(path) in _KEYS:
            has = [_FILE]
        if has:
            key = dotted(path)
            draft.fail(where, f"+{key}: {has[0]} has this key, and Hydra does not append it: {key} sets it")


def expect_there(draft: Draft, plain: Sequence[tuple[KeyPath, Any, str]]) -> None:
    """Records keys that a command sets without a `+` though the trainer's defaults do not have them.

    A block of them is there, too. `plain`: path, value and place of each.
    """
    there = _KEYS | _NULLS
    for path, _, where in plain:
        key = dotted(path)
        if path[0] != "hydra" and key not in there and not any(one.startswith(f"{key}.") for one in there):
            draft.fail(where, f"{key}: {_FILE} has no such key, which Hydra does not set: +{key} appends it")


def _is_set(data: Any, path: KeyPath) -> bool:
    """True if there is a value that is not null at a path."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data is not None
