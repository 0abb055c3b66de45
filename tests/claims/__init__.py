"""Claims of public sizing documents, each beside what the engine says of it."""
