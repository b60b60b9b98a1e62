"""Makes a check smaller for the interpreter, where every access is watched, after it cost a process its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..inputs.history import CheckRequest

# A length beyond 2 * _SPAN becomes _SPAN plus its remainder, so that a last tile of usual size is as full as before.
_SPAN = 128
# Batches, and key heads: two show what one hides.
_FEW = 2
_LENGTHS = ("seqlen", "seqlen_q", "seqlen_k")
# Options that fix the length of each sequence.
_OWN_LENGTHS = ("seqlens", "cu_seqlens", "cu_seqlens_k", "inputs")


def for_the_interpreter(request: CheckRequest) -> CheckRequest:
    """The same check on the CPU, only as large as it must be to show the effect of the layout.

    Where an option gives a value for each batch or head, their number stays.
    """
    options = {name: word for name, word in request.options.items() if name != "dots"} | {"device": "cpu"}
    if not any(name in options for name in _OWN_LENGTHS):
        lengths = {name: options[name] for name in _LENGTHS if options.get(name, 0) > 2 * _SPAN}
        options |= {name: _SPAN + length % _SPAN for name, length in lengths.items()}
        options |= {"batch": min(options["batch"], _FEW)} if "batch" in options else {}
    if "," not in str(options.get("tau", "")):
        options |= _heads(options)
    return replace(request, options=options)


def _heads(options: Mapping[str, Any]) -> dict[str, int]:
    """Two key heads, each with as many query heads as before."""
    heads = options.get("heads", 0)
    keys = options.get("kv_heads", heads)
    if keys <= _FEW or heads % keys:
        return {}
    return {"heads": _FEW * heads // keys} | ({"kv_heads": _FEW} if "kv_heads" in options else {})
