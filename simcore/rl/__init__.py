"""DPO and GRPO: forward passes, phases of a step, weights on their way to the engine, and the report of all this."""
