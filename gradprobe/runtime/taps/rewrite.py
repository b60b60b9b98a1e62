"""A kernel and the functions it calls, rewritten with stores at the places that taps name."""

from __future__ import annotations
import __future__

import ast
import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...source.text import Edit
from ...source.triton_source import Function, blocks, bound_before, call_tree
from .axes import order_of, shape_of, shapes_behind
from .places import TapPlace, places
from .tap import Tap

# What the tool adds to a function begins so.
PREFIX = "gradprobe_"
STORE = PREFIX + "store_tap"


@dataclass(frozen=True)
class Sighting:
    """A tap in a function that has its variable."""

    function: Function
    places: tuple[TapPlace, ...]
    """Where everything that the tap reads has a value; none if there is no such place."""
    unknown: str
    """The first name that it reads and that neither the function nor its callers have; "" if there is a place."""


@dataclass(frozen=True)
class Rewritten:
    """A kernel with taps."""

    jit: Any
    """Of the same kind as the original and to be launched in its stead."""
    functions: tuple[tuple[Any, Function], ...]
    """Each rewritten function, Triton's object, beside the one that it was made from."""

    def refresh(self) -> None:
        """Gives the rewritten functions what the original ones see outside themselves now."""
        for made, function in self.functions:
            namespace = made.fn.__globals__
            kept = {name: value for name, value in namespace.items() if name == "__name__" or name.startswith(PREFIX)}
            namespace.update(function.scope)
            namespace.update(kept)


def parameters(number: int) -> list[str]:
    """The names of the parameters that a tap adds: a pointer, and four sizes."""
    return [f"{PREFIX}tap{number}_{part}" for part in ("ptr", "n0", "n1", "n2", "n3")]


def sight(tree: Sequence[Function], function: Function, tap: Tap) -> Sighting | None:
    """Whether and where a tap can store in one function of a kernel's call tree; None if it lacks the variable."""
    found = places(function, tap)
    usable, unknown = [], ""
    for place in found:
        missing = _missing(function, tap.names, place.visible)
        lacking = next((name for name in missing if not _can_be_given(tree, function, name)), "")
        unknown = unknown or lacking
        if not lacking:
            # What the kernel's own expressions say about the order of the tile's axes. What is unknown beside two
            # blocks is a scalar, or does not fit the tile anyhow.
            shapes = shapes_behind(tree, function, place.statement)
            indexed = [shape for index in tap.indices if (shape := shape_of(index, function, shapes))]
            usable.append(replace(place, is_transposed=order_of(shape_of(tap.value, function, shapes), indexed)))
    return Sighting(function, tuple(usable), "" if usable else unknown) if found else None


def outermost(sightings: Sequence[Sighting]) -> list[Sighting]:
    """Those in functions that none of the other functions calls, directly or not."""
    below = [{id(function.jit) for function in call_tree(each.function.jit)[1:]} for each in sightings]
    return [each for each in sightings if not any(id(each.function.jit) in callees for callees in below)]


def _missing(function: Function, names: Sequence[str], visible: frozenset[str] | set[str]) -> list[str]:
    """The names that have no value at a place: a variable without one hides whatever else has its name."""
    return [name for name in names if name not in visible and (name in function.variables or not function.knows(name))]


def _can_be_given(tree: Sequence[Function], function: Function, name: str) -> bool:
    """Whether every caller of a function can pass it a name that it does not have."""
    if name in function.variables or function.knows(name):
        return False
    others = [caller for caller in tree if caller is not function]
    sites = [(caller, call) for caller in others for call, called in caller.calls if called is function.jit]
    return bool(sites) and all(
        not _missing(caller, [name], bound_before(caller, call)) or _can_be_given(tree, caller, name)
        for caller, call in sites
    )


def rewrite(tree: Sequence[Function], sightings: Mapping[int, Sighting], taps: Sequence[Tap]) -> Rewritten:
    """The kernel at the head of a call tree, with a store for each tap (by number) that was sighted in the tree.

    Nothing of the original changes. The rewritten functions stand at the lines of the originals, in files of their own
    that exist in `linecache` only.
    """
    extra = _extra_parameters(tree, sightings, taps)
    made: dict[int, Any] = {}
    functions: list[tuple[Any, Function]] = []
    # Callees first: a caller's namespace holds its rewritten callees.
    for function in _callees_first(tree):
        if extra[id(function.jit)]:
            text = _text(function, extra, sightings, taps)
            aliases = {_alias(called): made[id(called)] for _, called in function.calls if id(called) in made}
            made[id(function.jit)] = _compiled(function, text, aliases, extra[id(function.jit)])
            functions.append((made[id(function.jit)], function))
    return Rewritten(made[id(tree[0].jit)], tuple(functions))


def _extra_parameters(
    tree: Sequence[Function], sightings: Mapping[int, Sighting], taps: Sequence[Tap]
) -> dict[int, dict[str, None]]:
    """What each function of the tree takes beyond its own: the taps' parameters, and names that only callers have."""
    extra: dict[int, dict[str, None]] = {id(function.jit): {} for function in tree}
    for number, sighting in sightings.items():
        own = extra[id(sighting.function.jit)]
        own |= dict.fromkeys(parameters(number))
        for place in sighting.places:
            own |= dict.fromkeys(_missing(sighting.function, taps[number].names, place.visible))
    for function in _callees_first(tree):
        for call, called in function.calls:
            visible = bound_before(function, call) if extra[id(called)] else set()
            extra[id(function.jit)] |= dict.fromkeys(_missing(function, list(extra[id(called)]), visible))
    return extra


def _callees_first(tree: Sequence[Function]) -> list[Function]:
    by_jit = {id(function.jit): function for function in tree}
    begun: set[int] = set()
    done: list[Function] = []

    def visit(function: Function) -> None:
        begun.add(id(function.jit))
        for _, called in function.calls:
            if id(called) not in begun:
                visit(by_jit[id(called)])
        done.append(function)

    visit(tree[0])
    return done


def _text(
    function: Function, extra: Mapping[int, Iterable[str]], sightings: Mapping[int, Sighting], taps: Sequence[Tap]
) -> str:
    source = function.source
    own = ", ".join(f"{name}=None" for name in extra[id(function.jit)])  # those before may have defaults
    edits = [source.appended(source.closing(source.span(function.tree)[0]), own)]
    for call, called in function.calls:
        if extra[id(called)]:
            passed = ", ".join(f"{name}={name}" for name in extra[id(called)])
            edits += [source.replaced(call.func, _alias(called)), source.appended(source.span(call)[1] - 1, passed)]
    for number, sighting in sightings.items():
        for place in sighting.places if sighting.function is function else ():
            edits.append(behind(function, place.statement, _store(number, taps[number], place)))
    return function.edited(edits)


def behind(function: Function, statement: ast.stmt, text: str) -> Edit:
    """Another statement behind one: on its line, or on a new one behind a statement that holds blocks."""
    source = function.source
    if not blocks(statement):
        at = source.span(statement)[1]
        return Edit(at, at, f"; {text}")
    at, first = source.end_of(statement.end_lineno or statement.lineno), source.lines[statement.lineno - 1]
    return Edit(at, at, f"\n{first[: len(first) - len(first.lstrip())]}{text}")


def _store(number: int, tap: Tap, place: TapPlace) -> str:
    """The statement that stores. Axes that the intermediate does not have come first, of size 1."""
    transposed = tap.is_transposed if place.is_transposed is None else place.is_transposed
    indices = ["0"] * (4 - len(tap.indices)) + [f"({index})" for index in tap.indices]
    mark = repr(f"gradprobe tap {number}")
    words = [f"({tap.value})", tap.variable, *indices, *parameters(number), str(transposed), mark]
    return f"{STORE}({', '.join(words)})"


def _alias(jit: Any) -> str:
    return f"{PREFIX}tapped_{jit.fn.__name__}_{id(jit)}"


def _compiled(function: Function, text: str, aliases: Mapping[str, Any], extra: Iterable[str]) -> Any:
    """Triton's object for a function with a new text, of the original's kind."""
    from ...kernels.triton.tap import store_tap

    plain = function.plain
    # The name of no module, so that neither Python nor Triton takes this for the original.
    namespace = {**function.scope, **aliases, STORE: store_tap, "__name__": f"{plain.__module__}.tapped"}
    file = f"<{plain.__code__.co_filename}, {function.name} with taps>"
    padded = "\n" * (function.line - 1) + text
    linecache.cache[file] = (len(padded), None, padded.splitlines(keepends=True), file)
    flags = plain.__code__.co_flags & __future__.annotations.compiler_flag
    exec(compile(padded, file, "exec", flags=flags, dont_inherit=True), namespace)
    return _like(function.jit, namespace[function.name], extra)


def _like(original: Any, plain: Any, extra: Iterable[str]) -> Any:
    """Triton's object for a function, with the options of another."""
    options = getattr(original, "kwargs", None) or {
        name: getattr(original, name, None)
        for name in ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")
    } | {"repr": getattr(original, "_repr", None), "launch_metadata": getattr(original, "launch_metadata", None)}
    # A size that is 1 or a multiple of 16 is no reason to compile again.
    sizes = [name for name in extra if name.startswith(PREFIX) and not name.endswith("_ptr")]
    options = options | {"do_not_specialize": [*(options.get("do_not_specialize") or []), *sizes]}
    made = type(original)(plain, **options)
    made.pre_run_hooks = original.pre_run_hooks
    return made
