"""What host code passes, unpacks, returns or allocates in the place of what is due, by names."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ..model.intermediates import in_kernels, plain
from .kernel_file import KernelFile, by_parameter
from .parameter_names import axis_of, core, tensor_of, word_of
from .syntax import (
    Edit,
    Edits,
    calls_in,
    inside,
    keywords,
    last_name,
    names_in,
    owner_of,
    parameters,
)

# By parameter, the tensors that it may point to, with "", or along which axis it may be their stride.
ArgumentOwners = Mapping[str, Collection[tuple[str, str]]]
# Most kernels take strides as they lie: as much as so many tensors say.
_AS_THEY_LIE, _NUMBERED = 2, re.compile(r"\.stride\(\d\)")
_OF_ROWS = in_kernels("LSE", "delta")
_SHORT = ("float16", "bfloat16", "half")


def passed_amiss(
    host: KernelFile, kernel: ast.FunctionDef, owners: ArgumentOwners
) -> Iterator[Edits]:
    """Of each tensor, where launches pass another one, or its strides for one another."""
    names = parameters(kernel)
    for call, caller in host.callers_of(kernel.name):
        given = list(by_parameter(call, names))
        instead = _exchanged_axes(given) | _other_tensors(given, caller, owners)
        edits = defaultdict[str, Edits](tuple)
        for argument, due in instead.items():
            of = owner_of(argument)
            edits[of.id if of else due] += (host.replaced(argument, due),)
        yield from edits.values()


def _other_tensors(
    given: Sequence[tuple[str, ast.expr]], caller: ast.FunctionDef, owners: ArgumentOwners
) -> dict[ast.expr, str]:
    variables, spelt = dict[str, str](), dict[str, str]()
    for variable in sorted(names_in(caller)):
        variables.setdefault(tensor_of(variable), variable)
        spelt.setdefault(word_of(variable), variable)
    found = dict[ast.expr, str]()
    for name, argument in given:
        due, passed = tensor_of(name), _tensor_among(owners.get(name, ()))
        if isinstance(argument, ast.Name):
            is_own = word_of(argument.id).endswith(word_of(name))
            is_own = passed == due if passed and due else is_own
            other = variables.get(due, "") if due else spelt.get(word_of(name), "")
            if other not in ("", argument.id) and not is_own:
                found[argument] = other
    return found


def _tensor_among(owners: Collection[tuple[str, str]]) -> str:
    tensor, axis = next(iter(owners)) if len(owners) == 1 else ("", "")
    return "" if axis else tensor


def _exchanged_axes(given: Sequence[tuple[str, ast.expr]]) -> dict[ast.expr, str]:
    """Strides that are passed for one another, as most are not; with what is due."""
    by_owner = defaultdict[str, list[tuple[str, ast.expr]]](list)
    for name, argument in given:
        owner = owner_of(argument)
        if owner is not None:
            by_owner[owner.id].append((name, argument))
    by_axis, texts = (
        defaultdict[str, Counter[str]](Counter),
        dict[tuple[str, str], list[ast.expr]](),
    )
    for owner_name, several in by_owner.items():
        passed = [ast.unparse(argument).removeprefix(owner_name) for _, argument in several]
        lying, has_numbers = sorted(passed), all(map(_NUMBERED.fullmatch, passed))
        for (name, argument), own, due in zip(several, passed, lying, strict=True):
            axes = [_axis_word(name)]
            if has_numbers and len({*passed}) == len(passed):
                axes.append(due)
                by_axis[due].setdefault(due, _AS_THEY_LIE)
            for axis in filter(None, axes):
                is_said = len(axis) > 1 and axis in own.removeprefix(".stride")
                by_axis[axis][own] += 1 + _AS_THEY_LIE * is_said
                if not (has_numbers and own == due):
                    texts.setdefault((owner_name, axis), []).append(argument)
    found = dict[ast.expr, str]()
    for (owner_name, axis), (argument, *more) in texts.items():
        (usual, most), *others = by_axis[axis].most_common()
        own, due = ast.unparse(argument), f"{owner_name}{usual}"
        is_unusual = not more and own != due and most > sum(count for _, count in others)
        for _, other in given if is_unusual else ():
            if ast.unparse(other) == due:
                found |= {argument: due, other: own}
    return found


def _axis_word(stride: str) -> str:
    """ "dh" of stride_q_dh, "h" of stride_qh; "" if unsaid."""
    *_, last = parts = stride.lower().split("_")
    return last if parts[2:] else axis_of(stride)


def out_of_turn(host: KernelFile) -> Iterator[Edits]:
    """Of autograd functions: what is unpacked in another order than it was kept, and gradients in that of no inputs."""
    for owner in inside(host.tree, ast.ClassDef):
        methods = {each.name: each for each in inside(owner, ast.FunctionDef)}
        kept = calls_in(owner, "save_for_backward")
        if len(kept) != 1 or not {"forward", "backward"} <= methods.keys():
            continue
        for unpacked in inside(methods["backward"], ast.Assign):
            if last_name(unpacked.value) == "saved_tensors":
                yield from _in_turn(host, unpacked.targets[0], map(_meant_by, kept[0].args))
        due = ["d" + _meant(name) for name in parameters(methods["forward"])[1:]]
        for returned in inside(methods["backward"], ast.Return):
            yield from _in_turn(host, returned.value, due)


def returned_in_turn(host: KernelFile, pair: Sequence[str]) -> Iterator[Edits]:
    """Both of a pair, such as dk and dv, each in the other's place."""
    for returned in inside(host.tree, ast.Return):
        named = {_meant(each.id): each for each in inside(returned, ast.Name)}
        if named.keys() >= {*pair}:
            first, second = map(named.__getitem__, pair)
            yield host.replaced(first, second.id), host.replaced(second, first.id)


def _in_turn(host: KernelFile, row: ast.expr | None, words: Iterable[str]) -> Iterator[Edits]:
    named, due, edits = dict[str, str](), list(words), list[Edit]()
    elements = row.elts if isinstance(row, ast.Tuple) else []
    for each in elements:
        named.setdefault(_meant_by(each), host.text_of(each))
    for each, word in zip(elements, due, strict=False):
        if word and word != _meant_by(each) in due:
            edits.append(host.replaced(each, named.get(word, word)))
    if edits:
        yield tuple(edits)


def _meant_by(node: ast.expr) -> str:
    return _meant(node.id) if isinstance(node, ast.Name) else ""


def _meant(name: str) -> str:
    return tensor_of(name) or word_of(name)


def narrow_buffers(host: KernelFile) -> Iterator[Edits]:
    """Where something is allocated in 16 bits, or sums of rows in another dtype than float32."""
    for each in inside(host.tree, ast.Assign):
        dtype = keywords(each.value).get("dtype") if isinstance(each.value, ast.Call) else None
        name = last_name(dtype) if dtype is not None else "float32"
        is_of_rows = plain(core(last_name(each.targets[0]))) in _OF_ROWS
        if dtype and (name in _SHORT or (is_of_rows and name not in ("float32", "float64"))):
            yield (host.replaced(dtype, "torch.float32"),)
