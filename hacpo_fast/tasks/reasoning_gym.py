"""Generated problems of reasoning-gym, and its own checks of their answers."""

import dataclasses
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.names import instead_of


def rows(generator: str, params: dict[str, Any], size: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, row) of `size` problems of `generator`; a row has question, answer and metadata.

    Raises UserError where there is no such generator, or where it cannot work with its parameters.
    """
    for name in ("size", "seed"):
        if name in params:
            raise UserError(f"task.params: set task.{name} instead of the parameter '{name}'")
    data = _create(generator, **params, size=size, seed=seed)
    for index in range(size):
        try:
            row = dict(data[index])
        except Exception as error:  # some parameters pass the generator's own checks and fail only here
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"the generator {generator} failed with the parameters {params}: {said}") from error
        yield f"{generator}, problem {index}", row


def reward(
    response: str,
    answer: str | None,
    row: dict[str, Any],
    *,
    generator: str,
    params: dict[str, Any] | None = None,
    pattern: str | None = None,
) -> float:
    """What `generator` itself gives the response, 0 to 1; `row` is the problem as it made it.

    pattern: regular expression with one group; its last match is checked, and a response without any gets 0. Without a
    pattern the whole response is checked, stripped of white space around it.
    """
    if pattern is None:
        found = response.strip()
    else:
        matches = re.findall(pattern, response)
        if not matches:
            return 0.0
        found = matches[-1]
    return _scorer(generator, json.dumps(params or {}))(found, row)


@cache
def _scorer(generator: str, params: str) -> Any:
    # Made once per process, since some generators read word lists here, and seeded, so that no check depends on chance.
    return _create(generator, **json.loads(params), size=1, seed=0).score_answer


def _create(generator: str, **params: Any) -> Any:
    if generator not in DATASETS:
        raise UserError(f"reasoning-gym has no generator '{generator}'; {instead_of(generator, sorted(DATASETS), 200)}")
    known = [field.name for field in dataclasses.fields(DATASETS[generator][1])]
    for name in params:
        if name not in known:
            raise UserError(f"the generator {generator} has no parameter '{name}'; {instead_of(name, known)}")
    try:
        return create_dataset(generator, **params)
    except Exception as error:  # generators check their parameters with assertions, ValueError and TypeError alike
        raise UserError(f"the generator {generator} refuses its parameters: {type(error).__name__}: {error}") from error
