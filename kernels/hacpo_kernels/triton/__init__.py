"""The backend in Triton. Only these modules import triton.

    linear_logprob.py        forward and backward, which logprob_forward.py, logprob_backward.py and logit_gradients.py drive
    linear_policy_loss.py    chunks whose exponentials are kept
    policy_loss.py           with its kernels
    launch.py                inputs as the kernels of a projection take them
    table.py                 which route and which tiles
    logsumexp.py, gradient.py, tiles.py, logits.py    kernels: of the fused route, of either, and what they share

They run on an NVIDIA GPU, and on CPU tensors where TRITON_INTERPRET=1 was set before they were imported.

Numbers that change from batch to batch (tokens, parts) are not specialised for: a kernel that was compiled for one
batch serves the next, and a CUDA graph may be captured with other numbers than its warm-up had.
"""
