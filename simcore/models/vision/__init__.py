"""Models that read images: a vision tower and a projector in front of a decoder.

Input: a configuration with a `text_config` and a `vision_config`. Output: an `Architecture` whose parts are, in running
order, the embedding, the tower, the projector and the decoder's layers, as the model's forward calls them.

Start: `gemma3`. The parts of a tower (`models/vision_blocks.py`) are parts around the layers (`LayerKind.block`), so
a model's layers stay those of its decoder: its pipeline stages, its adapters, its number of layers.

A family is a module here and a row in `models/registry.py`. `gemma3`: Gemma 3 with SigLIP.
"""
