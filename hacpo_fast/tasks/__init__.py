"""What agents are asked and how their answers are verified.

`load_problems` reads a task's problems (`check_first_problem` one of them), `split_held_out` sets some aside for
validation, `resolve_reward` and `RewardPool` check responses in processes of their own, and `check_reward` tries all
that before a run. Mistakes of the user come as `hacpo_fast.errors.UserError`. Nothing here needs torch.
"""

from hacpo_fast.tasks.check import check_reward
from hacpo_fast.tasks.holdout import is_held_out
from hacpo_fast.tasks.problems import (
    Problem,
    Problems,
    check_first_problem,
    is_on_hub,
    load_problems,
    split_held_out,
)
from hacpo_fast.tasks.reward_pool import RewardPool, RewardResult, open_rewards
from hacpo_fast.tasks.reward_process import RewardStartError
from hacpo_fast.tasks.rewards import RewardSpec, resolve_reward

__all__ = [
    "Problem",
    "Problems",
    "RewardPool",
    "RewardResult",
    "RewardSpec",
    "RewardStartError",
    "check_first_problem",
    "check_reward",
    "is_held_out",
    "is_on_hub",
    "load_problems",
    "open_rewards",
    "resolve_reward",
    "split_held_out",
]
