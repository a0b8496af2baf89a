"""What is wrong with settings, files and folders is told before torch is imported, and without waiting for the hub."""

import json
import os
import socket
import subprocess
import sys

import pytest

from hacpo_fast import hub
from hacpo_fast.config import AgentConfig, TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.sources import check_folders, check_sources

MISTAKES = {
    "train: a setting": ("train", ["mine.yaml", "training.learning_rate=1"], "did you mean training.lr?"),
    "train: no config": ("train", ["mein.yaml"], "mein.yaml: no such file; did you mean mine.yaml?"),
    "train: no data": ("train", ["mine.yaml", "task.name=date.jsonl"], "date.jsonl: no such file in"),
    "train: a column": ("train", ["mine.yaml", "task.prompt='{question}'"], "no field {question} for the template"),
    "train: no model": ("train", ["mine.yaml", "agents.ada.model=./adda"], "agents.ada.model: there is no folder adda"),
    "train: a reward": ("train", ["mine.yaml", "task.reward=maths"], "'maths' is not a reward; did you mean 'math'?"),
    "train: the output": ("train", ["mine.yaml", "run.output=ada"], "exists, and nothing is overwritten"),
    "train: a generator": ("train", ["mine.yaml", "task.kind=reasoning_gym", "task.name=sum"], "no generator 'sum'"),
    "evaluate: a benchmark": ("evaluate", ["ada", "--benchmark", "gsmk"], "did you mean 'gsm8k'?"),
    "evaluate: a file": ("evaluate", ["ada", "--benchmark", "gsm8k=x.jsonl"], "x.jsonl: no such file"),
    "evaluate: a model": ("evaluate", ["./adda", "--config", "mine.yaml"], "agents.adda.model: there is no folder"),
    "evaluate: the output": ("evaluate", ["ada", "--config", "mine.yaml", "--output", "ada"], "exists, and nothing"),
    "compare: no plan": ("compare.__main__", ["cpu.yaml"], "cpu.yaml: no such file"),
    "report: no run": ("report.__main__", ["ada"], "ada is not the folder of a run"),
    "replay: no file": ("replay", ["batch.safetensors"], "batch.safetensors: not a saved update (there is no such"),
    "replay: a device": ("replay", ["mine.yaml", "--device", "gpu"], "--device: 'gpu' is not a device"),
    "demo: no folder": ("demo.__main__", ["mine.yaml/demo"], "mine.yaml/demo: Not a directory"),
}

RUN_ALL = """
import contextlib, importlib, io, json, sys
results = {}
for name, (command, arguments, _) in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = importlib.import_module(f"hacpo_fast.{command}").main(arguments)
    results[name] = [status, err.getvalue(), "torch" in sys.modules or "transformers" in sys.modules]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of all mistakes, made in one process one after the other: (exit status, message, whether torch is there)."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "ada").mkdir()
    (folder / "ada" / "config.json").write_text("{}")
    (folder / "ada" / "model.safetensors").write_text("")
    (folder / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    task = "{kind: file, name: data.jsonl, reward: exact}"
    (folder / "mine.yaml").write_text(f"task: {task}\nagents: {{ada: {{model: ada}}}}\n")
    command = [sys.executable, "-c", RUN_ALL, json.dumps(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"ada", "data.jsonl", "mine.yaml"}
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_torch_is_imported(results, name):
    status, message, heavy = results[name]
    assert status == 2 and message.startswith("error: ") and MISTAKES[name][2] in message.replace("\n", " ")
    assert not heavy


@pytest.fixture
def online(monkeypatch):
    """Nothing says yet whether this process is offline, and there is no proxy."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    return monkeypatch


def listening():
    server = socket.create_server(("127.0.0.1", 0))
    return server, f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_takes_a_connection_is_used(online):
    server, address = listening()
    with server:
        online.setenv("HF_ENDPOINT", address)
        assert hub.stay_offline_unless_reachable() == [] and not os.environ["HF_HUB_OFFLINE"]


def test_a_hub_that_takes_none_is_left_alone(online):
    server, address = listening()
    server.close()
    online.setenv("HF_ENDPOINT", address)
    (note,) = hub.stay_offline_unless_reachable()
    assert note.startswith("127.0.0.1 cannot be reached (") and os.environ["HF_HUB_OFFLINE"] == "1"


def test_one_silent_address_is_not_the_end(online):
    server, address = listening()
    port = server.getsockname()[1]
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in ("0.0.0.1", "127.0.0.1")]
    online.setattr(socket, "getaddrinfo", lambda *_, **__: places)
    real = socket.create_connection

    def connect(address, timeout):
        if address[0] == "0.0.0.1":
            raise TimeoutError
        return real(address, timeout)

    online.setattr(socket, "create_connection", connect)
    with server:
        online.setenv("HF_ENDPOINT", address)
        assert hub.stay_offline_unless_reachable() == []
    assert hub.stay_offline_unless_reachable() != []


@pytest.mark.parametrize("decided", [("HF_HUB_OFFLINE", "1"), ("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")])
def test_who_has_decided_is_not_asked(online, decided):
    online.setenv(*decided)
    online.setattr(hub, "_connect", lambda *_: pytest.fail("the hub was asked"))
    assert hub.stay_offline_unless_reachable() == [] and os.environ[decided[0]] == decided[1]


def test_behind_a_proxy_nothing_can_be_told(online):
    online.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    online.setattr(hub, "_connect", lambda *_: pytest.fail("the hub was asked"))
    assert hub.stay_offline_unless_reachable() == []


@pytest.mark.parametrize(
    ("task", "model", "asked"),
    [
        ({"kind": "file", "name": "FILE"}, "FOLDER", False),
        ({"kind": "benchmark", "name": "gsm8k", "source": "FILE"}, "FOLDER", False),
        ({"kind": "benchmark", "name": "gsm8k"}, "FOLDER", True),
        ({"kind": "hub", "name": "user/data"}, "FOLDER", True),
        ({"kind": "file", "name": "FILE"}, "user/model", True),
    ],
)
def test_only_what_comes_from_the_hub_asks_for_it(online, tmp_path, task, model, asked):
    (tmp_path / "model.safetensors").write_text("")
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1=", "question": "1+1=", "answer": "#### 2"}\n')
    places = {"FILE": str(tmp_path / "p.jsonl"), "FOLDER": str(tmp_path)}
    calls = []
    online.setattr(hub, "_connect", lambda host, port: calls.append((host, port)))
    task = TaskConfig(reward="exact", **{key: places.get(value, value) for key, value in task.items()})
    assert check_sources([task], {"ada": AgentConfig(model=places.get(model, model))}) == []
    assert calls == ([("huggingface.co", 443)] if asked else [])


@pytest.mark.parametrize("endpoint", ["mirror.org", "http://h:abc", "http://[::1", "https://a..b", "ftp://h"])
def test_an_endpoint_that_is_no_address_is_one_message(endpoint, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UserError, match=r"HF_ENDPOINT: .* is no address such as"):
        hub.stay_offline_unless_reachable()


def test_a_name_of_the_hub_beside_a_folder_of_its_owner_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    with pytest.raises(UserError, match="if the hub's is meant, start in a place that has no folder owner"):
        check_folders("a", AgentConfig(model="owner/model"))
    check_folders("a", AgentConfig(model="another/model"))
