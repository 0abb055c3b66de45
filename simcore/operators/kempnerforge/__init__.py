"""KempnerForge's layers, tensor parallelism and experts, operator by operator."""
