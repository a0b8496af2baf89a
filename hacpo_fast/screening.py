"""Whether other agents' responses are scored before they are trained on.

The clip discards a response whose ratio is out of range (Eq. 13): its gradient is exactly zero, and the training pass
that finds it so was for nothing. Scoring alone costs a third of that pass, so it pays to score first where the clip
discards much. What it discarded in the last steps says how much that will be.
"""

from __future__ import annotations

from collections import deque

from torch import nn

WINDOW = 5  # steps that are remembered


class ClipHistory:
    """What the clip discarded of other agents' responses in an agent's last steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=WINDOW)

    def add(self, discarded: int, responses: int) -> None:
        """Remember a step that saw `responses` of others; one that saw none says nothing."""
        if responses:
            self._steps.append((discarded, responses))

    @property
    def share(self) -> float:
        """Share of the responses that the clip discarded; 0 where nothing is known yet."""
        return sum(discarded for discarded, _ in self._steps) / max(sum(seen for _, seen in self._steps), 1)

    def state_dict(self) -> list[tuple[int, int]]:
        return list(self._steps)

    def load_state_dict(self, state: list[tuple[int, int]]) -> None:
        self._steps = deque(((discarded, seen) for discarded, seen in state), maxlen=WINDOW)


def break_even(model: nn.Module, head: nn.Parameter, checkpointed: bool) -> float:
    """Share of discarded responses from which on scoring first is cheaper.

    Per token, with t products in the trunk and v in the head: scoring takes t + v, and a training pass over a response
    that turns out to be discarded takes 3t + v (4t + v where activations are computed again), for the fused head skips
    the gradient of such rows. So scoring everything pays when (t + v) < share * (3t + v). Attention, which has no
    weights, is left out of the count.
    """
    head_products = head.numel()
    embeddings = {id(head)} | {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trunk_products = sum(p.numel() for p in model.parameters() if p.ndim > 1 and id(p) not in embeddings)
    passes = 4 if checkpointed else 3
    return (trunk_products + head_products) / (passes * trunk_products + head_products)
