"""Models that read images in Megatron-Bridge's recipes: their images, and which parts of them are frozen.

Input: the recipe's keys and the model that is written already. Output: `training.images`, the sides of an image, and
`training.frozen`, or a question where the data set does not say them.

Start: `images.read_images`, called when the length of sequences is known. `frozen`: the switches `freeze_*` of the
provider, as names of modules. Recipes over texts are left as they are.
"""
