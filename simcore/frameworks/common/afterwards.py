"""Evaluation, merging of adapters and export under each framework: what its trainer does, and what it refuses.

[Note: the Trainer's evaluation]
transformers 5.23 `trainer.py`, evaluation_loop and prediction_step: model.eval(), torch.no_grad(), by default 8
sequences a rank and pass (`training_args.py`, per_device_eval_batch_size). Without `compute_metrics` only losses are
kept. With it, the logits of a pass are gathered from all ranks (gather_for_metrics: every rank has those of all) and
concatenated to those of earlier passes on the GPU; the last pass's are held by a variable too.
`eval_accumulation_steps` moves them to the host. accelerate 1.15 `accelerator.py` prepare_model casts them to fp32
under mixed precision, but not under DeepSpeed, nor where the model itself is in 16 bits.

[Note: the merge of PEFT]
PEFT 0.21.2 `tuners/lora/layer.py`, Linear.merge: the product B A and that product scaled, in the adapters' type, then
an addition in place. `tuners/lora/bnb.py`, Linear4bit.merge: the base unpacked, both deltas; then base, delta and their
sum, which goes to the host, comes back and is packed again. transformers' save_pretrained writes the merged model, in
files of at most 50 GB (max_shard_size); safetensors 0.8.0 `torch.py`, _flatten_as_ptr, copies all tensors of a file to
the host before it writes the first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.placement.afterwards import Afterwards, Copies, EvaluationLoop, Export, Merge
from simcore.placement.job import Job

__all__ = ["AUTOMODEL_FILES", "AUTOMODEL_LOOP", "HF_FILES", "MEGATRON_LOOP", "OWN_LOOP", "TITAN_LOOP", "TRAINER_LOOP",
           "bridge_afterwards", "kept_logits", "trainer_afterwards"]

TRAINER_LOOP: Final = EvaluationLoop("transformers 5.23 trainer.py evaluation_loop; training_args.py: "
                                     "per_device_eval_batch_size 8", 8)
AUTOMODEL_LOOP: Final = EvaluationLoop("nemo-automodel 0.7.0 recipes/llm/train_ft.py _run_validation_epoch: losses "
                                       "alone; the batch of its own dataloader")
MEGATRON_LOOP: Final = EvaluationLoop("Megatron-Bridge 0.3.1 training/eval.py evaluate: forward_only, the training's "
                                      "micro batch")
TITAN_LOOP: Final = EvaluationLoop("torchtitan 0.2.2 components/validate.py; job_config.py Validation: "
                                   "local_batch_size 8", 8)
OWN_LOOP: Final = EvaluationLoop("assumed: passes like the training's, losses alone")
HF_FILES: Final = "transformers 5.23 modeling_utils.py save_pretrained: safetensors, names and shapes of the Hub"
AUTOMODEL_FILES: Final = ("nemo-automodel 0.7.0 components/checkpoint/_backports/hf_storage.py: safetensors, names and "
                          "shapes of the Hub")
_LARGEST_FILE: Final = 50 * 10**9
_PEFT: Final = "PEFT 0.21.2 tuners/lora/"
_LINEAR: Final = Merge(f"{_PEFT}layer.py Linear.merge", device=(Copies(adapters=2),), file_bytes=_LARGEST_FILE)
_PACKED: Final = Merge(f"{_PEFT}bnb.py Linear4bit.merge", host=(Copies(wide=1),),
                       device=(Copies(adapters=2, compute=1), Copies(adapters=1, compute=1, wide=2, packed=1)),
                       file_bytes=_LARGEST_FILE)
_ON_HOST: Final = Merge(f"{_PEFT}layer.py Linear.merge on a CPU, adapters in fp32 (autocast_adapter_dtype); "
                        "transformers 5.23 from_pretrained, save_pretrained", host=(Copies(fp32=2),),
                        whole_on_host=True)


def kept_logits(job: Job, stored: str) -> str:
    """Returns the dtype of logits that the Trainer keeps, see [Note: the Trainer's evaluation].

    `stored`: the dtype of the model's parameters at rest.
    """
    return job.compute if stored == job.compute else "fp32"


def trainer_afterwards(job: Job, logits: str, *, whole: bool, loop: EvaluationLoop = TRAINER_LOOP,
                       writes: str = HF_FILES) -> Afterwards:
    """Returns what a trainer of Hugging Face models does, or another whose files are those of Hugging Face.

    `logits`: dtype of kept logits, "" if the loop keeps none. `whole`: every rank holds whole parameters, so PEFT can
    merge there. `writes`: upstream source of its files of Hugging Face, "" if it writes others. Raises IllegalLayout or
    NotYet for what is refused.
    """
    asked = job.scenario.checkpoint
    if asked.export != "none" and not writes:
        raise job.not_yet("checkpoint.export", "the conversion of files that a trainer of "
                          f"{job.graph.implementation}'s layers writes (served: Megatron-Bridge's)")
    if asked.export != "none" and asked.save == "sharded" and writes == HF_FILES:
        raise job.not_yet("checkpoint.export", "the conversion of files that torch.distributed.checkpoint writes "
                          "(save: sharded; torch 2.13 distributed/checkpoint/format_utils.py, accelerate "
                          "merge-weights)")
    if asked.export != "none":
        raise job.illegal("checkpoint.export", f"{job.scenario.framework} writes files of Hugging Face already, there "
                          "is nothing to convert (checkpoint.save says how; checkpoint.merge merges adapters)",
                          writes)
    return Afterwards(_evaluation(job, replace(loop, logits=logits)), _merge(job, whole=whole))


def bridge_afterwards(job: Job) -> Afterwards:
    """Returns what Megatron-Bridge 0.3.1 does: its evaluation, and the export to files of Hugging Face.

    The export merges adapters too (`models/conversion/model_bridge.py`, stream_weights_megatron_to_hf). Raises
    IllegalLayout for another merge, for another micro batch of evaluation, and for kept logits or generation.
    """
    asked, training, evaluation = job.scenario.checkpoint, job.scenario.training, job.scenario.evaluation
    if asked.merge != "none":
        raise job.illegal("checkpoint.merge", "Bridge merges adapters while it exports: ask checkpoint.export",
                          "Megatron-Bridge 0.3.1 models/conversion/model_bridge.py merge_adapter_weights=True")
    if evaluation is not None and evaluation.micro_batch_size not in (None, training.micro_batch_size):
        raise job.illegal("evaluation.micro_batch_size", "evaluation runs with the micro batch of the training, "
                          f"{training.micro_batch_size}", MEGATRON_LOOP.source)
    source = "Megatron-Bridge 0.3.1 models/conversion/"
    merged = training.method != "full"
    exports = {"none": None,
               "job": Export(f"{source}param_mapping.py gather_from_tp_ranks, gather_from_ep_ranks; hf_pretrained/"
                             "state.py save_generator, files of the model that it came from, assumed of 5 GB",
                             copies=3 if merged else 2),
               "host": Export(f"{source}auto_bridge.py export_ckpt: one process, gloo; files assumed of 5 GB",
                              whole_on_host=True)}
    return Afterwards(_evaluation(job, MEGATRON_LOOP), export=exports[asked.export])


def _evaluation(job: Job, loop: EvaluationLoop) -> EvaluationLoop | None:
    asked = job.scenario.evaluation
    if asked is None:
        return None
    rule = loop.source
    if asked.keep_logits and not loop.logits:
        raise job.illegal("evaluation.keep_logits", "keep_logits: the evaluation loop keeps losses alone", rule)
    if asked.keep_logits and job.scenario.training.loss in ("cut", "chunked"):
        raise job.not_yet("evaluation.keep_logits", f"logits of a model with loss: {job.scenario.training.loss}, which "
                          "makes none")
    if asked.generate_tokens and not loop.logits:
        raise job.illegal("evaluation.generate_tokens", "generate_tokens: the evaluation loop generates nothing", rule)
    if asked.accumulation_steps is not None and not asked.keep_logits:
        raise job.illegal("evaluation.accumulation_steps", "accumulation_steps: changes nothing without keep_logits, "
                          "losses alone are kept", rule)
    return loop


def _merge(job: Job, *, whole: bool) -> Merge | None:
    asked, training = job.scenario.checkpoint.merge, job.scenario.training
    if asked == "none":
        return None
    if training.method == "full":
        raise job.illegal("checkpoint.merge", "method: full has no adapters to merge", _LINEAR.source)
    if asked == "host":
        return _ON_HOST
    if not whole:
        raise job.illegal("checkpoint.merge", "a rank holds parts of parameters, and a merge adds to whole ones: save "
                          "the adapters, then merge: host", _LINEAR.source)
    if training.method == "qlora" and training.quantization.format == "int8":
        raise job.not_yet("checkpoint.merge", "the merge into a base in int8 (served: nf4, fp4; merge: host)")
    return _PACKED if training.method == "qlora" else _LINEAR
