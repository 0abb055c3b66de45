"""Keys of NeMo RL's recipes that several of their blocks have alike, and those on which nothing depends.

Input: the reader of a recipe, and the draft of its scenario. Output: what the draft says of these keys. Start:
the function of `switches`, and of each other module, that a block's reader calls.

`dropout`: of adapters. `environment`: variables of the workers. `lengths`: the longest sequence of an engine.
`switches`: keys that are told where they are on. `without_effect`: keys on which no answer depends.
"""
