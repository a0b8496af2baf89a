"""Rows of data sets of the Hugging Face hub (or of a folder that holds one)."""

from collections.abc import Iterator
from typing import Any

import datasets

from hacpo_fast.errors import UserError


def rows(name: str, subset: str | None, split: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, row) of every row of the `split` of data set `name` in its configuration `subset`.

    split: None: test, or the data set's only one. Raises UserError where the data set, its configuration or its split
    cannot be had.
    """
    try:
        split, data = _load(name, subset, split)
    except Exception as error:  # the library raises a dozen unrelated types, from missing splits to refused connections
        asked = f"'{name}', subset {subset or 'default'}, split {split or 'test'}"
        raise UserError(
            f"the data set {asked} could not be loaded: {type(error).__name__}: {error}\n"
            "Check the three names on the hub and, where the connection is the trouble, that the machine is online "
            f"(HF_HUB_OFFLINE unset) or has the data set in its cache (hf download {name} --repo-type dataset); "
            "files are read with task.kind=file, those of a benchmark with task.source=FILE or --benchmark NAME=FILE"
        ) from error
    return ((f"{name} [{split}], row {number}", row) for number, row in enumerate(data, 1))


def _load(name: str, subset: str | None, split: str | None) -> tuple[str, Any]:
    try:
        return split or "test", datasets.load_dataset(name, subset, split=split or "test")
    except ValueError:  # no such split, among other mistakes, which a second try will show again
        if split is not None:
            raise
        splits = datasets.load_dataset(name, subset, split=None)
        if len(splits) != 1:
            raise
        ((only, data),) = splits.items()
        return only, data
