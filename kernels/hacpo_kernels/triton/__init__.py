"""The backend in Triton. Only these modules import triton.

    linear_logprob.py      its forward and backward: logprob_forward.py, logprob_backward.py, logit_gradients.py
    linear_policy_loss.py  chunks whose exponentials are kept
    policy_loss.py         with its kernels
    launch.py              the inputs of a projection as its kernels take them
    table.py               which route and which tiles
    logsumexp.py, gradient.py, tiles.py, logits.py  kernels: of the fused route, of tiles in memory, what both share

They run on an NVIDIA GPU, and on CPU tensors where TRITON_INTERPRET=1 was set before they were imported.

Numbers that change from batch to batch (tokens, parts) are not specialised for: a kernel that was compiled for one
batch serves the next, and a CUDA graph may be captured with other numbers than its warm-up had.
"""
