"""vLLM: what its engine holds on a rank, and how long it takes. Read from 0.12.0; rules of 0.25.1 are named."""
