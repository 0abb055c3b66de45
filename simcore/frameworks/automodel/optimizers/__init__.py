"""Optimizers under NeMo Automodel that are not torch's: TransformerEngine's, FlashOptim's, and Muon of `dion`.

Input: a `Draft`, options of the framework. Output: an `Optimizer`, `States`, refusals with upstream's rules.
Start: `choice.optimizer_of`, `choice.kept_states`.

`fused_adam`: [Note: TE's FusedAdam]; `flash_adam`: [Note: FlashOptim's states]; `dion`: [Note: dion under Automodel].
"""
