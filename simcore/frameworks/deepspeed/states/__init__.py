"""States of optimizers whose kernels are not torch's under ZeRO: bitsandbytes' and torchao's, in 8 bits or paged.

Input: a `Job`, later a `Plan`. Output: refusals with upstream's rules, formats of states, bytes of flat parts.
Start: `low_bit.check_states`, `low_bit.flat_layout`.

`low_bit`: [Note: states of flat parts].
"""
