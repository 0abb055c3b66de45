"""Files about GPUs alone: what `accelerate launch` and DeepSpeed read, without the training script beside them.

Input: the file. Output: `Imported`, in which the script's part (model, lengths, batch) is asked. Start: the `FORMAT` of
`accelerate` and of `deepspeed`.

`accelerate`: the launcher's YAML. `deepspeed`: DeepSpeed's JSON. `open_keys`: what is asked. `written`: both,
written with the trainer's recipe beside them.
"""
