"""What dispatch can launch, as requests for `aot.compile_all`."""

from __future__ import annotations

FLOATS = ("scale", "softcap", "own_lower", "own_upper", "cross_lower", "cross_upper", "power", "clamp", "denominator")
DIVISIBLE = ("width", "stride_hidden", "stride_weight", "stride_out", "stride_logits")
FLAGS = ("BIAS", "ROW_SCALE", "SOFTCAP")


class _Types(dict):
    """Types of arguments by name: integers and float32 tensors are the rule."""

    def __missing__(self, name: str) -> str:
        return "fp32" if name in FLOATS else "i32"


F32 = (
    "row_scale maximum_out total_out weighted_out maximum_in total_in weighted_in target_logit logprob_out "
    "logsumexp_out entropy_out logsumexp entropy grad_logprob grad_entropy logits logprobs source_logprobs source_means "
    "advantages capability_ratio gradient mean_out log_ratio_out ratio_out objective_out objective loss"
)


def signature(**types: str) -> dict[str, str]:
    common = {name: "*fp32" for name in F32.split()}
    common |= {"hidden": "*bf16", "weight": "*bf16", "bias": "*bf16", "out": "*bf16", "targets": "*i64"}
    common |= {"cu_seqlens": "*i32", "is_own": "*i1", "low_out": "*i1", "high_out": "*i1", "live_out": "*i1"}
    return common | types
