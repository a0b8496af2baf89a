"""Named settings of `algorithm`: the methods of the paper's comparison, HACPO's ablations, and what we found better.

`algorithm.preset=NAME` sets what the preset says and nothing else. In a file the settings beside it win over it; on the
command line it wins over the file, and the other settings on the command line win over it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """settings: values by key below `algorithm`. meaning: what it is, in a line."""

    settings: dict[str, Any]
    meaning: str

    def tree(self) -> dict[str, Any]:
        """The settings as nested dictionaries, `algorithm` at the top."""
        tree: dict[str, Any] = {}
        for key, value in self.settings.items():
            *sections, name = key.split(".")
            section = tree
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = value
        return {"algorithm": tree}


def _hacpo(meaning: str, **changes: Any) -> Preset:
    return Preset({"name": "hacpo"} | {key.replace("__", "."): value for key, value in changes.items()}, meaning)


PRESETS = {
    "hacpo": _hacpo("shared answers with all four mechanisms of the paper"),
    "gspo": Preset({"name": "gspo"}, "every agent alone, sequence-level ratio"),
    "gspo_x2": Preset({"name": "gspo_x2"}, "gspo with twice the answers and updates"),
    "grpo": Preset({"name": "grpo"}, "every agent alone, token-level ratio"),
    "naive": Preset(
        {"name": "naive", "naive_reference": "source"},
        "shared answers without the four mechanisms; ratios against the policy that sampled",
    ),
    "naive_learner": Preset(
        {"name": "naive", "naive_reference": "learner"}, "the same; ratios against the learner's own old policy"
    ),
    "hacpo_no_capability_baseline": _hacpo(
        "ablation: rewards weigh the same in the baseline", advantage__capability_baseline=False
    ),
    "hacpo_no_modulation": _hacpo("ablation: no gradient modulation by capability", advantage__modulation=False),
    "hacpo_alpha_0": _hacpo("ablation: other agents' answers do not weigh by their ratio", alpha=0.0),
    "hacpo_alpha_1": _hacpo("they weigh by their ratio (the paper's default)", alpha=1.0),
    "hacpo_alpha_2": _hacpo("they weigh by its square", alpha=2.0),
    "hacpo_alpha_3": _hacpo("they weigh by its cube (the paper's choice for two of its pairs)", alpha=3.0),
    "hacpo_no_clip": _hacpo("ablation: no answer of another agent is discarded", cross_clip=False),
    "hacpo_no_stepwise": _hacpo("ablation: the range does not narrow within a step", cross_lower_step=0.0),
    "hacpo_wide": _hacpo(
        "not the paper's: a range that agents who differ much need; measured in docs/comparison.md", cross_lower=0.2
    ),
}


def help_text() -> str:
    """Every preset with what it sets and what it means."""
    lines = ["algorithm.preset, one of:"]
    for name, preset in PRESETS.items():
        changes = " ".join(f"{key}={str(value).lower()}" for key, value in preset.settings.items())
        lines += [f"  {name}  ({changes})", f"      {preset.meaning}"]
    return "\n".join(lines)
