"""Rewards that fail or are slow, told to the user; where the settings say so, a failure stops the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hacpo_fast.errors import UserError
from hacpo_fast.run.text import printable
from hacpo_fast.tasks import Problem, RewardResult

KINDS = 10
"""Different failures that are told of; later ones are only counted."""

SLOW_SHARE = 0.25
"""Of a step's time so far: more spent waiting for rewards is told of."""

SLOW_SECONDS = 1.0
"""Less than this is not worth a message, whatever its share."""

Check = tuple[str, Problem, RewardResult]  # response, problem, what the reward said


class RewardWatch:
    """Looks at every result of one task's reward.

    policy: task.reward_failure. Notes are told once per kind of failure in a process; no number depends on them.
    """

    def __init__(self, policy: str, note: Callable[[str], None]) -> None:
        self._policy, self._note = policy, note
        self._kinds: set[str] = set()
        self._told_slow = False

    def failures(self, where: str, agent: str, checks: Sequence[Check]) -> int:
        """Number of `checks` that failed. Raises UserError with the first one where failures stop the run."""
        failed = [check for check in checks if check[2].error]
        for check in failed:
            shown = _shown(agent, check)
            if self._policy == "stop":
                raise UserError(
                    f"{where}: {len(failed)} of {len(checks)} rewards of {agent}'s responses failed, and "
                    f"task.reward_failure is stop; the first one:\n{shown}\n"
                    "mend the reward, or let failures cost a sample (zero) or the prompt (drop_group)"
                )
            kind = check[2].error.split(":")[0][:60]  # ValueError, took longer than 10 s, the process exited ...
            if kind not in self._kinds and len(self._kinds) < KINDS:
                self._kinds.add(kind)
                self._note(
                    f"{where}: a reward failed (task.reward_failure={self._policy}; once for each kind)\n{shown}"
                )
        return len(failed)

    def slow(self, where: str, waited: float, total: float, checks: Sequence[tuple[str, Check]]) -> None:
        """Says once that rewards hold up training, naming the slowest of `checks` (agent, check).

        waited: seconds in which nothing else was done; total: seconds of the step until then.
        """
        if self._told_slow or not checks or waited < max(SLOW_SECONDS, SLOW_SHARE * total):
            return
        self._told_slow = True
        agent, slowest = max(checks, key=lambda pair: pair[1][2].seconds)
        self._note(
            f"{where}: {waited:.1f} of {total:.1f} s went by waiting for rewards; the slowest took "
            f"{slowest[2].seconds:.2f} s. More task.reward_workers or a lower task.reward_timeout may help\n"
            f"{_shown(agent, slowest)}"
        )


def _shown(agent: str, check: Check) -> str:
    """One check in a few lines, whatever its texts hold."""
    response, problem, result = check
    said = result.error if result.error else f"reward {result.value:g}"
    return (
        f"  reward    {printable(said, limit=500)}\n"
        f"  prompt    {printable(problem.prompt, limit=300)}\n"
        f"  {agent}'s response  {printable(response, limit=300)}"
    )
