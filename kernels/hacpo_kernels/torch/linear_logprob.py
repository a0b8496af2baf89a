"""linear_logprob in plain torch: tile by tile over tokens and vocabulary, so that no [tokens, vocab] tensor exists.

One tile is the logits of a block of tokens against a slice of the vocabulary. Forward keeps each tile's logsumexp and
combines them at the end; backward recomputes the tile, turns it in place into the gradient of its logits, and feeds two
matrix products. The vocabulary is the outer loop: a slice of the weight is converted once, and its gradient is complete
before the next slice begins, in float32 even when the weight is half precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import Head, Needs, RowGradients
from ..blocks import even_split, slices, tile_view
from ..rows import live_rows
from .tiles import logits_into, target_columns, token_temperature, vocab_slice


class TileLimit(NamedTuple):
    rows: int
    bytes: int


# On CPU a tile has to stay in the last-level cache between the matrix product and the elementwise passes, while the
# products want many rows AND many columns. One EPYC core with 32 MiB of L3, float32, T = 2048, H = 576, V = 49152,
# forward + backward: tiles of 2048 x 1024 to 2048 x 4096 9.2 to 9.7 s; of 340 x 49152 (token blocks against the whole
# vocabulary) 13.1 s, because each block reads and writes the whole weight gradient.
CPU_TILE = TileLimit(rows=2048, bytes=16 << 20)
# Accelerators need far larger products to fill them; these figures have not been measured.
ACCELERATOR_TILE = TileLimit(rows=8192, bytes=256 << 20)

# Stands in for a logit of -inf (a vocabulary entry masked by its bias) where 0 * -inf would be NaN. exp(_MASKED) is 0,
# and products with it do not overflow.
_MASKED = -1e30


def forward(head: Head, return_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(logprob [T], logsumexp [T], entropy [T] or None), float32 or float64."""
    tokens, vocab, dtype = head.hidden.shape[0], head.weight.shape[0], head.dtype
    hidden, targets = head.hidden.to(dtype), head.targets.long()
    rows, columns = _tile_shape(tokens, vocab, hidden)
    tile_buffer = hidden.new_empty(rows * columns)
    spare_buffer = hidden.new_empty(rows * columns if return_entropy else 0)

    vocab_slices = list(slices(vocab, columns))
    # NaN until the slice that holds the target has passed: where values cannot be checked, an out-of-range target
    # must not turn into a plausible number.
    target_logit = hidden.new_full((tokens,), float("nan"))
    # A running logsumexp would round once per slice; partial results that are combined once do not.
    partial_logsumexp = hidden.new_empty(len(vocab_slices), tokens)
    partial_mean = hidden.new_empty(len(vocab_slices), tokens) if return_entropy else None

    for part, columns_of in enumerate(vocab_slices):
        weight_slice, bias_slice = vocab_slice(head, columns_of)
        for rows_of in slices(tokens, rows):
            logits = tile_view(tile_buffer, rows_of, columns_of)
            temperature = token_temperature(head, rows_of)
            logits_into(logits, hidden[rows_of], weight_slice, bias_slice, temperature, head.softcap)
            local, inside = target_columns(targets[rows_of], columns_of)
            found = logits.gather(1, local).squeeze(1)
            target_logit[rows_of] = torch.where(inside, found, target_logit[rows_of])
            if return_entropy:
                logits.clamp_(min=_MASKED)
            # The largest logit of a slice that is masked throughout is -inf, and -inf - -inf would be NaN.
            largest = logits.amax(1).clamp_(min=torch.finfo(dtype).min)
            logits.sub_(largest[:, None])
            if return_entropy:
                exps = torch.exp(logits, out=tile_view(spare_buffer, rows_of, columns_of))
                total = exps.sum(1)
                partial_mean[part, rows_of] = logits.mul_(exps).sum(1).div_(total).add_(largest)
            else:
                total = logits.exp_().sum(1)
            partial_logsumexp[part, rows_of] = total.log_().add_(largest)

    logsumexp = torch.logsumexp(partial_logsumexp, 0)
    entropy = None
    if return_entropy:  # H = logsumexp - E_p[logit]
        entropy = logsumexp - partial_logsumexp.sub_(logsumexp).exp_().mul_(partial_mean).sum(0)
    return target_logit - logsumexp, logsumexp, entropy


def backward(
    head: Head, rows: RowGradients, needs: Needs, grad_dtype: torch.dtype | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of hidden [T, H], weight [V, H] and bias [V] in their dtypes or grad_dtype, None for those not needed.

    With p the softmax, g and h the upstream gradients of logprob and entropy:
    d logits = (g * (onehot(target) - p) - h * p * (log p + entropy)) / temperature. Rows with g = h = 0 cost nothing.
    """
    dtype, shape = head.dtype, head.hidden.shape
    hidden_dtype, weight_dtype = grad_dtype or head.hidden.dtype, grad_dtype or head.weight.dtype
    bias_dtype = grad_dtype or (head.bias.dtype if needs.bias else dtype)
    live = live_rows(rows.grad_logprob, rows.grad_entropy)
    if live is not None:
        head, rows = head.take(live), rows.take(live)
    tokens, vocab = head.hidden.shape[0], head.weight.shape[0]
    if tokens == 0:
        return (
            head.hidden.new_zeros(shape, dtype=hidden_dtype) if needs.hidden else None,
            head.weight.new_zeros(head.weight.shape, dtype=weight_dtype) if needs.weight else None,
            head.bias.new_zeros(vocab, dtype=bias_dtype) if needs.bias else None,
        )

    hidden, targets, logsumexp = head.hidden.to(dtype), head.targets.long(), rows.logsumexp
    grad_logprob, grad_entropy = rows.grad_logprob / head.temperature, rows.grad_entropy
    if grad_entropy is not None:
        grad_entropy = grad_entropy / head.temperature
        offset = rows.entropy - logsumexp  # log p + entropy = logit + offset
    rows_at_once, columns = _tile_shape(tokens, vocab, hidden)
    tile_buffer, spare_buffer, slope_buffer = (
        hidden.new_empty(rows_at_once * columns if wanted else 0)
        for wanted in (True, grad_entropy is not None, head.softcap is not None)
    )
    # The first addition into an accumulator has beta = 0 and overwrites it, so none needs to be zeroed.
    grad_hidden = hidden.new_empty(hidden.shape) if needs.hidden else None
    grad_weight = head.weight.new_empty(head.weight.shape, dtype=weight_dtype) if needs.weight else None
    grad_bias = hidden.new_zeros(vocab) if needs.bias else None

    for part, columns_of in enumerate(slices(vocab, columns)):
        weight_slice, bias_slice = vocab_slice(head, columns_of)
        if needs.weight:
            grad_slice = grad_weight[columns_of] if weight_dtype == dtype else torch.empty_like(weight_slice)
        for block, rows_of in enumerate(slices(tokens, rows_at_once)):
            tile = tile_view(tile_buffer, rows_of, columns_of)
            temperature = token_temperature(head, rows_of)
            logits_into(tile, hidden[rows_of], weight_slice, bias_slice, temperature, head.softcap)
            if head.softcap is not None:  # d capped / d raw = 1 - tanh^2, read off the capped logits
                slope = tile_view(slope_buffer, rows_of, columns_of)
                torch.mul(tile, temperature / head.softcap, out=slope).square_().neg_().add_(1)
            grad = grad_logprob[rows_of, None]
            if grad_entropy is None:
                tile.sub_(logsumexp[rows_of, None]).exp_().mul_(-grad)
            else:
                tile.clamp_(min=_MASKED)
                probs = tile_view(spare_buffer, rows_of, columns_of)
                torch.sub(tile, logsumexp[rows_of, None], out=probs).exp_()
                tile.add_(offset[rows_of, None]).mul_(-grad_entropy[rows_of, None]).sub_(grad).mul_(probs)
            local, inside = target_columns(targets[rows_of], columns_of)
            tile.scatter_add_(1, local, torch.where(inside[:, None], grad, 0))
            if head.softcap is not None:
                tile.mul_(slope)
            if needs.hidden:
                grad_hidden[rows_of].addmm_(tile, weight_slice, beta=0 if part == 0 else 1)
            if needs.weight:
                grad_slice.addmm_(tile.T, hidden[rows_of], beta=0 if block == 0 else 1)
            if needs.bias:
                grad_bias[columns_of] += tile.sum(0)
        if needs.weight and weight_dtype != dtype:
            grad_weight[columns_of] = grad_slice

    if needs.hidden:
        grad_hidden = grad_hidden.to(hidden_dtype)
        if live is not None:
            grad_hidden = grad_hidden.new_zeros(shape).index_copy_(0, live, grad_hidden)
    return grad_hidden, grad_weight, grad_bias.to(bias_dtype) if needs.bias else None


def _tile_shape(tokens: int, vocab: int, like: Tensor) -> tuple[int, int]:
    """(rows, columns) of a tile within the limit, split evenly so that no sliver remains at the end.

    A vocabulary too small to fill the tile with `limit.rows` rows gets more of them.
    """
    limit = CPU_TILE if like.device.type == "cpu" else ACCELERATOR_TILE
    elements = limit.bytes // like.element_size()
    rows = even_split(max(tokens, 1), max(limit.rows, elements // vocab))
    return rows, even_split(vocab, max(elements // rows, 1))
