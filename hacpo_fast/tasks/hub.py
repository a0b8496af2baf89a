"""Rows of data sets of the Hugging Face hub (or of a folder that holds one)."""

from collections.abc import Iterator
from typing import Any

import datasets

from hacpo_fast.errors import UserError


def rows(name: str, subset: str | None, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, row) of every row of the `split` of data set `name` in its configuration `subset`.

    Raises UserError where the data set, its configuration or its split cannot be had.
    """
    try:
        data = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # the library raises a dozen unrelated types, from missing splits to refused connections
        asked = f"'{name}', subset {subset or 'default'}, split {split}"
        raise UserError(
            f"the data set {asked} could not be loaded: {type(error).__name__}: {error}\n"
            "Check the three names on the hub and, where the connection is the trouble, that the machine is online "
            f"(HF_HUB_OFFLINE unset) or has the data set in its cache (hf download {name} --repo-type dataset); "
            "files are read with task.kind=file, those of a benchmark with task.source=FILE"
        ) from error
    return ((f"{name} [{split}], row {number}", row) for number, row in enumerate(data, 1))
