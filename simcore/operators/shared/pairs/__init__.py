"""Losses of preferences: pairs of sequences in one batch, and a reference model that passes inside the loss.

Input: the head's output, logits or scores of tokens.
Output: a recorded loss. Start: `preference.preference_loss`.

`whole_pairs`: the loss of TRL 0.24.0; `kto`: of sequences that are no pairs; `kept_logits`: GRPO of TRL, which scores a
sequence's last tokens; `log_probs`: log-probabilities of whole logits; `pair_losses`: what these share behind them.
"""
