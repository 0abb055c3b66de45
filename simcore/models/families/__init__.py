"""One file a model family: a Hugging Face configuration in, layers made of blocks out."""
