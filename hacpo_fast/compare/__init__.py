"""Methods side by side on pairs of tiny agents, over several seeds, on a CPU.

`python -m hacpo_fast.compare configs/comparison/cpu.yaml` makes the agents, runs every cell (pair, method, seed) that
has no result yet, and writes tables of what came out. Nothing is imported here: asking for help stays fast.
"""
