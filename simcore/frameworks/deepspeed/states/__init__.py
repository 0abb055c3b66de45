"""States of optimizers that are not torch's under ZeRO: those of 8 bits or paged, and of DeepSpeed's own Muon.

Input: a `Job`, later a `Plan`. Output: refusals with upstream's rules, formats of states, bytes of flat parts.
Start: `low_bit.check_states`, `low_bit.flat_layout`, `muon.muon_optimizer`.

`low_bit`: [Note: states of flat parts]; `muon`: [Note: Muon under ZeRO].
"""
