"""What users get wrong, and the one message that each mistake has: before weights are read, without a traceback.

A dry run prepares a run as training does. Where a row needs a file, it is made by the function of that name below.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest
import tiny
import yaml

from hacpo_fast import config_file
from hacpo_fast.command_line import exit_status
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.place import Place
from hacpo_fast.train import run

ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(12)]


def jsonl(rows, name="data.jsonl"):
    def write(folder):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return write


def raw(content, name="data.jsonl"):
    return lambda folder: (folder / name).write_bytes(content)


def reward(code):
    return lambda folder: (folder / "mine.py").write_text(code)


def model(**changes):
    """A copy of the good model, named "bad", with `changes` to its files: a dict is merged, None removes, text is
    written."""

    def make(folder):
        shutil.copytree(folder / "ada", folder / "bad")
        for name, change in changes.items():
            file = folder / "bad" / name.replace("_json", ".json").replace("_safetensors", ".safetensors")
            if change is None:
                file.unlink()
            elif isinstance(change, str):
                file.write_text(change)
            else:
                file.write_text(json.dumps({**json.loads(file.read_text()), **change}))

    return make


def chat_template(text):
    return model(tokenizer_config_json={"chat_template": text})


def large_tokenizer(folder):
    shutil.copytree(folder / "ada", folder / "bad")
    tiny.byte_tokenizer(merges=40).save_pretrained(folder / "bad")


def pickled_weights(folder):
    model(model_safetensors=None)(folder)
    (folder / "bad" / "pytorch_model.bin").write_bytes(b"")


def no_end_token(folder):
    model(generation_config_json={"eos_token_id": None}, config_json={"eos_token_id": None})(folder)
    tokenizer_config = folder / "bad" / "tokenizer_config.json"
    tokenizer_config.write_text(json.dumps({**json.loads(tokenizer_config.read_text()), "eos_token": None}))


def mine(**changes):
    return {"task.reward": "DIR/mine.py:reward", **changes}


BAD = {"agents.ada.model": "DIR/bad"}
DATA = {"task.name": "DIR/data.jsonl"}
FUNCTION = "def reward(response, answer, row):\n    "

# name: (settings, what makes the files, part of the message)
SETTINGS = {
    "unknown setting": ({"training.learning_rate": 1}, None, "training.learning_rate: no such setting; did you mean"),
    "text for a number": ({"training.lr": "fast"}, None, "training.lr: Input should be a valid number"),
    "number for text": ({"task.name": 3}, None, "task.name: Input should be a valid string, not 3"),
    "list for a section": ({"task": ["x"]}, None, "task: Input should be a mapping of settings, not ['x']"),
    "agents as a list": ({"agents": ["a", "b"]}, None, "agents: Input should be a mapping of settings, not ['a', 'b']"),
    "agent as a path": ({"agents": {"ada": "m"}}, None, "agents.ada: Input should be a mapping of settings, not 'm'"),
    "no agents": ({"agents": {}}, None, "agents: name at least one agent"),
    "agent without model": ({"agents": {"ada": {}}}, None, "agents.ada.model: required but missing (Folder or hub"),
    "agent misspelt": (
        {"agents.add.lr": 1e-5}, None, "causal language model); did you mean agents.ada?",
    ),
    "agent of another name": ({"agents.x.lr": 1e-5}, None, "agents with a model are ada"),
    "plan of a comparison": ({"pairs": {}, "methods": {}}, None, "looks like the plan of a comparison"),
    "agent name with a path": ({"agents": {"../x": {"model": "m"}}}, None, "agent name '../x': use letters, digits"),
    "agent name of control characters": ({"agents": {"a\x1b[2J": {"model": "m"}}}, None, r"agent name 'a\x1b[2J'"),
    "one agent twice": (
        {"agents": {"ada": {"model": "m"}, "Ada": {"model": "m"}}}, None, "two differ by upper and lower case alone",
    ),
    "sampling name": ({"validation.sampling": {"a/b": {}}}, None, "name 'a/b': use letters, digits"),
    "next to no nucleus": ({"validation.sampling": {"x": {"top_p": 1e-300}}}, None, "x.top_p: Input should be greater"),
    "no way to sample": ({"validation.sampling": {}}, None, "validation.sampling: name at least one way to sample"),
    "no steps": ({"run.steps": 0}, None, "run.steps: Input should be greater than or equal to 1, not 0"),
    "infinite time": ({"task.reward_timeout": float("inf")}, None, "task.reward_timeout: Input should be a finite"),
    "policy": ({"task.reward_failure": "drop"}, None, "task.reward_failure: Input should be 'zero', 'drop_group' or"),
    "memory": ({"task.reward_memory_gb": 0}, None, "task.reward_memory_gb: Input should be greater than 0"),
    "nothing held out": ({"task.holdout": 0, "validation.every": 1}, None, "validation.every: nothing to validate on"),
    "hardly any temperature": ({"rollout.temperature": 1e-300}, None, "temperature: Input should be greater than or"),
    "next to greedy": (
        {"validation.sampling": {"cold": {"temperature": 1e-300}}}, None, "1e-300 is too low to sample at: use 0 (gre",
    ),
    "samples without end": (
        {"rollout.samples_per_prompt": 10**21}, None, "samples_per_prompt: Input should be less than or equal to",
    ),
    "a step without end": (
        {"rollout.samples_per_prompt": 10**5, "rollout.prompts_per_step": 10**5}, None, "10,000,000,000 responses of",
    ),
    "processes without end": ({"task.reward_workers": 10**6}, None, "task.reward_workers: Input should be less than"),
    "threads without end": ({"run.threads": 10**9}, None, "run.threads: Input should be less than or equal to 1024"),
    "5000 digits": ({"run.seed": int("9" * 4000) ** 2}, None, "not a whole number of about 8000 digits"),
    "a lot of memory": ({"rollout.kv_cache_gb": 1e300}, None, "rollout.kv_cache_gb: Input should be less than or"),
    "a long wait": ({"task.reward_timeout": 1e300}, None, "task.reward_timeout: Input should be less than or equal to"),
    "agent name of 300 letters": ({"agents": {"a" * 300: {"model": "m"}}}, None, "use letters, digits"),
    "agent name that is a number": ({"agents": {3: {"model": "m"}}}, None, "agents: the name 3 is no text; put it"),
    "model name of 300 letters": ({"agents.ada.model": "m" * 300}, None, "agents.ada.model: too long for a path"),
    "output of 300 letters": ({"run.output": "DIR/" + "m" * 300}, None, "run.output: too long for a path"),
    "path with a zero": ({"task.name": "a\0.jsonl"}, None, "task.name: no path may hold the character 0"),
    "device without end": ({"run.device": "cuda:9999999999"}, None, "'cuda:9999999999' is not a device"),
    "template without prompt": ({"agents.ada.prompt_template": "Q"}, None, "prompt_template: must contain {prompt}"),
}  # fmt: skip

PLACES = {
    "device": ({"run.device": "cuda:63"}, None, "run.device: cuda:63 is not there"),
    "output exists": ({"run.output": "DIR"}, None, "exists, and nothing is overwritten"),
    "output is a broken link": (
        {"run.output": "DIR/link"},
        lambda folder: (folder / "link").symlink_to("nowhere"),
        "link exists, and nothing is",
    ),
    "output below a file": ({"run.output": "DIR/data.jsonl/run"}, jsonl(ROWS), "is not a folder that can be written"),
    "no checkpoint": ({"run.resume": "DIR/step-3"}, None, "run.resume: there is no checkpoint"),
}

TASKS = {
    "no data": ({"task.name": "DIR/date.jsonl"}, jsonl(ROWS), "date.jsonl: no such file in"),
    "no folder": ({"task.name": "DIR/no/data.jsonl"}, None, "data.jsonl: there is no folder"),
    "a folder": ({"task.name": "DIR/ada"}, None, "with problems ends in .jsonl, .json, .csv, .parquet"),
    "empty data": (DATA, raw(b""), "data.jsonl: no problems in it"),
    "blank lines": (DATA, raw(b"\n \n"), "data.jsonl: no problems in it"),
    "not JSON": (DATA, raw(b'{"prompt": "a", "answer": "b"}\n{"prompt"\n'), "data.jsonl, line 2: not JSON"),
    "not an object": (DATA, raw(b"[1]\n"), "data.jsonl, line 1: a list; every line must be an object"),
    "not UTF-8": (DATA, raw(b'{"prompt": "\xff"}\n'), "data.jsonl, line 1: not UTF-8"),
    "endless nesting": (DATA, raw(b"[" * 200_000), "data.jsonl, line 1: not JSON"),
    "endless nesting, .json": ({"task.name": "DIR/x.json"}, raw(b"[" * 200_000, "x.json"), "x.json: not JSON (br"),
    "5000 digits in data": (DATA, raw(b'{"prompt": ' + b"9" * 5000 + b"}"), "line 1: not JSON that can be read"),
    "5000 digits, .json": ({"task.name": "DIR/x.json"}, raw(b"[" + b"9" * 5000, "x.json"), "x.json: not JSON that can"),
    "a folder called .jsonl": (DATA, lambda folder: (folder / "data.jsonl").mkdir(), "data.jsonl: a folder or device"),
    "all held out": ({"task.holdout": 1, "validation.every": 1}, None, "or lower it, or task.holdout=1"),
    "wrong column": (DATA, jsonl([{"question": "a", "answer": "b"}]), "line 1: no field {prompt} for the template"),
    "no answer": (DATA, jsonl([{"prompt": "a", "anwser": "b"}]), "no field 'answer' (task.answer); did you mean 'anws"),
    "null answer": (DATA, jsonl([{"prompt": "a", "answer": None}]), "the field 'answer' (task.answer) is null"),
    "null prompt": (DATA, jsonl([{"prompt": None, "answer": "b"}]), "line 1: the field {prompt} of the template"),
    "empty prompt": (DATA, jsonl([{"prompt": " ", "answer": "b"}]), "line 1: the prompt is empty"),
    "half a character": (DATA, jsonl([{"prompt": "\ud800", "answer": "b"}]), "the prompt is not valid Unicode"),
    "bad template": ({"task.prompt": "{prompt!r}"}, None, "fields look like {name} or {name[key]}"),
    "template with code": ({"task.prompt": "{prompt.__class__}"}, None, "no field {prompt.__class__}"),
    "no messages": ({"task.messages": "messages"}, None, "no field 'messages' (task.messages)"),
    "messages as text": ({"task.messages": "prompt"}, None, "must be a list of messages with role and content"),
    "few problems": ({"rollout.prompts_per_step": 999}, None, "are fewer than rollout.prompts_per_step=999"),
    "long prompts": ({"rollout.max_prompt_tokens": 1}, None, "every training prompt is empty or longer than"),
    "broken Parquet": ({"task.name": "DIR/x.parquet"}, raw(b"PAR1", "x.parquet"), "not a readable Parquet file"),
    "no generator": ({"task.kind": "reasoning_gym", "task.name": "chain"}, None, "no generator 'chain'; did you mean"),
    "offline hub": ({"task.kind": "hub", "task.name": "nobody/nothing"}, None, "the data set 'nobody/nothing'"),
}  # fmt: skip

REWARDS = {
    "unknown reward": ({"task.reward": "maths"}, None, "'maths' is not a reward; did you mean 'math'?"),
    "no reward file": (mine(), None, "task.reward: there is no file"),
    "no reward function": (mine(), reward("def score(response, answer, row): pass"), "no function 'reward' in"),
    "other arguments": (mine(), reward("def reward(response): pass"), "is called as reward(response, answer, row)"),
    "import error": (mine(), reward("import no_such_package"), "there is no module 'no_such_package'"),
    "syntax error": (mine(), reward("def reward(:"), "the reward cannot be loaded: SyntaxError"),
    "always raises": (mine(), reward(FUNCTION + "return row['x']"), "failed on each of 3 responses it was tried on"),
    "always None": (mine(), reward(FUNCTION + "pass"), "failed on each of 3 responses it was tried on: returned None"),
    "always hangs": (
        mine(**{"task.reward_timeout": 0.05}), reward(FUNCTION + "import time; time.sleep(60)"),
        "failed on each of 3 responses it was tried on: took longer than 0.05 s",
    ),
    "always crashes": (mine(), reward(FUNCTION + "import os; os._exit(1)"), "the process exited with code 1"),
    "pattern": ({"task.reward": "regex", "task.reward_options": {"pattern": "("}}, None, "is not a regular expression"),
    "no numbers": (
        {"task.reward": "numeric", **DATA}, jsonl([{"prompt": a, "answer": a} for a in ("1", "one", "two")]),
        "reference answers get no reward themselves, such as 'one'",
    ),
    "options": ({"task.reward_options": {"ignorecase": True}}, None, "unexpected keyword argument 'ignorecase'"),
}  # fmt: skip

AGENTS = {
    "no model folder": ({"agents.ada.model": "DIR/adda"}, None, "agents.ada.model: there is no folder"),
    "no model of that name": ({"agents.ada.model": "nobody/nothing"}, None, "agents.ada.model: no model with"),
    "folder of something else": ({"agents.ada.model": "DIR"}, None, "has no *.safetensors"),
    "pickled weights": (BAD, pickled_weights, "has no *.safetensors; weights in other formats are not loaded"),
    "no configuration": (BAD, model(config_json=None), "agents.ada.model: no model with a tokenizer at"),
    "torn configuration": (BAD, model(config_json='{"model_type":'), "agents.ada.model: no model with a tokenizer at"),
    "unknown architecture": (BAD, model(config_json={"model_type": "nova"}), "agents.ada.model: no model with a token"),
    "no language model": (BAD, model(config_json={"model_type": "t5"}), "does not know as a causal language model"),
    "torn tokenizer": (BAD, model(tokenizer_json='{"version":'), "agents.ada.model: no model with a tokenizer at"),
    "no tokenizer": (
        {"agents.ada.tokenizer": "DIR/nowhere"}, None, "agents.ada.tokenizer: there is no folder DIR/nowhere",
    ),
    "another tokenizer": (BAD, large_tokenizer, "but the model's vocabulary ends at 262; they do not belong together"),
    "no end token": (BAD, no_end_token, "neither the tokenizer nor the generation config names an end token"),
    "end token as text": (BAD, model(generation_config_json={"eos_token_id": "</s>"}), "'</s>', which is no token's"),
    "no number of tokens": (BAD, model(config_json={"vocab_size": "many"}), "error for field 'vocab_size': "),
    "chat without template": ({"agents.ada.prompt_format": "chat"}, None, "the tokenizer has no chat template"),
    "torn chat template": (BAD, chat_template("{% for m in messages %}"), "its chat template cannot write"),
    "chat template that refuses": (
        {"task.system_prompt": "Be brief.", **BAD},
        chat_template("{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"),
        "cannot write a conversation of system, user (TemplateError: No system role)",
    ),
    "chat template options": (
        {"agents.ada.chat_template_options": {"tokenize": False}, **BAD}, chat_template("{{ messages[0].content }}"),
        "its chat template cannot write a conversation of user (TypeError",
    ),
    "code of the model": (
        BAD, model(config_json={"model_type": "nova", "auto_map": {"AutoConfig": "code.Config"}}),
        "comes with Python code of its own, which is run only if agents.ada.trust_remote_code is true",
    ),
    "small context": (
        BAD, model(config_json={"max_position_embeddings": 8}),
        "do not fit into the model's context of 8; lower rollout.max_response_tokens, or "
        "validation.max_response_tokens; beside the longest prompt, of 5, at most 3 fit",
    ),
    "not enough memory": ({"training.token_budget": 10**9}, None, "memory: the run needs about"),
}  # fmt: skip

ALL = SETTINGS | PLACES | TASKS | REWARDS | AGENTS


@pytest.fixture(scope="module")
def ada(tmp_path_factory):
    return tiny.write_model(tmp_path_factory.mktemp("models") / "ada", tiny.byte_tokenizer(), "llama")


@pytest.fixture
def folder(ada, tmp_path):
    shutil.copytree(ada, tmp_path / "ada")
    jsonl(ROWS, "good.jsonl")(tmp_path)
    return tmp_path


def settings(folder, changes):
    plain = {
        "task": {"kind": "file", "name": "DIR/good.jsonl", "reward": "exact", "reward_workers": 1, "holdout": 0},
        "agents": {"ada": {"model": "DIR/ada"}},
        "rollout": {"engine": "transformers", "prompts_per_step": 1, "max_prompt_tokens": 48, "max_response_tokens": 8},
        "validation": {"every": 0},
        "run": {"steps": 1, "output": "DIR/run"},
    }
    for key, value in changes.items():
        *path, last = key.split(".")
        section = plain
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value

    def placed(value):
        if isinstance(value, dict):
            return {key: placed(item) for key, item in value.items()}
        return value.replace("DIR", str(folder)) if isinstance(value, str) else value

    return placed(plain)


def dry_run(folder, changes):
    def work():
        config = config_file.validate(settings(folder, changes))
        return run(config, Place.choose(config, "bad"), dry_run=True)

    return exit_status(work)


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    monkeypatch.setattr(Policy, "load", lambda *_, **__: pytest.fail("weights were loaded"))


def test_there_are_enough_of_them():
    assert len(ALL) == sum(map(len, (SETTINGS, PLACES, TASKS, REWARDS, AGENTS))) >= 40


def test_nothing_is_wrong_with_the_rest(folder, capsys):
    assert dry_run(folder, {}) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("case", ALL)
def test_one_message(folder, capsys, case):
    changes, make, said = ALL[case]
    if make:
        make(folder)
    assert dry_run(folder, changes) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and "Traceback" not in err and out.strip() == ""
    assert said.replace("DIR", str(folder)) in err
    assert len(err) < 2500 and err.count("\n") <= 8
    assert not (folder / "run").exists()


@pytest.mark.parametrize("case", ["agent name with a path", "no model folder"])
def test_the_command_says_the_same(folder, case):
    changes, make, said = ALL[case]
    if make:
        make(folder)
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings(folder, changes)))
    command = [sys.executable, "-m", "hacpo_fast.train", str(folder / "mine.yaml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
