"""Model families: each module turns the configuration of one family into layers made of blocks.

Input: `Config` (a `config.json`, read strictly: an unknown or odd field is an error that names it).
Output: `Architecture`: the chain of layer kinds from the embedding to the loss, built of `models/blocks.py`.
Start: `mistral.FAMILY`, a short one; `models/registry.py` maps each `model_type` to its module.

Dense decoders: `llama` (also Granite 3, OLMo 2, SmolLM3), `mistral`, `phi3`, `qwen` (2, 3, and the MoE variants),
`gemma` (2 and 3), `nemotron_nas` (searched layers), `gpt2`, `mpt`, `beside` (GPT-NeoX). Mixtures of experts: `mixtral`,
`gpt_oss`, `deepseek` (V2, V3: latent attention), `glm` (4.5 to 4.7), `bailing` (Ling 2.0, Hunyuan 3), `minimax` (M2).
State-space and hybrid models: `mamba2`, `bamba`, `granitemoehybrid` (Granite 4), `nemotron_h`, `zamba2`. `decoder`:
what decoders with rotary embeddings share. Upstream: transformers 5.23 `models/<family>`.
"""
