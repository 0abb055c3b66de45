"""One file per model family: a Hugging Face configuration in, layers of blocks out."""
