"""Whatever stands in a YAML file, it gives plain values or one message."""

import pytest

from hacpo_fast import config_file, yaml_text
from hacpo_fast.errors import UserError

MANY = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: {steps: " + "9" * 5000 + "}", "no number that can be read (5000 digits)"),
        ("run: &a {steps: *a}", "an alias that contains itself"),
        ("run: &a [1, [*a]]", "an alias that contains itself"),
        ("run: *nothing", "undefined alias 'nothing'"),
        (MANY, "stands for more than 100000 values"),
        ("run: " + "[" * 5000, "too deep to read"),
        ("run: " + "[" * 60 + "]" * 60, "more than 50 levels of brackets"),
        ("run: {steps: 1}\nrun: {steps: 2}", "'run' stands twice\n  in \"<unicode string>\", line 2"),
        ("? {a: 1}\n: 2", "unhashable key"),
        ("run: !!python/object:os.system {}", "could not determine a constructor"),
        ("run: !!timestamp 2026-13-45", "month must be in 1..12"),
        ("run: !!timestamp today", "not of the type that its !!tag says"),
        ("run: !!bool perhaps", "not of the type that its !!tag says"),
        ("run: !!int ''", "not of the type that its !!tag says"),
        ("run: !!map {<<: [1]}", "<< needs a mapping, or several"),
        ("run: \x1b[2J", "special characters are not allowed"),
    ],
)
def test_what_cannot_be_read_is_one_message(tmp_path, text, said):
    with pytest.raises(UserError) as caught:
        yaml_text.parse(text)
    assert said in str(caught.value) and len(str(caught.value)) < 500
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"mine\.yaml: not readable as YAML"):
        config_file.load(path)
    with pytest.raises(UserError, match="cannot be read: "):
        config_file.load(None, [f"task.params={text.removeprefix('run: ')}"])


def test_what_people_write():
    text = "base: &b {lr: 1e-6, day: 2026-01-31}\nx: {<<: *b, lr: 2}\ny: {<<: *b}\nz: [*b, 0x10, on, ~, '3']\n"
    base = {"lr": 1e-6, "day": "2026-01-31"}
    assert yaml_text.parse(text) == {"base": base, "x": {**base, "lr": 2}, "y": base, "z": [base, 16, True, None, "3"]}
    assert yaml_text.parse("") is None


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("a: &a {k: 1, lr: 1}\nz: {<<: *a, lr: 2}", {"k": 1, "lr": 2}),
        ("a: &a {k: 1, lr: 1}\nz: {lr: 2, <<: *a}", {"k": 1, "lr": 2}),
        ("a: &a {lr: 1}\nb: &b {lr: 2, k: 2}\nz: {<<: [*a, *b]}", {"k": 2, "lr": 1}),  # the first has precedence
        ("a: &a {k: 1}\nb: &b {<<: *a, k: 2}\nz: {<<: *b}", {"k": 2}),
        ("a: &a {k: 1}\nb: {c: {d: &d {<<: *a, k: 2}}}\nz: {<<: *d}", {"k": 2}),  # taken over before it is built
    ],
)
def test_mappings_that_take_over_others(text, last):
    assert yaml_text.parse(text)["z"] == last


def test_an_equals_sign_alone_is_text():
    assert yaml_text.parse("answer: =") == {"answer": "="}


@pytest.mark.parametrize("include", ['"\\0"', "x" * 300 + ".yaml"])
def test_what_cannot_be_a_path(tmp_path, include):
    (tmp_path / "mine.yaml").write_text(f"include: {include}")
    with pytest.raises(UserError, match=r"include: .* path"):
        config_file.load(tmp_path / "mine.yaml")
