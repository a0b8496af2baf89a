"""What the operators share in how they plug into autograd."""

from __future__ import annotations

from torch.library import CustomOpDef


def refuse_double_backward(backward_op: CustomOpDef, operator: str) -> None:
    """Make differentiating `backward_op`, the backward pass of `operator`, a RuntimeError.

    The closed-form gradients treat what the forward pass saved as constants, so a second derivative taken through them
    would be wrong without a sign of it.
    """

    def refuse(ctx: object, *grads: object) -> None:
        raise RuntimeError(
            f"{operator} has no double backward: its gradient cannot be differentiated again. "
            'Use backend="reference" for second derivatives.'
        )

    backward_op.register_autograd(refuse)
