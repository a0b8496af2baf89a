from multiprocessing import get_context
from pathlib import Path

from hacpo_fast.compare.plan import Plan
from hacpo_fast.compare.warm_starts import teach_habits, teach_skill

PLAN = Path(__file__).parents[2] / "configs" / "comparison" / "cpu.yaml"


def make(start, agents):
    teach_skill(start, agents)
    teach_habits(start, agents)


def test_two_comparisons_that_share_agents_make_each_once(tmp_path):
    start = Plan.load(PLAN).quick().cells(tmp_path)[0].warm_starts["bob"]
    others = [get_context("spawn").Process(target=make, args=(start, tmp_path)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0]
    assert {path.name for path in tmp_path.glob("[!.]*")} == {start.folder, start.skilled_folder}
    made = (tmp_path / start.folder / "model.safetensors").stat().st_mtime_ns
    make(start, tmp_path)
    assert (tmp_path / start.folder / "model.safetensors").stat().st_mtime_ns == made
