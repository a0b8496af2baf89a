import pytest

from hacpo_fast import config_file
from hacpo_fast.errors import UserError

MINIMAL = {"task": {"kind": "file", "name": "p.jsonl"}, "agents": {"ada": {"model": "m"}, "bea": {"model": "n"}}}


def message(plain, *overrides, tmp_path=None):
    with pytest.raises(UserError) as caught:
        config_file.validate(plain) if not overrides else config_file.load(None, overrides)
    return str(caught.value)


def changed(**sections):
    return {**MINIMAL, **sections}


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        (changed(trainig={"lr": 1}), "trainig: no such setting; did you mean training?"),
        (changed(training={"learning_rate": 1}), "training.learning_rate: no such setting; did you mean training.lr?"),
        (changed(rollout={"kl_coef": 1}), "rollout.kl_coef: no such setting; did you mean algorithm.kl_coef?"),
        (
            changed(agents={"ada": {"model": "m", "temprature": 1}}),
            "agents.ada.temprature: no such setting; did you mean agents.ada.temperature?",
        ),
        (
            changed(algorithm={"capability": {"windw": 3}}),
            "algorithm.capability.windw: no such setting; did you mean algorithm.capability.window?",
        ),
        (
            changed(validation={"sampling": {"hot": {"sample": 3}}}),
            "validation.sampling.hot.sample: no such setting; did you mean validation.sampling.hot.samples?",
        ),
        ({"agents": MINIMAL["agents"]}, "task: required but missing"),
        (changed(task={"name": "p"}), "task.kind: required but missing (Source of problems"),
        (changed(training={"lr": -1}), "training.lr: Input should be greater than 0, not -1"),
        (changed(training={"lr": "fast"}), "training.lr: Input should be a valid number"),
        (changed(training={"lr": float("nan")}), "training.lr: Input should be a finite number"),
        (changed(algorithm={"name": "ppo"}), "algorithm.name: Input should be 'hacpo', 'gspo'"),
        (changed(algorithm={"cross_lower": 0.9, "cross_upper": 0.5}), "cross_lower (0.9) is above cross_upper (0.5)"),
        (changed(algorithm={"capability": {"ratio_min": 2}}), "ratio_min <= 1 <= ratio_max must hold"),
        (changed(run={"device": "gpu"}), "run.device: 'gpu' is not a device; use auto, cpu, cuda or cuda:N"),
        (changed(agents={}), "agents: name at least one agent"),
        (changed(agents={"../x": {"model": "m"}}), "agent name '../x': use letters, digits"),
        (changed(agents={"a": {"model": "m", "prompt_template": "Q:"}}), "prompt_template: must contain {prompt}"),
        (
            changed(algorithm={"name": "gspo"}, rollout={"samples_per_prompt": 1}),
            "rollout.samples_per_prompt: one response per prompt has no advantage over itself; use at least 2",
        ),
        (changed(task={"kind": "file", "name": "p", "holdout": 0}), "nothing to validate on"),
        (
            changed(run={"keep_best": "greedy/acc"}),
            "no validation score 'greedy/acc'; there are greedy/accuracy, greedy/",
        ),
        (changed(run={"keep_best": "cy/greedy/accuracy"}), "each also with an agent in front (ada/greedy/accuracy)"),
        (
            changed(run={"keep_best": "greedy/accuracy"}, validation={"every": 0}),
            "run.keep_best: there is no validation",
        ),
        (changed(validation={"sampling": {"g": {"samples": 4}}}), "greedy answers (temperature 0) are all equal"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(plain, said):
    assert said in message(plain)


def test_scores_by_which_the_best_checkpoint_can_be_chosen():
    from hacpo_fast.config import SamplingConfig
    from hacpo_fast.run.metrics import summarise_samples

    for samples in (1, 2, 5, 8):
        config = SamplingConfig(samples=samples, temperature=1)
        assert {*config.scores, "problems"} == set(summarise_samples([[0.0] * samples]))
    for metric in ("greedy/reward", "ada/greedy/accuracy"):
        assert config_file.validate(changed(run={"keep_best": metric})).run.keep_best == metric


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "'seed' is not a setting: write section.key=value"),
        ("run.seed=[1", "run.seed=[1: cannot be read"),
        ("task.prompt={question}", "task.prompt: text with braces or brackets needs quotes"),
        ("run.sed=1", "run.sed: no such setting; did you mean run.seed?"),
    ],
)
def test_a_wrong_override_is_named(override, said):
    assert said in message(None, override)


def test_all_mistakes_are_told_at_once():
    assert message(changed(training={"lr": -1, "x": 2}, run={"seed": "a"})).startswith("settings: 3 setting(s) to mend")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.yaml", None, "no such file"),
        ("list.yaml", "- 1\n- 2\n", "sections such as task: and agents: are expected"),
        ("torn.yaml", "task: {kind: file\n", "not readable as YAML"),
        ("twice.yaml", "run: {seed: 1, seed: 2}\n", "not readable as YAML"),
        ("notes.txt", "run: {}\n", "not a YAML file"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=said.replace("(", r"\(")) as caught:
        config_file.load(path)
    assert str(path) in str(caught.value)


def test_overrides_come_last_and_agents_can_be_added_and_left_out(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("task: {kind: file, name: p}\nagents: {ada: {model: m}, bea: {model: n}}\ntraining: {lr: 1e-4}\n")
    config = config_file.load(path, ["training.lr=3e-5", "agents.bea=null", "agents.cy.model=o", "agents.cy.lr=1"])
    assert list(config.agents) == ["ada", "cy"]
    assert (config.lr("ada"), config.lr("cy")) == (3e-5, 1.0)
    assert config.training.max_grad_norm == 1.0


def test_text_is_taken_as_it_stands_and_numbers_may_be_written_as_people_do(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        'task: {kind: file, name: p, prompt: "Solve ${prompt}$", params: {x: 1e-3}}\nagents: {ada: {model: ~/m}}'
    )
    config = config_file.load(path)
    assert config.task.prompt == "Solve ${prompt}$"
    assert config.task.params == {"x": 0.001}
    assert config.agents["ada"].model.startswith("/")


def test_help_lists_every_setting_with_its_default_and_meaning():
    text = config_file.help_text()
    for setting in config_file.settings():
        assert setting.key in text
        assert setting.description, f"{setting.key} has no description"
    assert "algorithm.cross_lower  (number, default 0.8)" in text
    assert "agents.<name>.model  (text, required)" in text


def test_gspo_x2_takes_twice_the_samples():
    assert config_file.validate(changed(algorithm={"name": "gspo_x2"})).samples_per_prompt == 16
    assert config_file.validate(changed(algorithm={"name": "gspo"})).samples_per_prompt == 8
