"""Backends in Triton, one kernel family per file. Only these modules import triton.

They run on an NVIDIA GPU, and on CPU tensors where TRITON_INTERPRET=1 was set before they were imported.

Numbers that change from batch to batch (tokens, parts) are not specialised for: a kernel that was compiled for one
batch serves the next, and a CUDA graph may be captured with other numbers than its warm-up had.
"""
