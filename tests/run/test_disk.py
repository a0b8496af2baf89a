import errno
import os
import resource
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from hacpo_fast.errors import UserError
from hacpo_fast.run.disk import disk_errors
from hacpo_fast.run.jsonl import JsonlWriter, cut_back, read_jsonl
from hacpo_fast.run.whole import write_folder


@contextmanager
def largest_file(size):
    """Limits how large files may become: on any disk the same as on one that has that little room.

    Only for a moment: what pytest itself writes is limited too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.jsonl"
    writer = JsonlWriter(path)
    writer.write({"step": 1})
    whole = path.read_bytes()
    with pytest.raises(OSError, match="too large"), largest_file(len(whole) + 5):
        writer.write({"step": 2})
    assert path.read_bytes() == whole
    writer.write({"step": 3})
    writer.close()
    assert read_jsonl(path) == [{"step": 1}, {"step": 3}]


def test_weights_that_do_not_fit_are_a_message(tmp_path):
    with pytest.raises(UserError, match=r"a file became larger than the system allows .* run.resume=auto"):
        with largest_file(1000), disk_errors(tmp_path):
            write_folder(tmp_path / "step-1", lambda f: save_file({"x": torch.zeros(1000)}, f / "x.safetensors"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.ENOENT, "been removed")]
)
def test_errors_of_the_disk_are_messages(tmp_path, number, said):
    for name in (None, str(tmp_path / "run" / "metrics.jsonl")):
        with pytest.raises(UserError, match=said), disk_errors(tmp_path / "run"):
            raise OSError(number, os.strerror(number), name)


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (OSError(errno.ENOENT, "", "/elsewhere"), OSError(errno.EPIPE, ""), OSError("no such model")):
        with pytest.raises(OSError) as raised, disk_errors(tmp_path / "run"):
            raise error
        assert raised.value is error


def test_cutting_back_keeps_what_it_cuts_and_tells_of_what_is_gone(tmp_path):
    path = tmp_path / "x.jsonl"
    assert cut_back(path, 0) and not cut_back(path, 3) and not path.exists()
    path.write_text("one\ntwo\n")
    assert cut_back(path, 8) and not cut_back(path, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    assert cut_back(path, 4)
    path.write_text("one\nthree\n")
    assert cut_back(path, 4)
    assert path.read_text() == "one\n" and (tmp_path / "abandoned-x.jsonl").read_text() == "two\nthree\n"
    path.write_text("two\nthree\nfour\n")
    assert not cut_back(path, 8) and path.read_text() == "two\nthre"
