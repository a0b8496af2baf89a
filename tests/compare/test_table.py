import csv
import io

import pytest

from hacpo_fast.compare import table
from hacpo_fast.errors import UserError


def result(pair, method, seed, alice, bob, live=(None, None), reward=0.5):
    def agent(final):
        return {
            "start": 0.25, "final": final, "training_reward": reward, "rollouts": 100, "updates": 8,
            "steps": {"cross_live": list(live)},
        }  # fmt: skip

    return {
        "pair": pair, "method": method, "seed": seed, "agents": {"alice": agent(alice), "bob": agent(bob)},
        "answers": 1280, "cpu_seconds": 10.0 + seed,
    }  # fmt: skip


RESULTS = [
    result("near", "hacpo", 0, 0.6, 0.8, live=(0.2, 0.4)),
    result("near", "hacpo", 1, 0.8, 0.8, live=(None, 0.6)),
    result("near", "gspo", 0, 0.5, 0.7),
    result("near", "gspo", 1, 0.7, 0.3),
    result("near", "gspo", 2, 0.1, 0.1),
    result("far", "hacpo", 0, 0.4, 0.2),
    result("elsewhere", "hacpo", 0, 0.0, 0.0),
]


@pytest.fixture
def made():
    return table.rows(RESULTS, ["far", "near"], ["gspo", "naive", "hacpo"], "hacpo")


def test_rows_are_in_the_plans_order_without_what_is_not_there(made):
    assert [(row["pair"], row["method"]) for row in made] == [("far", "hacpo"), ("near", "gspo"), ("near", "hacpo")]


def test_numbers_by_hand(made):
    _, gspo, hacpo = made
    assert hacpo["alice final"].mean == pytest.approx(0.7)
    assert hacpo["alice final"].half == pytest.approx(12.706 * 0.1)  # sd 0.1414, over the root of 2
    assert hacpo["both final"].mean == pytest.approx(0.75)
    assert hacpo["both - reference"] is None
    # of the two seeds that both have: 0.6 - 0.7 and 0.5 - 0.8
    assert gspo["both - reference"].mean == pytest.approx(-0.2)
    assert gspo["both - reference"].half == pytest.approx(12.706 * 0.1)
    assert gspo["seeds"] == 3 and gspo["both final"].mean == pytest.approx((0.6 + 0.5 + 0.1) / 3)
    assert gspo["live"] is None and hacpo["live"] == pytest.approx(0.4)
    assert (gspo["rollouts"], gspo["updates"], gspo["cpu s"]) == (200, 16, 11.0)


def test_markdown_and_csv_say_the_same(made, tmp_path):
    text = table.write(tmp_path, made, "hacpo")
    assert "**near** (1280 answers per agent and evaluation)" in text
    line = next(line for line in text.splitlines() if line.startswith("| gspo"))
    assert "| -20.0 ± 127.1 |" in line and "| 11.0 |" in line
    far = next(line for line in text.splitlines() if line.startswith("| hacpo | 1 |"))
    assert "| 40.0 |" in far  # one seed has no interval
    flat = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert float(flat[1]["both - reference"]) == pytest.approx(-0.2)
    assert float(flat[1]["both - reference ±"]) == pytest.approx(1.2706)
    assert flat[0]["alice final ±"] == ""
    assert (tmp_path / "table.json").exists()


def test_nothing_makes_an_empty_table(tmp_path):
    assert table.write(tmp_path, table.rows([], ["far"], ["hacpo"], "hacpo"), "hacpo") == "\n"


def test_the_summary_by_hand():
    results = [
        *RESULTS,
        result("far", "hacpo", 1, 0.6, 0.6),
        result("far", "gspo", 0, 0.1, 0.1),
        result("far", "gspo", 1, 0.4, 0.6, reward=0.7),
    ]
    head, _, gspo, hacpo = table.summary(results, ["far", "near"], ["gspo", "naive", "hacpo"], "hacpo").splitlines()
    assert head == "| method | far | near | Δ hacpo | Δ reward | answers | updates | cpu s |"
    # seed 0: mean of 0.1 - 0.3 and 0.6 - 0.7; seed 1: mean of 0.5 - 0.6 and 0.5 - 0.8; seed 2 is not in both pairs
    assert "| 30.0 ± 254.1 | 40.0 ± 65.7 | -17.5 ± 31.8 | +5.0 ± 63.5 | 200 | 16 | 10.8 |" in gspo
    assert "| - | - | 200 | 16 | 10.5 |" in hacpo


def test_a_summary_leaves_out_what_a_pair_lacks():
    lines = table.summary(RESULTS, ["far", "near"], ["gspo", "hacpo"], "hacpo").splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| hacpo"]
    assert table.summary([], ["far"], ["hacpo"], "hacpo").count("\n") == 2


def test_tables_take_their_places_in_a_document(tmp_path):
    document = tmp_path / "d.md"
    document.write_text("a\n<!-- cpu -->\nold\n<!-- end of cpu -->\nb\n<!-- study -->\n<!-- end of study -->\n")
    for _ in range(2):
        table.replace_in(document, {"cpu": "new\n", "cpu summary": "short\n"})
    assert document.read_text() == (
        "a\n<!-- cpu -->\nnew\n<!-- end of cpu -->\nb\n<!-- study -->\n<!-- end of study -->\n"
    )
    with pytest.raises(UserError, match="confirm"):
        table.replace_in(document, {"confirm": "x"})
