"""What several frameworks share: kernels of torch, trainers of transformers, adapters, files, optimizer steps."""
