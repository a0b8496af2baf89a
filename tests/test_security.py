"""What comes from others (models, data, rewards) is data: it is not run, names no file, and owns no terminal."""

from __future__ import annotations

import ast
import json
import pickle
import unicodedata
from pathlib import Path

import pytest
import runs
import tiny

import hacpo_fast
import hacpo_kernels
from hacpo_fast import config_file
from hacpo_fast.agent import read_card
from hacpo_fast.command_line import exit_status
from hacpo_fast.config import AgentConfig
from hacpo_fast.errors import UserError
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.place import Place
from hacpo_fast.run.sinks import scalars
from hacpo_fast.tasks import Problem
from hacpo_fast.train import run

ROOTS = [Path(package.__path__[0]) for package in (hacpo_fast, hacpo_kernels)]

FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.unsafe_load"}

# Where a forbidden thing is right, and why. Nothing is allowed in a whole file but what stands here.
ALLOWED = {
    ("hacpo_fast/tasks/reward_pool.py", "pickle"): "packs items for the reward processes, reads none",
    ("hacpo_fast/tasks/reward_process.py", "pickle"): "sends them; what comes back is JSON",
    ("hacpo_fast/demo/smollm2.py", "weights that may be pickled"): "reads a GGUF file, which holds plain numbers",
    ("hacpo_fast/tasks/reward_worker.py", "pickle"): "reads what the trainer, which started it, sent over their socket",
}

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202egnp.exe\u2066\x9b31m[bold red]markup[/] \x00"


def findings(source: str) -> set[str]:
    """Names of the forbidden things in a piece of Python."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} & FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if called in FORBIDDEN_CALLS:
                found.add(called)
            if called.endswith("torch.load") and options.get("weights_only") != "True":
                found.add("torch.load")
            if called == "yaml.load" and "Safe" not in ast.unparse(node) and "_Loader" not in ast.unparse(node):
                found.add("yaml.load")
            for name, value in (("shell", "True"), ("allow_pickle", "True"), ("trust_remote_code", "True")):
                if options.get(name) == value:
                    found.add(name)
            if called.startswith("AutoModel") and called.endswith(".from_pretrained"):
                if options.get("use_safetensors") != "True":
                    found.add("weights that may be pickled")
    return found


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "pickle"),
        ("from dill import loads", "dill"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("os.system(text)", "os.system"),
        ("torch.load(path)", "torch.load"),
        ("torch.load(path, weights_only=False)", "torch.load"),
        ("yaml.load(text, yaml.Loader)", "yaml.load"),
        ("subprocess.run(text, shell=True)", "shell"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("AutoConfig.from_pretrained(path, trust_remote_code=True)", "trust_remote_code"),
        ("AutoModelForCausalLM.from_pretrained(path)", "weights that may be pickled"),
    ],
)
def test_the_search_finds_what_it_looks_for(source, name):
    assert findings(source) == {name}


def test_nothing_of_foreign_origin_is_unpickled_or_run():
    files = [path for root in ROOTS for path in root.rglob("*.py")]
    assert len(files) > 50
    found = set()
    for path in files:
        root = next(root for root in ROOTS if root in path.parents)
        found |= {(f"{root.name}/{path.relative_to(root)}", name) for name in findings(path.read_text())}
    assert found == set(ALLOWED)


def test_settings_are_read_by_a_safe_loader(tmp_path):
    (tmp_path / "c.yaml").write_text("task: !!python/object/apply:os.system [touch owned]\n")
    with pytest.raises(UserError, match="not readable as YAML"):
        config_file.load(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        config_file.load(None, ["task.name=!!python/object/apply:os.getcwd []"])


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def model(tmp_path):
    return tiny.write_model(tmp_path / "model", tiny.byte_tokenizer(), "llama")


def test_pickled_weights_are_never_opened(model, tmp_path):
    owned = tmp_path / "owned"
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(owned)))
    with pytest.raises(UserError, match=r"has no .*safetensors"):
        read_card("ada", AgentConfig(model=str(model)))
    with pytest.raises(UserError, match="cannot load the model"):
        Policy.load(str(model))
    assert not owned.exists()


def test_code_of_a_model_is_not_run_unless_it_is_asked_for(model, tmp_path):
    owned = tmp_path / "owned"
    (model / "configuration_nova.py").write_text(f"open({str(owned)!r}, 'w').close()\nclass Config: pass\n")
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "nova", "auto_map": {"AutoConfig": "configuration_nova.Config"}}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="trust_remote_code"):
        read_card("ada", AgentConfig(model=str(model)))
    assert not owned.exists()
    assert AgentConfig(model="m").trust_remote_code is False


def problem(text):
    return Problem("id", text, ({"role": "user", "content": text},), None, {})


TRICKS = [
    "{prompt}{prompt}",
    "{{ 7 * 7 }}",
    "{% for x in 'ab' %}{{ x }}{% endfor %}",
    "{0.__class__}",
    "%s %(x)s",
    "$HOME",
]


@pytest.mark.parametrize("chat", [False, True])
def test_text_of_problems_is_no_template(tmp_path, chat):
    folder = tiny.write_model(tmp_path / "m", tiny.byte_tokenizer(chat=chat), "llama")
    codec = read_card("ada", AgentConfig(model=str(folder), prompt_template="Q: {prompt}\nA:")).codec
    for text, ids in zip(TRICKS, codec.encode_prompts([problem(text) for text in TRICKS]), strict=True):
        expected = f"<|user|>{text}<|end|><|assistant|>" if chat else f"Q: {text}\nA:"
        assert codec.decode([ids]) == [expected]


def test_a_chat_template_runs_in_a_sandbox(tmp_path):
    folder = tiny.write_model(tmp_path / "m", tiny.byte_tokenizer(chat=True), "llama")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings["chat_template"] = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    codec = read_card("ada", AgentConfig(model=str(folder))).codec
    with pytest.raises(UserError, match=r"its chat template cannot write .*SecurityError"):
        codec.encode_prompts([problem("x")])


def harmless(text: str) -> bool:
    return not [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and c != "\n"]


@pytest.fixture
def hostile_run(model, tmp_path):
    """A run whose data, reward errors, paths and responses (of bytes at random) would all like to own the terminal."""
    folder = tmp_path / "da\x1b[2Jta\u202e"
    folder.mkdir()
    rows = [{"prompt": f"{i} {HOSTILE}../../{i}", "answer": HOSTILE + str(i), "id": f"../../{i}"} for i in range(24)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + rows[:1]))
    (folder / "reward.py").write_text(
        "def reward(response, answer, row):\n"
        "    if len(response) % 3 == 0:\n"
        "        raise ValueError(answer + response)\n"
        "    return len(response) % 2\n"
    )
    return runs.settings(
        {"ada": model, "bea": model}, tmp_path, task__name=str(folder / "problems.jsonl"), task__prompt="{prompt}",
        task__reward=f"{folder / 'reward.py'}:reward", run__show_rollouts=4, run__save_rollouts=8,
        rollout__max_prompt_tokens=200, validation__every=2, validation__problems=3, run__tensorboard=True,
    )  # fmt: skip


def test_a_run_shows_writes_and_names_nothing_that_others_chose(hostile_run, tmp_path, capsys):
    before = {path for path in tmp_path.rglob("*")}
    assert run(hostile_run, Place(tmp_path / "run")) == 0
    out, err = capsys.readouterr()
    assert harmless(out) and "[bold red]markup[/]" in out and r"\x1b[2J" in out and r"\u202e" in out
    assert harmless(err.replace("\r", ""))
    assert "a reward failed" in out and "problems left out" in out
    new = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} - {path.relative_to(tmp_path) for path in before}
    assert {path.parts[0] for path in new if "__pycache__" not in path.parts} == {"run"}
    assert all(harmless(str(path)) for path in new if path.parts[0] == "run")
    for name in ("rollouts.jsonl", "metrics.jsonl"):
        assert harmless((tmp_path / "run" / name).read_bytes().decode("ascii"))
    samples = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert any(HOSTILE in sample["prompt"] for sample in samples)  # as it is, for whoever reads it with care
    assert any(HOSTILE in (sample["error"] or "") for sample in samples)


def test_curves_are_named_by_the_program_and_checkpoints_hold_no_pickle(hostile_run, tmp_path):
    (record, *_) = [r for r in runs.train(hostile_run, tmp_path / "run") if "agents" in r]
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jinja", ".yaml"}
    assert not any(path.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05", b"PK") for path in files)
    tags = [point.tag for point in scalars(record, {})]
    assert tags and all(tag.replace("/", "").replace("_", "").isalnum() for tag in tags)
    with pytest.raises(UserError, match="letters, digits"):
        plain = hostile_run.model_dump()
        plain["validation"]["sampling"] = {HOSTILE: {}}
        config_file.validate(plain)


def test_messages_of_mistakes_are_harmless(hostile_run, tmp_path, capsys):
    def refuse():
        raise UserError(f"one {HOSTILE}\ntwo {HOSTILE}")

    assert exit_status(refuse) == 2
    plain = hostile_run.model_dump()
    path = HOSTILE.replace("\0", "")  # with it, it is no path, and the settings refuse it
    changes = (
        {"name": f"no{path}.jsonl"}, {"name": HOSTILE}, {"prompt": f"{{{HOSTILE}x}}"}, {"answer": HOSTILE},
        {"reward": path},
    )  # fmt: skip

    def dry_run(change):
        config = config_file.validate({**plain, "task": {**plain["task"], "reward": "exact", **change}})
        return run(config, Place(tmp_path / "run"), dry_run=True)

    for change in changes:
        assert exit_status(lambda change=change: dry_run(change)) == 2
    printed = capsys.readouterr()
    assert harmless(printed.err) and harmless(printed.out)
    assert printed.err.count("error: ") == 6 and r"two \x1b[2J" in printed.err
