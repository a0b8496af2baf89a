"""A folder's tokenizer.json is what its weights were trained with: it counts, whatever class transformers picks."""

import json

import pytest
import runs
import tiny
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hacpo_fast.agent import read_card
from hacpo_fast.config import AgentConfig
from hacpo_fast.rollouts.tokenizer import TEXTS, load_tokenizer

LETTERS = "0123456789+-*/=;.,:A abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param) / request.param
    return tiny.write_model(place, tiny.letter_tokenizer(LETTERS), request.param)


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_file_counts_and_a_difference_is_told(folder):
    card = read_card("ada", AgentConfig(model=str(folder)))
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in (*TEXTS, "12+7=19 a"):
        assert ids(card.codec.tokenizer, text) == file.encode(text, add_special_tokens=False).ids
    assert len(ids(card.codec.tokenizer, "12+7=19 a")) == 9
    by_itself = AutoTokenizer.from_pretrained(folder)
    if ids(by_itself, "12+7=19 a") == ids(card.codec.tokenizer, "12+7=19 a"):
        assert card.notes == ()
    else:  # transformers 5.24 does this to qwen2
        (note,) = card.notes
        assert note.startswith("agents.ada: ") and type(by_itself).__name__ in note
    assert card.codec.tokenizer.eos_token == "</s>" and card.codec.tokenizer.unk_token == "<unk>"


def test_a_class_of_another_mind_is_noticed_in_every_version(folder, monkeypatch):
    class Other(PreTrainedTokenizerFast):
        """Splits text in another way, as classes that build their own rules do."""

        def __call__(self, text, **options):
            return super().__call__(text.upper() if isinstance(text, str) else text, **options)

    monkeypatch.setattr("hacpo_fast.rollouts.tokenizer.AutoTokenizer", Other)
    tokenizer, note = load_tokenizer(str(folder))
    assert type(tokenizer) is PreTrainedTokenizerFast and "loads its tokenizer as a Other" in note
    assert len(ids(tokenizer, "12+7=19 a")) == 9


def test_what_tokenizer_config_changes_on_purpose_stays(tmp_path, monkeypatch):
    folder = tiny.write_model(tmp_path / "m", tiny.byte_tokenizer(chat=True, bos=True), "llama")
    tokenizer, note = load_tokenizer(str(folder))
    assert note is None and tokenizer.chat_template == tiny.CHAT_TEMPLATE and tokenizer.bos_token == "<s>"
    # Both classes heed a truncation in the file, which none of the texts here may be cut by.
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(str(folder))[1] is None


def test_a_trained_agent_is_loaded_in_the_same_way(tmp_path):
    place = tiny.write_model(tmp_path / "qwen2", tiny.letter_tokenizer(LETTERS), "qwen2")
    runs.train(runs.settings({"ada": place}, tmp_path, run__steps=1), tmp_path / "run")
    first, again = (
        read_card("ada", AgentConfig(model=str(home))).codec.tokenizer
        for home in (place, tmp_path / "run" / "agents" / "ada")
    )
    assert [ids(again, text) for text in TEXTS] == [ids(first, text) for text in TEXTS]
    assert first.get_vocab() == again.get_vocab()
