"""linear_logprob on a GPU.

Forward keeps one float per token (and one with the entropy); backward makes the logits again.
"""

from .logprob_backward import backward
from .logprob_forward import forward

__all__ = ["backward", "forward"]
