"""Files that say a part of a training by themselves: GPUs (accelerate, DeepSpeed), or the model (`config.json`).

Input: the file. Output: `Imported`, in which the rest (model, lengths, batch, framework) is asked. Start: the `FORMAT`
of `accelerate`, `deepspeed` and `model`.

`accelerate`: the launcher's YAML. `deepspeed`: DeepSpeed's JSON. `model`: Hugging Face's `config.json`. `open_keys`:
what is asked. `written`: the first two, written with the trainer's recipe beside them.
"""
