"""Cases of many kinds by their words, and what a target that takes everything is given in them."""

from gradprobe.commands.shrink.simpler_cases import Facts
from gradprobe.commands.suite.plan import TargetSignature

LAZY = (
    {},
    {"heads": 4, "layout": ["distinct"]},
    {"batch": 2, "seqlens": "72,45", "bias_window": 7, "pattern": "large"},
    {"heads": 3, "tau": "0.25,0.5,0.25", "bias": False, "dtype": "bfloat16", "seed": 9, "scale": 0.3},
)  # fmt: skip
SOFTMAX = (
    {"heads": 4, "kv_heads": 2, "causal": True, "head_dim": 24, "head_dim_v": 8, "dtype": "float16"},
    {"seqlen_q": 20, "seqlen_k": 50, "causal": True, "align": "top-left", "window": "9,4", "bias": True},
    {"seqlen_q": 50, "seqlen_k": 20, "causal": True, "softcap": 2.0, "alibi": True, "mask": "dead-rows", "sinks": True},
    {"bias": True, "bias_axes": "bn", "dropout": 0.25, "scale": 0.7, "repeat": 3, "mask": "padding"},
    {"cu_seqlens": "0,3,3,40", "cu_seqlens_k": "0,5,20,30", "causal": True, "window": "6,-1"},
    {"batch": 3, "seqlens": "72,0,20", "layout": ["q=blhd", "do=expanded"]},
)  # fmt: skip
TENSORS = ("q", "k", "v", "do", "o", "lse", "dq", "dk", "dv")
FACTS = {
    family: Facts(TargetSignature(family, frozenset({"bias"}), frozenset()), TENSORS)
    for family in ("softmax", "lazy")
}


def worded(family, **words):
    return FACTS[family].in_full(words)


ALL = [worded("lazy", **words) for words in LAZY] + [worded("softmax", **one) for one in SOFTMAX]
