"""From a program to memory: the peak and its owners, and everything between allocated and device memory.

Input: a `Program` (for the peak), a `Plan` and `CommSetup` (for the rest). Output: `MemoryPeak` (highest moment, its
owners, the peak of each phase), `Reserved`, `OutsideMemory`, `Band`.
Start: `ledger.balance`: the peak is the maximum of a running sum over the program's allocations and frees.

`reserved`: what torch's caching allocator reserves beyond what is allocated. `own_pool`: the same of memory pools that
a framework keeps beside it. `workspace`: workspaces of cuBLAS and
other libraries (`Workspace`). `outside_allocator`: CUDA context, NCCL and DeepEP buffers. `band`: how far measured
runs of the same class of layout were off. For pictures: `series` (memory over the step), `lifetimes` (each
allocation), `inventory` (tensors of a rank, holders of the peak).
"""
