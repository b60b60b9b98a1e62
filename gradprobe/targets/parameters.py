"""What the parameters of targets may be called, each with its name here."""

from __future__ import annotations

import re

from ..model.intermediates import TABLE

# What each parameter may be called; the first is the name used everywhere here.
_SYNONYMS = {
    "q": ("query", "query_states", "query_layer", "xq"),
    "k": ("key", "key_states", "key_layer", "xk"),
    "v": ("value", "value_states", "value_layer", "xv"),
    "do": ("dout", "d_o", "grad_out", "grad_output", "grad_o"),
    "o": ("out", "output"),
    "lse": ("m", "softmax_lse", "logsumexp"),
    "scale": ("sm_scale", "softmax_scale"),
    "causal": ("is_causal",),
    "bias": ("attn_bias", "attn_mask", "attention_mask"),
    "window": ("window_size",),
    "align": ("alignment",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sink", "attention_sinks", "s_aux"),
    "dropout": ("dropout_p", "p_dropout"),
    "keep": ("keep_mask", "dropout_mask"),
    "seqlens": ("varlen",),
    "cu_seqlens_k": ("cu_seqlens_kv",),
    "max_seqlen_k": ("max_seqlen_kv",),
    "dots": ("input_precision",),
}
_WITHOUT_SYNONYM = ("delta", "tau", "softcap", "cu_seqlens", "cu_seqlens_q", "max_seqlen", "max_seqlen_q", "block_m")
# What these are called by is a boolean mask or an additive bias, as in PyTorch; beside a bias, a mask alone.
EITHER = ("attn_mask", "attention_mask")
# Of a target that works in several ranks: its own among them, and how it reaches the others.
WORLD = ("rank", "world_size", "group", "mesh")
_SYNONYMS |= {row.name.lower(): tuple(row.called.parameters.split()) for row in TABLE if row.gradient_of}
_SYNONYMS |= {"group": ("process_group",), "mesh": ("device_mesh",)}
CANONICAL = {word: name for name, words in _SYNONYMS.items() for word in (name, *words)}
CANONICAL |= {name: name for name in (*_WITHOUT_SYNONYM, "block_n", "rank", "world_size", "enable_gqa", "mask")}


# The letters of axes, as some write them behind the name of a tensor: Q_bhsd.
_AXES = re.compile(r"_[bhgnlstmd]{2,5}$")


def canonical_name(parameter: str) -> str | None:
    """The name used here for what a parameter is called elsewhere; None where it means nothing here."""
    word = parameter.lower()
    return CANONICAL.get(word) or CANONICAL.get(_AXES.sub("", word))
