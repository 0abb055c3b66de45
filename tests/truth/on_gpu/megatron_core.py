"""Megatron-Core's GPT on TransformerEngine: one rank with its DDP buffers and its distributed optimizer."""

from __future__ import annotations

from typing import Any

from on_gpu.makers import Keys, Made, batches, one_rank

OPTIONS = ("apply_rope_fusion", "bias_activation_fusion", "cross_entropy_loss_fusion", "gradient_accumulation_fusion",
           "fp8_recipe")
"""Options of a scenario that are fields of Megatron's configuration too."""


def megatron(scenario: dict[str, Any], torch: Any, device: str) -> Made:
    """bf16 weights, fp32 gradients and states, reductions overlapped, as the engine's scenario has by default."""
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    keys = Keys(scenario)
    one_rank(torch, device)
    ps.initialize_model_parallel(create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)
    fields = keys.fields()
    options = {name: value for name in OPTIONS if (value := keys.take(f"framework_options.{name}")) is not None}
    if keys.take("training.precision.compute", "bf16") == "fp8":
        options["fp8"] = "hybrid"
    chunk, optimizer = _trained(_model(fields, scenario["training"]["seq_len"], torch, options))
    assert keys.take("training.optimizer.name") == "adam"
    positions = torch.arange(scenario["training"]["seq_len"], device=device)[None]

    def loss(tokens: Any, labels: Any) -> Any:
        return chunk(tokens, positions.expand_as(tokens), None, labels=labels).float().mean()

    made = Made(loss, batches(keys, torch, device, fields["vocab_size"]), _Steps(chunk, optimizer))
    keys.check_all_taken()
    return made


class _Steps:
    """What Megatron's training loop does around the optimizer's step."""

    def __init__(self, chunk: Any, optimizer: Any) -> None:
        self.chunk, self.optimizer = chunk, optimizer

    def step(self) -> None:
        self.chunk.finish_grad_sync()
        self.optimizer.step()

    def zero_grad(self, *, set_to_none: bool) -> None:
        assert set_to_none
        self.chunk.zero_grad_buffer()
        self.optimizer.zero_grad()


def _model(fields: dict[str, Any], seq: int, torch: Any, options: dict[str, Any]) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=fields["num_hidden_layers"], hidden_size=fields["hidden_size"],
        ffn_hidden_size=fields["intermediate_size"], num_attention_heads=fields["num_attention_heads"],
        num_query_groups=fields["num_key_value_heads"], kv_channels=fields["head_dim"], normalization="RMSNorm",
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0,
        attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        bias_dropout_fusion=True, **options)
    return GPTModel(config, get_gpt_layer_with_transformer_engine_spec(), fields["vocab_size"], seq,
                    position_embedding_type="rope", share_embeddings_and_output_weights=False)


def _trained(model: Any) -> tuple[Any, Any]:
    """(chunk in 16 bits with its gradient buffers, distributed optimizer)."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module

    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True, overlap_param_gather=True,
                                        use_distributed_optimizer=True)
    model.config.finalize_model_grads_func = finalize_model_grads
    chunk = DistributedDataParallel(model.config, ddp, Float16Module(model.config, model.cuda()))
    chunk.train()
    config = OptimizerConfig(optimizer="adam", lr=1e-5, bf16=True, use_distributed_optimizer=True, clip_grad=1.0,
                             overlap_param_gather=True)
    return chunk, get_megatron_optimizer(config, [chunk], use_gloo_process_groups=False)
