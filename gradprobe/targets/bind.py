"""Arguments of a target, and names for its results."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..frontends import plain_function
from ..model.assignment import OUTPUTS, taken, without_broadcast
from ..model.case import ADDITIVE, IMPLIED, LOG2, NUMBER, Case, flag_of, ranked
from ..model.failures import UsageFailure, refuse_if
from ..model.intermediates import GRADIENT_OF, TABLE, lookup, plain
from .find import Target
from .naming import EITHER, WORLD, canonical_name

if TYPE_CHECKING:
    from torch import Tensor

_PACKED = (
    "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen", "max_seqlen_q", "max_seqlen_k"
)  # fmt: skip
# The option that gives a case what a target needs.
_OPTIONS = {
    "bias": "--bias", "window": "--window LEFT,RIGHT", "softcap": "--softcap C", "tau": "--tau T",
    "seqlens": "--seqlens N,...", "alibi": "--alibi", "mask": "--mask KIND", "sinks": "--sinks", "keep": "--dropout P",
    **dict.fromkeys(_PACKED, "--cu-seqlens 0,N,..."), **dict.fromkeys(WORLD, "--ranks N"),
}  # fmt: skip
_OPTIONS |= {row.name.lower(): _OPTIONS[row.needs] for row in TABLE if row.needs}
_SCALARS = ("scale", "causal", "align", "window", "softcap", "dropout", "block_m", "block_n")


def bind(target: Target, case: Case, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """By the target's own names, or UsageFailure."""
    offered = _offered(target, case, tensors)
    for name in _untaken(target, case):
        way = f"it takes {', '.join(target.takes.values())}"
        way += f"; where it is so by itself, add --implied {name}" if name in IMPLIED else ""
        words = f"target {target.name!r} cannot take {flag_of(name)}: it has no such parameter"
        raise UsageFailure(words, way)
    for name in target.required:
        words = f"target {target.name!r} needs {target.takes[name]!r}"
        way = "take a parameter `do`, or give this one a default"
        is_output = name in OUTPUTS and not target.is_backward
        refuse_if(is_output, f"{words}, where a backward writes, and takes no dO", way)
        way = f"add {_OPTIONS[name]}" if name in _OPTIONS else "give the parameter a default"
        way += f" or {_OPTIONS['mask']}" if target.takes[name] in EITHER else ""
        refuse_if(offered.get(name) is None, f"{words}, which this case does not have", way)
    given = {name: own for name, own in target.takes.items() if offered.get(name) is not None}
    return {own: taken(offered[name], name, case.shapes) for name, own in given.items()}


def _offered(target: Target, case: Case, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    offered: dict[str, Any] = {name: getattr(case, name) for name in _SCALARS}
    offered |= {"dots": case.dots or "ieee", "enable_gqa": case.kv_heads != case.heads}
    if case.family == "lazy" and case.bias:  # whose only window is that of its bias, one number
        offered["window"] = case.bias_window
    elif case.window is not None and (case.window_as or target.window_form) == NUMBER:
        left, right = case.window
        words = f"target {target.name!r} takes the window as one number, got {left},{right}"
        way = f"--window {left},0 ends at the diagonal; or --window {left},{left}"
        refuse_if(right not in (0, left), words, way)
        offered["window"] = left
    if case.mask_as == ADDITIVE and case.mask is not None:
        hidden = ~tensors["mask"]
        added = hidden.to(tensors["q"].dtype).masked_fill_(hidden, -math.inf)
        tensors = {**tensors, "mask": added}
    if case.lse_as == LOG2 and "lse" in tensors:
        # With the same strides, in a storage as large.
        lse = tensors["lse"]
        size = lse.untyped_storage().nbytes() // lse.element_size()
        storage = lse.as_strided((size,), (1,), 0) * math.log2(math.e)
        lse = storage.as_strided(lse.shape, lse.stride(), lse.storage_offset())
        tensors = {**tensors, "lse": lse}
    for name, tensor in tensors.items():
        rank = ranked(name, case)
        offered[name] = tensor if rank is None else without_broadcast(tensor, *rank)
    offered |= {**_packed(case, tensors), **target.world}
    if _is_mask_for_bias(target, case):
        offered["bias"] = offered["mask"]
    return offered


def _packed(case: Case, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    if case.cu_seqlens_q is None or case.cu_seqlens_k is None:
        return {}
    found = dict[str, Any]()
    for name, ends in (("q", case.cu_seqlens_q), ("k", case.cu_seqlens_k)):
        found[f"max_seqlen_{name}"] = max(end - start for start, end in pairwise(ends))
    if case.cu_seqlens_q == case.cu_seqlens_k:
        found |= {"cu_seqlens": tensors["cu_seqlens_q"], "max_seqlen": found["max_seqlen_q"]}
    return found


def _is_mask_for_bias(target: Target, case: Case) -> bool:
    is_either = "mask" not in target.takes and target.takes.get("bias") in EITHER
    return is_either and case.mask is not None and not case.bias


def _untaken(target: Target, case: Case) -> list[str]:
    """For dropout, the reference needs the mask."""
    is_packed, takes = case.cu_seqlens_q is not None, target.takes.keys()
    is_square = case.cu_seqlens_q == case.cu_seqlens_k
    for_both = {"cu_seqlens_q", "cu_seqlens_k"} <= takes
    for_one = bool({"cu_seqlens", "cu_seqlens_q"} & takes)
    used = {
        "window": case.window is not None,
        "softcap": case.softcap is not None,
        "seqlens": case.seqlens is not None,
        "bias": case.bias,
        "alibi": case.alibi,
        "sinks": case.sinks,
        "mask": case.mask is not None and not _is_mask_for_bias(target, case),
        "dropout": case.dropout > 0 and "keep" not in takes,
        "causal": case.causal and case.family == "softmax",
        "scale": abs(case.scale - case.head_dim**-0.5) > 1e-12,
        "cu_seqlens": is_packed and is_square and not for_one,
        "cu_seqlens_k": is_packed and not is_square and not for_both,
    }
    known = {*takes, *case.implied} - {"dropout", "cu_seqlens_k"}
    return [name for name, is_used in used.items() if is_used and name not in known]


_BY_PLACE = ("dQ", "dK", "dV")
_GRADIENTS = frozenset(GRADIENT_OF.values())


def as_tensors(result: Any) -> Any:
    if isinstance(result, Mapping):
        return {name: _as_tensor(value) for name, value in result.items()}
    return tuple(map(_as_tensor, result)) if isinstance(result, (tuple, list)) else result


def _as_tensor(value: Any) -> Any:
    import numpy as np
    import torch
    from torch.utils.dlpack import from_dlpack

    if isinstance(value, torch.Tensor) or not hasattr(value, "__dlpack__"):
        return value
    try:
        # Torch reads no array backwards, and warns of one that may not be written.
        is_array = isinstance(value, np.ndarray)
        return torch.from_numpy(value.copy()) if is_array else from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return value


def by_name(
    function: Callable[..., Any], results: Sequence[Any]
) -> tuple[dict[str, Any], str] | None:
    words = next((names for names in returned_names(function) if len(names) == len(results)), [])
    named = [name if name in _GRADIENTS else "" for name in map(intermediate_named, words)]
    if {*_BY_PLACE} <= {*named} and all(named.count(name) == 1 for name in named if name):
        found = {name: result for name, result in zip(named, results, strict=True) if name}
        why = "by the names in its return statement"
    # Behind them autograd asks for None.
    elif [at for at, one in enumerate(results) if one is not None] == [0, 1, 2]:
        found = dict(zip(_BY_PLACE, results, strict=False))
        why = "by their order; a dict says otherwise"
    else:
        return None
    return found, f"of the tuple that it returns, {', '.join(found)} are taken {why}"


_OWN_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def statements_of(function: Callable[..., Any]) -> Iterator[ast.AST]:
    try:
        lines, first = inspect.getsourcelines(plain_function(function))
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    ast.increment_lineno(tree, max(first, 1) - 1)
    waiting: list[ast.AST] = list(getattr(tree.body[0], "body", []))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _OWN_SCOPES):
            waiting += ast.iter_child_nodes(node)


def returned_names(function: Callable[..., Any]) -> Iterator[list[str]]:
    for node in statements_of(function):
        if isinstance(node, ast.Return) and isinstance(node.value, (ast.Tuple, ast.List)):
            yield [_name_of(element) for element in _flat(node.value)]


def _flat(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from _flat(part)
    else:
        yield node


_NAMED = re.compile(r"(?P<name>\w+)(?P<grad>\.grad\b)?(\.\w+|\[[^]]*\]|\(.*\))*")


def _name_of(node: ast.expr) -> str:
    is_one = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    found = _NAMED.fullmatch(ast.unparse(node)) if is_one else None
    return "d" * bool(found["grad"]) + found["name"] if found else ""


def intermediate_named(word: str) -> str:
    row = lookup(canonical_name(word) or plain(word))
    return row.name if row is not None else ""
