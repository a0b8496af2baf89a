from __future__ import annotations

import pytest

from hacpo_fast.report.labels import short_labels


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["quickstart-hacpo-20261130-202436", "quickstart-gspo-20261130-203450"], ["hacpo", "gspo"]),
        (["hacpo-20261130-202436"], ["hacpo-20261130-202436"]),
        (["x-20261130-202436", "x-20261130-203450"], ["x-20261130-202436", "x-20261130-203450"]),
        (["20261130-202436", "20261130-203450"], ["20261130-202436", "20261130-203450"]),
        (["mine", "sums-gspo-20261130-202436-2"], ["mine", "sums-gspo-2"]),
        (["hacpo/cpu/run", "gspo/cpu/run"], ["hacpo", "gspo"]),
        (["seed-1", "seed-2"], ["seed-1", "seed-2"]),
        (["a-b", "a-b-c"], ["b", "b-c"]),
        (["a", "a-b"], ["a", "a-b"]),
        (["run0", "run1"], ["run0", "run1"]),
    ],
)
def test_labels_tell_runs_apart_and_no_more(names, labels):
    assert short_labels(names) == labels
