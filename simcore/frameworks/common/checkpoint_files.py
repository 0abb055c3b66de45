"""Memory that reading and writing checkpoints takes under each framework: by default, and as a scenario chooses.

[Note: saving with the Trainer]
transformers 5.23 `trainer.py`, save_model. DDP: `save_pretrained` of rank 0 takes tensors from its device. ZeRO-1 and
2: accelerate 1.15 `accelerator.py`, get_state_dict, copies all parameters to the host on every rank (DeepSpeed 0.19.6
`checkpoint/utils.py`, clone_tensors_for_torch_save), also frozen ones. ZeRO-3: rank 0 gathers module by module
(`runtime/engine.py`, _zero3_consolidated_16bit_state_dict), with adapters theirs alone. FSDP1: all parameters of rank 0
(FULL_STATE_DICT, offload_to_cpu). Then `modeling_utils.py`, save_pretrained, gives each expert the tensors of the files
again (`core_model_loading.py`, revert_weight_conversion: fused gates and ups are copied apart, all layers at once,
where the state dict lies), and writes files of at most 50 GB, in transformers 4 (4.57.1) of 5. safetensors 0.8.0
`torch.py`, _flatten_as_ptr, copies all tensors of a file to the host before it writes the first. PEFT 0.21.2
`peft_model.py` writes adapters to one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simcore.placement.checkpoint_files import Files, Transfer
from simcore.placement.job import Draft

__all__ = ["automodel_files", "fsdp1_files", "fsdp2_files", "megatron_files", "megatron_fsdp_files", "plain_files"]

_DCP: Final = "torch 2.13 distributed/checkpoint/filesystem.py"
_TRAINER: Final = ("transformers 5.23 trainer.py save_model, modeling_utils.py save_pretrained; safetensors 0.8.0 "
                   "torch.py")
_NO_GATHER: Final = "accelerate 1.15 accelerator.py get_state_dict; transformers 5.23 trainer.py save_model"
_FILE_BYTES: Final = 50 * 10**9
_FILE_BYTES_4: Final = 5 * 10**9
"""With transformers 4.57.1 (max_shard_size), which loads modelling code of the Hub too."""
_CUT: Final = "experts.gate_up_proj"
_APART: Final = ("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3")
"""Families whose files have gates and ups of experts apart: transformers 5.23 conversion_mapping.py."""
_FULL: Final = "torch 2.13 distributed/checkpoint/state_dict.py get_model_state_dict(full_state_dict, cpu_offload)"

FSDP2_LOAD: Final[Mapping[str, Transfer]] = {
    "every_rank": Transfer("transformers 5.23 modeling_utils.py from_pretrained: every process makes CPU tensors of "
                           "mapped files, whatever low_cpu_mem_usage says (:4171); torch 2.13 _fully_shard/"
                           "_fsdp_init.py:369 moves a unit to the device whole", whole_on="every_rank",
                           in_flight=0, on_device="unit"),
    "rank0": Transfer("torch 2.13 distributed/checkpoint/state_dict.py broadcast_from_rank0, _state_dict_utils.py:679: "
                      "one tensor at a time", whole_on="rank0", in_flight=0, on_device="tensor"),
    "sharded": Transfer(f"{_DCP}:861 read_data: a tensor at a time, into shards of a model made on the meta device"),
}
AUTOMODEL_LOAD: Final[Mapping[str, Transfer]] = {
    "sharded": Transfer("nemo-automodel 0.7.0 components/checkpoint/_backports/hf_storage.py read_data: slices of "
                        "mapped files, a tensor at a time where it is not aligned, into a model made on meta"),
}
MEGATRON_LOAD: Final[Mapping[str, Transfer]] = {
    "sharded": Transfer(f"torch_dist: core 0.16.1 dist_checkpointing/strategies/torch.py:796, {_DCP}:861 read_data: "
                        "a stored shard at a time, into what rests on the device"),
}


def fsdp2_files(job: Draft, defaults: tuple[str, str]) -> Files:
    """Returns how an FSDP2 job reads and writes checkpoints, as the scenario asks or by its trainer's `defaults`.

    torch itself has none. A plain script with transformers reads on every rank and gathers on rank 0; torchtitan makes
    the model on the meta device and reads and writes shards.
    """
    lora = job.scenario.training.method != "full"
    save = {"full": Transfer(_FULL + ": a tensor at a time", whole_on="rank0", trained_only=lora, in_flight=0,
                             on_device="tensor"),
            "sharded": Transfer(f"{_DCP}:594 per_thread_copy_ahead: 10 MB, or a tensor", trained_only=lora)}
    return _chosen(job, FSDP2_LOAD, save, defaults)


def fsdp1_files(job: Draft) -> Files:
    """Returns how an FSDP1 job reads and writes checkpoints, as the scenario asks or by default.

    As under FSDP2, but a unit is laid flat on the device before it is cut.
    """
    flat = "torch 2.13 distributed/fsdp/_init_utils.py _init_param_handle_from_params: flat on the device, then cut"
    load = {"every_rank": Transfer(f"transformers 5.23 modeling_utils.py from_pretrained on every rank; {flat}",
                                   whole_on="every_rank", in_flight=0, on_device="unit"),
            "rank0": Transfer(f"accelerate 1.15 cpu_ram_efficient_loading: rank 0 reads, sync_module_states; {flat}",
                              whole_on="rank0", in_flight=0, on_device="unit")}
    trained_only = job.scenario.training.method != "full"
    save = {"full": Transfer("torch 2.13 distributed/fsdp/_state_dict_utils.py FULL_STATE_DICT, offload_to_cpu and "
                             f"rank0_only: a unit at a time, all of the model; {_TRAINER}", whole_on="rank0",
                             trained_only=trained_only, gathers_all=_is_transformers(job), packed=True, in_flight=0,
                             cut=_cut(job), cut_on_host=True, on_device="unit"),
            "sharded": Transfer(f"{_DCP}:594 per_thread_copy_ahead: 10 MB, or a tensor", trained_only=trained_only)}
    return _chosen(job, load, save, ("every_rank", "full"))


def plain_files(job: Draft, zero: int = 0, *, gathers: bool = True) -> Files:
    """Returns how a job of DDP, or of a stage of ZeRO (`zero`), reads and writes checkpoints.

    Each rank reads all, rank 0 writes: [Note: saving with the Trainer]. `gathers`: False if ZeRO-3 may not gather what
    it trains (stage3_gather_16bit_weights_on_model_save); the Trainer then writes parts, which are not modelled.
    Raises IllegalLayout where the scenario asks for a gather all the same.
    """
    load = Transfer("transformers 5.23 modeling_utils.py from_pretrained: CPU tensors of mapped files, then .to()",
                    whole_on="every_rank", in_flight=0)
    if job.scenario.training.method == "qlora":
        load = Transfer(f"{load.source}; get_init_context: what is packed is whole on every rank's device before "
                        "DeepSpeed cuts it", whole_on="every_rank", in_flight=0, on_device="model")
    files = _chosen(job, {"every_rank": load}, {"full": _saved_by_trainer(job, zero)}, ("every_rank", "full"))
    if gathers or job.scenario.training.method != "full" or files.save is None:
        return files
    if job.scenario.checkpoint.save == "full":
        raise job.illegal("checkpoint.save", "full: Cannot get 16bit model weights because "
                          "stage3_gather_16bit_weights_on_model_save is False", _NO_GATHER)
    job.note("checkpoint.save", "none: parts of every rank, which are not modelled", _NO_GATHER)
    return replace(files, save=None)


def _saved_by_trainer(job: Draft, zero: int) -> Transfer:
    adapters, cut = job.scenario.training.method != "full", _cut(job)
    if zero == 0:
        files = _FILE_BYTES if job.graph.implementation == "hf" else _FILE_BYTES_4
        return Transfer(f"{_TRAINER}: a file at a time", whole_on="rank0", trained_only=adapters, packed=True,
                        file_bytes=files, cut=cut, in_flight=0)
    if zero == 3:
        return Transfer(f"{_TRAINER}; DeepSpeed 0.19.6 runtime/engine.py _zero3_consolidated_16bit_state_dict: a "
                        "module at a time", whole_on="rank0", trained_only=adapters, packed=True, cut=cut,
                        cut_on_host=True, in_flight=0, on_device="module")
    return Transfer(f"{_TRAINER}; accelerate 1.15 accelerator.py get_state_dict: every rank copies the model",
                    whole_on="every_rank", trained_only=adapters, gathers_all=True, packed=True, cut=cut,
                    cut_on_host=True, in_flight=0)


def _cut(job: Draft) -> str:
    """Ending of the names of fused experts that are written apart, "" if there are none or adapters alone are saved."""
    is_cut = (job.graph.implementation == "hf" and job.graph.architecture.family in _APART
              and job.scenario.training.method == "full")
    return _CUT if is_cut else ""


def _is_transformers(job: Draft) -> bool:
    return job.graph.implementation in ("hf", "hf4", "hub")


def automodel_files(job: Draft) -> Files:
    """Returns how an Automodel job reads and writes checkpoints, as the scenario asks or by default.

    Files are safetensors, and each rank writes its own shards; adapters are gathered first. Consolidation into whole
    tensors (save_consolidated, when training is over) runs 5 threads, each of which holds a tensor and a shard of it in
    host memory.
    """
    where, load = "nemo-automodel 0.7.0 components/checkpoint/", AUTOMODEL_LOAD
    if job.scenario.training.method == "qlora":
        load = {"sharded": Transfer("nemo-automodel 0.7.0 _transformers/model_init.py _stream_load_bnb_weights: a "
                                    "tensor at a time to every rank's device, all of it before FSDP cuts it",
                                    on_device="model")}
    if job.scenario.training.method == "full":
        saved = Transfer(f"{_DCP}:456 a rank's tensors and their bytes, both whole; {where}_backports/"
                         "consolidate_hf_safetensors.py:401, checkpointing.py:779: 5 threads", params=2, in_flight=10)
    elif job.mesh.ep > 1 or job.mesh.pp > 1:
        saved = Transfer(f"{where}stateful_wrappers.py:141 full_tensor().cpu() on every rank: at most all adapters",
                         whole_on="every_rank", trained_only=True, in_flight=0, on_device="tensor")
    else:
        saved = Transfer(f"{where}stateful_wrappers.py:434 full_state_dict, cpu_offload, ignore_frozen_params",
                         whole_on="rank0", trained_only=True, in_flight=0, on_device="tensor")
    return _chosen(job, load, {"sharded": saved}, ("sharded", "sharded"))


def megatron_files(job: Draft) -> Files:
    """Returns how a Megatron job reads and writes checkpoints, as the scenario asks or by default.

    torch_dist: all that a rank writes is copied to the host first; data-parallel ranks divide among themselves the
    writing of parameters that they all hold.
    """
    saved = Transfer("torch_dist: core 0.16.1 dist_checkpointing/strategies/filesystem_async.py preload_tensors, also "
                     "without async_save (async_utils.py:79); Bridge 0.3.1 training/config.py:839 fully_parallel_save, "
                     "checkpointing.py:619 adapters alone", params=1, states=1, shared=("dp_cp", "expert_dp"),
                     trained_only=job.scenario.training.method != "full")
    return _chosen(job, MEGATRON_LOAD, {"sharded": saved}, ("sharded", "sharded"))


def megatron_fsdp_files(job: Draft) -> Files:
    """Returns how a Megatron-FSDP job reads and writes checkpoints, as the scenario asks or by default.

    fsdp_dtensor: torch's own reader and writer, on parts of buckets as DTensors.
    """
    where = "fsdp_dtensor: Bridge 0.3.1 training/checkpointing.py"
    load = {"sharded": Transfer(f"{where}:2304 FileSystemReader; {_DCP}:861 read_data: a tensor at a time")}
    save = {"sharded": Transfer(f"{where}:637 FileSystemWriter; {_DCP}:594 per_thread_copy_ahead: 10 MB, or a tensor; "
                                ":619 adapters alone", trained_only=job.scenario.training.method != "full")}
    return _chosen(job, load, save, ("sharded", "sharded"))


def _chosen(job: Draft, load: Mapping[str, Transfer], save: Mapping[str, Transfer], defaults: tuple[str, str]) -> Files:
    asked = job.scenario.checkpoint
    job.one_of("checkpoint.load", asked.load, ("auto", "none", *load))
    job.one_of("checkpoint.save", asked.save, ("auto", "none", *save))
    loaded, saved = ("none" if given == "none" else job.auto(f"checkpoint.{key}", given, default, ways[default].source)
                     for key, given, default, ways in (("load", asked.load, defaults[0], load),
                                                       ("save", asked.save, defaults[1], save)))
    return Files(load.get(loaded), save.get(saved))
