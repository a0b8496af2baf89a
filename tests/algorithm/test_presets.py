"""A preset changes what it says and nothing else, and has its place between file and command line."""

import pytest

from hacpo_fast import config_file
from hacpo_fast.algorithm.presets import PRESETS, help_text
from hacpo_fast.errors import UserError

TASK = ["task.kind=file", "task.name=p.jsonl", "agents.ada.model=m", "agents.bea.model=n"]


def flat(section, prefix=""):
    return {
        key: value
        for name, inner in section.items()
        for key, value in (
            flat(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {f"{prefix}{name}": inner}
        ).items()
    }


def algorithm(*overrides, path=None):
    return flat(config_file.load(path, [*TASK, *overrides]).algorithm.model_dump())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_changes_exactly_what_it_says(name):
    before, after = algorithm(), algorithm(f"algorithm.preset={name}")
    expected = before | PRESETS[name].settings | {"preset": name}
    assert after == expected
    assert PRESETS[name].settings.keys() <= before.keys()


def test_presets_are_all_different_and_listed():
    made = {name: algorithm(f"algorithm.preset={name}") for name in PRESETS}
    settings = [tuple(sorted((k, str(v)) for k, v in made[name].items() if k != "preset")) for name in made]
    # HACPO's default is alpha 1; all others differ.
    assert len(set(settings)) == len(PRESETS) - 1
    assert made["hacpo"] | {"preset": None} == made["hacpo_alpha_1"] | {"preset": None}
    for name, preset in PRESETS.items():
        assert f"  {name}  (" in help_text() and preset.meaning in help_text()
    assert help_text() in config_file.help_text()


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return path

    return write


def test_beside_a_preset_the_files_settings_win(file):
    path = file("algorithm: {preset: hacpo_alpha_3, cross_lower: 0.5, alpha: 2}")
    assert (algorithm(path=path)["alpha"], algorithm(path=path)["cross_lower"]) == (2, 0.5)
    assert algorithm(path=file("algorithm: {alpha: 2, preset: hacpo_alpha_3}"))["alpha"] == 2
    assert algorithm(path=file("algorithm: {preset: hacpo_alpha_3}"))["alpha"] == 3


def test_on_the_command_line_it_wins_over_the_file_and_the_line_wins_over_it(file):
    path = file("algorithm: {alpha: 2, advantage: {modulation: false}, own_clip_low: 0.05}")
    alone = algorithm("algorithm.preset=hacpo_alpha_3", path=path)
    assert (alone["alpha"], alone["advantage.modulation"], alone["own_clip_low"]) == (3, False, 0.05)
    for order in (1, -1):
        line = ["algorithm.preset=hacpo_alpha_3", "algorithm.alpha=0.5"][::order]
        assert algorithm(*line, path=path)["alpha"] == 0.5


def test_another_preset_on_the_command_line_replaces_the_files(file):
    path = file("algorithm: {preset: hacpo_no_clip}")
    settings = algorithm("algorithm.preset=hacpo_alpha_3", path=path)
    assert (settings["cross_clip"], settings["alpha"]) == (True, 3)


def test_what_a_run_wrote_down_reads_back_the_same(file):
    config = config_file.load(None, [*TASK, "algorithm.preset=naive_learner", "algorithm.alpha=2"])
    import yaml

    assert config_file.load(file(yaml.safe_dump(config.model_dump(mode="json")))) == config


def test_an_unknown_preset_is_named():
    with pytest.raises(UserError, match=r"algorithm.preset: 'hacpo_noclip' is not a preset; did you mean 'hacpo_no_cl"):
        algorithm("algorithm.preset=hacpo_noclip")


def test_overriding_leaves_the_tree_alone():
    tree = {"algorithm": {"alpha": 1.0, "advantage": {}}, "task": {"params": {"a": 1}}}
    changed = config_file.override(tree, ["algorithm.preset=hacpo_no_modulation", "task.params={b: 2}", "run.seed=1"])
    assert tree == {"algorithm": {"alpha": 1.0, "advantage": {}}, "task": {"params": {"a": 1}}}
    assert changed["algorithm"]["advantage"] == {"modulation": False}
    assert changed["task"]["params"] == {"b": 2}  # a mapping is replaced, as ever
