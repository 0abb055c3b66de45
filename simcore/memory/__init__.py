"""From a program to memory: the ledger and its peak, what the allocator reserves, what lies outside it, error bands."""
