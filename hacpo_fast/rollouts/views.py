"""A pool of responses in one learner's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.records import Rollout


class View(NamedTuple):
    """What a learner scores for one response, and what it is compared with."""

    token_ids: np.ndarray  # [L] int64 in the learner's tokens; empty: it cannot be scored
    source_mean_logprob: float  # of the same text, under the source's policy at rollout time, on the source's tokens
    source_logprobs: np.ndarray | None  # [L] float32, own responses only: token by token

    @property
    def scorable(self) -> bool:
        return len(self.token_ids) > 0


UNSCORABLE = View(np.zeros(0, dtype=np.int64), 0.0, None)


def own_view(rollout: Rollout, score_eos: bool) -> View:
    """The learner's own response: its token ids byte for byte. `score_eos=False` leaves a final end token out."""
    end = len(rollout.token_ids)
    if rollout.ended and not score_eos and end > 1:
        end -= 1
    logprobs = rollout.logprobs[:end]
    mean = float(logprobs.mean(dtype=np.float64)) if end else 0.0
    return View(rollout.token_ids[:end], mean, logprobs)


def cross_views(rollouts: Sequence[Rollout], codec: Codec) -> list[View]:
    """Other agents' responses, tokenised from their text. An end token is no part of a text, so it is on neither side.

    The empty text has a single action, the learner's own end token. A text that the learner's tokens cannot write is
    not scorable. Each distinct text is tokenised once.
    """
    texts = list(dict.fromkeys(rollout.text for rollout in rollouts))
    tokens = dict(zip(texts, codec.encode_texts(texts), strict=True))
    end = np.array([codec.eos_id], dtype=np.int64)
    views = []
    for rollout in rollouts:
        token_ids = tokens[rollout.text] if rollout.text else end
        if token_ids is None or len(token_ids) == 0:
            views.append(UNSCORABLE)
        else:
            views.append(View(token_ids, rollout.exchanged_mean_logprob, None))
    return views


def views_for(
    learner: int,
    rollouts: Sequence[Rollout],
    codec: Codec,
    score_eos: bool,
    max_tokens: Sequence[int],
    wanted: Sequence[bool],
) -> list[View]:
    """A view of every response. max_tokens: the room that each response's prompt leaves in the learner's context.

    wanted: responses of others where this is False are not tokenised, and not scorable.
    """
    foreign = [keep and r.source != learner for r, keep in zip(rollouts, wanted, strict=True)]
    others = iter(cross_views([r for r, tokenised in zip(rollouts, foreign, strict=True) if tokenised], codec))
    views = [
        own_view(r, score_eos) if r.source == learner else next(others) if tokenised else UNSCORABLE
        for r, tokenised in zip(rollouts, foreign, strict=True)
    ]
    return [view if len(view.token_ids) <= room else UNSCORABLE for view, room in zip(views, max_tokens, strict=True)]
