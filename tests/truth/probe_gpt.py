"""Asks megatron-core for the parameters of `GPTModel` with the Transformer Engine layer spec, one small model a family,
and of a `MambaModel` whose experts work in a latent width.

    python tests/truth/probe_gpt.py > tests/truth/models/megatron-core-0.16.1.json

Models are built on the meta device over a fake process group; Transformer Engine is replaced by
`simcore/verify/real/te_stub.py`, which has its constructors alone. `whole`: names and shapes on one rank. `parallel`:
elements of one rank of 8 with tp 2, sequence parallelism, ep 2 and etp 1 (dense models: tp 2 alone; OLMoE, whose norms
take all heads together: ep 2 alone).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from oracle import te_stub

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (  # noqa: E402
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec,
    get_gpt_layer_with_transformer_engine_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.mamba import MambaModel  # noqa: E402
from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig  # noqa: E402
from torch.nn.functional import gelu, silu  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

LLAMA: dict[str, Any] = dict(normalization="RMSNorm", gated_linear_unit=True, activation_func=silu,
                             add_bias_linear=False, hidden_size=256, ffn_hidden_size=128, num_attention_heads=8,
                             num_query_groups=4)
MOE: dict[str, Any] = dict(num_moe_experts=8, moe_router_topk=2, moe_grouped_gemm=True, moe_ffn_hidden_size=64,
                           moe_token_dispatcher_type="alltoall")  # noqa: S106
MLA: dict[str, Any] = dict(kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32, qk_layernorm=True,
                           multi_latent_attention=True, moe_shared_expert_intermediate_size=128, moe_layer_freq=[0, 1],
                           num_query_groups=8)
DELTA: dict[str, Any] = dict(qk_layernorm=True, kv_channels=32, attention_output_gate=True, linear_attention_freq=2,
                             layernorm_zero_centered_gamma=True, experimental_attention_variant="gated_delta_net",
                             linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=24,
                             linear_num_key_heads=4, linear_num_value_heads=8)
CASES: dict[str, dict[str, Any]] = {
    "qwen2": {**LLAMA, "add_qkv_bias": True},
    "qwen3": {**LLAMA, "qk_layernorm": True, "kv_channels": 32},
    "qwen3_moe": {**LLAMA, **MOE, "qk_layernorm": True, "kv_channels": 32},
    "qwen2_moe": {**LLAMA, **MOE, "add_qkv_bias": True, "moe_shared_expert_intermediate_size": 128,
                  "moe_shared_expert_gate": True},
    "mixtral": {**LLAMA, **MOE, "moe_ffn_hidden_size": 128},
    "deepseek_v2": {**LLAMA, **MOE, **MLA, "q_lora_rank": None},
    "deepseek_v3": {**LLAMA, **MOE, **MLA, "q_lora_rank": 96, "moe_router_score_function": "sigmoid",
                    "moe_router_enable_expert_bias": True, "moe_router_dtype": "fp32"},
    "gpt2": {"normalization": "LayerNorm", "activation_func": gelu, "hidden_size": 256, "ffn_hidden_size": 1024,
             "num_attention_heads": 8},
    "gpt2_qk_norm": {"normalization": "LayerNorm", "activation_func": gelu, "hidden_size": 256, "ffn_hidden_size": 1024,
                     "num_attention_heads": 8, "qk_layernorm": True},
    "gpt2_glu": {"normalization": "LayerNorm", "activation_func": silu, "gated_linear_unit": True, "hidden_size": 256,
                 "ffn_hidden_size": 512, "num_attention_heads": 8},
    "gpt2_moe": {"normalization": "LayerNorm", "activation_func": gelu, "hidden_size": 256, "ffn_hidden_size": 1024,
                 "num_attention_heads": 8, "add_bias_linear": False, **MOE, "moe_layer_freq": [0, 1],
                 "moe_shared_expert_intermediate_size": 128, "mtp_num_layers": 1},
    "qwen3_next": {**LLAMA, **MOE, **DELTA, "moe_shared_expert_intermediate_size": 128, "moe_shared_expert_gate": True,
                   "mtp_num_layers": 1},
    "qwen3_5_text": {**LLAMA, **DELTA},
    "olmoe": {**LLAMA, **MOE, "qk_layernorm": True, "num_query_groups": 8},
    "gemma3_text": {**LLAMA, "qk_layernorm": True, "kv_channels": 32},
    "nemotron_h": {"normalization": "RMSNorm", "add_bias_linear": False, "hidden_size": 256, "num_attention_heads": 8,
                   "num_query_groups": 4, "ffn_hidden_size": 128, "is_hybrid_model": True, "mamba_num_heads": 8,
                   "mamba_head_dim": 32, "mamba_state_dim": 32, "mamba_num_groups": 2, **MOE, "moe_latent_size": 96,
                   "moe_shared_expert_intermediate_size": 128, "moe_router_score_function": "sigmoid",
                   "moe_router_enable_expert_bias": True, "moe_router_dtype": "fp32"},
}  # fmt: skip
OF_BRIDGE = ("gemma3_text", "olmoe")
"""Families with a layer spec of Megatron-Bridge's own (0.3.1 `models/gemma`, `models/olmoe`)."""
LEARNED = ("gpt2", "gpt2_qk_norm", "gpt2_glu")
HYBRID_PATTERN = "M*E-"


def built(family: str, tp: int, ep: int) -> Any:
    """The model of one rank."""
    fields = CASES[family]
    make = MLATransformerConfig if fields.get("multi_latent_attention") else TransformerConfig
    config = make(
        num_layers=len(HYBRID_PATTERN) if "is_hybrid_model" in fields else 2,
        bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        perform_initialization=False, hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
        tensor_model_parallel_size=tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1,
        sequence_parallel=tp > 1, **fields)
    if config.is_hybrid_model:
        with torch.device("meta"):
            return MambaModel(config, mamba_stack_spec, vocab_size=1024, max_sequence_length=512,
                              hybrid_override_pattern=HYBRID_PATTERN, share_embeddings_and_output_weights=False,
                              pg_collection=ProcessGroupCollection.use_mpu_process_groups())
    if config.experimental_attention_variant:
        spec = get_transformer_block_with_experimental_attention_variant_spec(config)
    elif family in OF_BRIDGE:
        spec = of_bridge(family, config)
    else:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True)
    further = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True) if config.mtp_num_layers else None
    with torch.device("meta"):
        return GPTModel(
            config, spec, vocab_size=1024, mtp_block_spec=further,
            max_sequence_length=512, share_embeddings_and_output_weights=family in (*LEARNED, "gemma3_text"),
            position_embedding_type="learned_absolute" if family in LEARNED else "rope",
            pg_collection=ProcessGroupCollection.use_mpu_process_groups())


def of_bridge(family: str, config: Any) -> Any:
    """Layers of OLMoE or Gemma 3; the windows that the latter's attention asks for change no weight."""
    from megatron.bridge.models.gemma import gemma3_provider
    from megatron.bridge.models.olmoe import olmoe_provider

    if family == "olmoe":
        made = get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.num_moe_experts, moe_grouped_gemm=True, qk_layernorm=True)
        made.submodules.self_attention.module = olmoe_provider.OLMoESelfAttention
        config.test_mode = False
        return made
    config.is_vision_language, config.window_size, config.interleaved_attn_pattern = False, 512, (5, 1)
    return gemma3_provider.gemma3_layer_spec(config)


def measured(family: str, tp: int, ep: int) -> list[str]:
    """Names and shapes of the parameters of rank 0 of 8."""
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(tensor_model_parallel_size=tp, expert_model_parallel_size=ep,
                                 expert_tensor_parallel_size=1, create_gloo_process_groups=False)
    return [f"{name} {'x'.join(map(str, p.shape))}" for name, p in built(family, tp, ep).named_parameters()]


def elements(tensors: list[str]) -> int:
    """Their number, of all tensors together."""
    return sum(torch.Size(map(int, text.split()[1].split("x"))).numel() for text in tensors)


def asked(family: str, tp: int, ep: int) -> list[str]:
    """In a process of its own."""
    made = subprocess.run([sys.executable, __file__, family, str(tp), str(ep)], capture_output=True, text=True,
                          check=False)
    if made.returncode:
        sys.exit(made.stderr)
    found: list[str] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """One object, a key a family."""
    if len(sys.argv) == 4:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
        return
    rows = {family: {"whole": asked(family, 1, 1),
                     "parallel": elements(asked(family, 1 if family == "olmoe" else 2,
                                                2 if "num_moe_experts" in fields else 1))}
            for family, fields in CASES.items()}
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
