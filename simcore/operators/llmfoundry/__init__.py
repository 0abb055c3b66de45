"""llm-foundry 0.3.0: MPT's layers, attention and fp8 linears, operator by operator."""
