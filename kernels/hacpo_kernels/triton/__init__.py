"""Backends in Triton, one kernel family per file. Only these modules import triton.

They run on an NVIDIA GPU, and on CPU tensors where TRITON_INTERPRET=1 was set before they were imported.
"""
