"""Addresses: the lines of CUDA kernels that read or write other elements than those they work with.

In what one block works on by itself, q, dO, O, LSE, delta and dQ belong to the same rows of the same heads, and k, v,
dK and dV to the same keys of the heads that those read. A line is at fault where it touches what none of the others
touches and not what they all do. Names, block numbers and values play no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from ..frontends.cuda import BLOCK, Recording, recorded
from ..frontends.triton.interpreter.dataflow import Site
from ..frontends.triton.interpreter.dataflow.lanes import OUTSIDE
from ..inputs.memory import Array
from ..model.assignment import OUTPUTS, Assigned
from ..model.intermediates import AXIS_WORDS, DERIVED, PRODUCTS, title
from ..model.number import in_words, spans
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import run_target
from .elements import AccessedElements, KnownTensor, TensorLine
from .explainers.suspect import Suspect, blamed, share
from .follow import copied, in_shape, results_among
from .roles import Roles

# What is compared, from the coarse to the fine. Key heads are compared on both sides.
_LEVELS = ("b", "h", "g", "bh", "bg", "bhm", "bgn")
_UNITS = ("thread", "warp", "block")
_INPUTS = ("q", "k", "v", "do", "o")
# What kernels make and read again is called as it is where it is an input.
_CALLED = {name: own for own, name in DERIVED.items()}
# The axes of what is stored and of what is summed over.
_ROW_AND_KEY = {name: ("bgn", "bhm") if of.is_transposed else ("bhm", "bgn") for name, of in PRODUCTS.items()}


@dataclass(frozen=True)
class RecordedRun:
    """One run of a target whose CUDA kernels were recorded."""

    launches: tuple[AccessedElements, ...]
    """Those in which something known meets, in order."""
    by_thread: tuple[AccessedElements, ...]
    """Of those whose threads give each other nothing but copies of tensors, what each thread reads."""
    valid: Array
    """[B, H, M, N] bool."""
    has_zeros: bool
    """Whether P holds zeros where keys are seen: those of dropout and of lazy."""


def visited_run(experiment: Experiment, assigned: Assigned) -> RecordedRun | None:
    """Runs the target once more in a layout and records its accesses; None where it refused the layout."""
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    roles = Roles(case, attention_of(case, inputs.values), inputs.values)
    shapes = {value.shape for _, value in roles.whole()}
    learnt: list[KnownTensor] = []

    def learn(tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            for view in (view for shape in shapes for view in in_shape(tensor, shape)):
                if letters := copied(view, inputs.tensors, roles):
                    learnt.append(KnownTensor(name, letters, view, is_input=letters != "bhm"))

    recording = Recording(learn)
    outcome = run_target(experiment.target, case, inputs, recorded(recording))
    if outcome.trace is None:
        return None
    # What is passed to be written into, dq, is called what it becomes, dQ.
    called = {name: title(name) if name in OUTPUTS else name for name in inputs.tensors}
    given = [KnownTensor(called[x], case.input_axes(x), tensor, x in _INPUTS) for x, tensor in inputs.tensors.items()]
    known = [one for one in given if one.letters and len(one.letters) == one.tensor.dim()]
    held = [tensor for launch in recording.launches for _, tensor in launch.tensors]
    results = results_among(held, outcome.trace)
    found = [KnownTensor(_CALLED.get(x, x), case.axes(x), view, is_input=False) for x, view in results]
    for one in (*found, *learnt):  # the first of each storage
        known += [one] if one.home not in {other.home for other in known} else []
    launches = [AccessedElements(launch, known, case) for launch in recording.launches]
    apart = (launch for launch in recording.launches if launch.copies is not None and launch.together == BLOCK)
    by_thread = tuple(AccessedElements(launch, known, case, by_thread=True) for launch in apart)
    has_zeros = bool(case.dropout) or case.family == "lazy"
    return RecordedRun(_of_attention(launches), by_thread, roles.valid, has_zeros)


def _of_attention(launches: Sequence[AccessedElements]) -> tuple[AccessedElements, ...]:
    """The launches that read two tensors and more than inputs, without stores that a later kernel writes over."""
    found = []
    for number, elements in enumerate(launches):
        others = (other for other in launches[number + 1 :] if other.kernel != elements.kernel)
        later = {place.name for other in others for place in other.places if not place.is_load}
        elements.drop([place for place in elements.places if not place.is_load and place.name in later])
        touched = [elements.places[place] for place in np.unique(elements.place)]
        loads = {place.name for place in touched if place.is_load}
        if len(loads) > 1 and not all(place.is_input for place in touched):
            found.append(elements)
    return tuple(found)


def misread(run: RecordedRun, wrong: Sequence[str]) -> list[Suspect]:
    """The lines that touch other elements than they should; where there are none, what is left out.

    Args:
        wrong: the results that are wrong.
    """
    judges = [_Judge(elements) for elements in run.launches]
    right = [site for judge in judges for site in judge.right()]
    return [one for judge in judges for one in judge.suspects(right)] or list(_left_out(run, wrong))


# By unit and place, the numbers of what is touched there.
_Sets = Mapping[int, Mapping[int, set[int]]]
# A level, and by its numbers what a place touches, what the others agree on, and who they are.
_Foreign = tuple[str, set[int], set[int], set[str]]


@dataclass(frozen=True)
class _Stray:
    """What a place touches in one unit and nothing else does."""

    letter: str
    """The first in which what is touched and what the others agree on are not the same."""
    here: Sequence[int]
    """What it touches, by that letter; empty where that is no element."""
    there: Sequence[int]
    """What the others agree on."""
    others: tuple[str, ...]


class _Judge:
    """Compares the places of one launch, unit by unit."""

    def __init__(self, elements: AccessedElements) -> None:
        self._elements, self._places = elements, elements.places

    def suspects(self, right: Sequence[Site]) -> list[Suspect]:
        return [self._suspect(number, right) for number in sorted(self._accused)]

    def right(self) -> list[Site]:
        """The places that are accused of nothing."""
        return [_site(self._elements, x) for number, x in enumerate(self._places) if number not in self._accused]

    @cached_property
    def _accused(self) -> dict[int, list[_Stray]]:
        """The places that touch what no other does, and not what all others do: once for each unit."""
        lacking = set(self._short())
        strays: dict[tuple[int, int], _Foreign] = {}
        for level in _LEVELS:
            for unit, here in self._sets[level].items():
                for place, foreign, lacks in self._compared(level, here):
                    lacking |= {(unit, place)} if lacks else set()
                    # Of what lies outside it is told which head it should have been of.
                    if foreign and (unit, place) not in strays or (foreign and not foreign[1] and len(level) < 3):
                        strays[unit, place] = foreign
        found = {each: stray for each, stray in strays.items() if each in lacking}
        accused: dict[int, list[_Stray]] = {}
        for unit, place in sorted(found):
            accused.setdefault(place, []).append(self._stray(*found[unit, place]))
        return accused

    @cached_property
    def _sets(self) -> dict[str, _Sets]:
        """By level; of units that read a whole row of a tensor, which no copy or conversion by element does."""
        whole = {unit for unit, number, lacks in self._dims() if not lacks and self._places[number].is_load}
        found = {level: self._elements.sets(level) for level in _LEVELS}
        return {level: {u: each for u, each in units.items() if u in whole} for level, units in found.items()}

    def _dims(self) -> Iterator[tuple[int, int, bool]]:
        """Units and places of tensors with dims, and whether one of these is not touched there."""
        for letter in "de":
            (size,) = self._elements.size(letter)
            for unit, places in self._elements.sets(letter).items():
                yield from ((unit, number, len(keys - {OUTSIDE}) < size) for number, keys in places.items())

    def _short(self) -> Iterator[tuple[int, int]]:
        """Where loads leave their tensor and miss some of its dims, as one does that takes the last stride for 1."""
        for unit, number, lacks in self._dims():
            if lacks and self._places[number].is_load and OUTSIDE in self._sets["b"].get(unit, {}).get(number, ()):
                yield unit, number

    def _compared(self, level: str, here: Mapping[int, set[int]]) -> Iterator[tuple[int, _Foreign | None, bool]]:
        """Each place with what it alone touches, and whether it lacks what the others agree on."""
        by_tensor = self._by_tensor(here)
        agreed = self._agreed(level, by_tensor)
        good = {name for name, keys in by_tensor.items() if agreed <= keys} if agreed else set[str]()
        for number, keys in here.items():
            others = good - {self._places[number].name}
            if len(others) < min(2, len(by_tensor) - 1) or not others:
                continue
            alone = keys - _union({name: by_tensor[name] for name in others})
            shown = keys - {OUTSIDE} if alone != {OUTSIDE} else set[int]()
            loads = {self._places[other].name for other in here if self._places[other].is_load}
            foreign = (level, shown, agreed, others & loads or others) if alone else None
            yield number, foreign, bool(agreed - keys)

    def _stray(self, level: str, here: set[int], there: set[int], others: set[str]) -> _Stray:
        sides = [[self._elements.index(level, key) for key in keys] for keys in (here, there)]
        apart = [[sorted({each[axis] for each in side}) for side in sides] for axis in range(len(level))]
        # Of what lies outside nothing is known but where it should have been.
        different = [at for at, (its, due) in enumerate(apart) if its != due and here]
        at = different[0] if different else len(level) - 1
        its, due = apart[at]
        return _Stray(level[at], its, due, tuple(sorted(others)))

    def _by_tensor(self, here: Mapping[int, set[int]]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for number, keys in here.items():
            found.setdefault(self._places[number].name, set()).update(keys)
        return found

    def _agreed(self, level: str, by_tensor: Mapping[str, set[int]]) -> set[int]:
        """What most tensors touch. Of two, that which touches all over the launch what the other does, and more.

        Where the half says one thing and the half another, what is stored says what is worked on.
        """
        counts = Counter(key for keys in by_tensor.values() for key in keys if key != OUTSIDE)
        many = len(by_tensor)
        agreed = {key for key, count in counts.items() if 2 * count > many}
        if agreed or many < 2:
            return agreed
        if many == 2:
            (name, mine), (other, its) = by_tensor.items()
            total = self._totals[level]
            return mine if total[other] < total[name] else its if total[name] < total[other] else set()
        stored = {place.name for place in self._places if not place.is_load}
        return {k for k, n in counts.items() if 2 * n == many and any(k in by_tensor.get(name, ()) for name in stored)}

    @cached_property
    def _totals(self) -> dict[str, dict[str, set[int]]]:
        """By level and tensor, what the whole launch touches."""
        found: dict[str, dict[str, set[int]]] = {level: {} for level in _LEVELS}
        for level, units in self._sets.items():
            for here in units.values():
                for name, keys in self._by_tensor(here).items():
                    found[level].setdefault(name, set()).update(keys - {OUTSIDE})
        return found

    def _suspect(self, number: int, right: Sequence[Site]) -> Suspect:
        place, (first, *others) = self._places[number], self._accused[number]
        site, word = _site(self._elements, place), AXIS_WORDS[first.letter]
        verb, at = "read" if place.is_load else "written", f"at {_counted(word, first.here)}"
        reason = f"{place.name} is {verb} {at if first.here else 'outside its elements'} where it meets "
        reason += f"{_counted(word, first.there)} of {', '.join(first.others)}"
        alike = [one for one in (first, *others) if one.letter == first.letter and one.there]
        reached = {(one.there[0], one.here[0] if one.here else -1) for one in alike}
        return Suspect(
            site.operation, place.name, site, blamed(site, right), reason,
            share(1 + len(others), self._elements.count(number), _UNITS[self._elements.launch.together]),
            letter=first.letter, reached=tuple(sorted(pair for pair in reached if pair[0] != pair[1])),
        )  # fmt: skip


def _counted(word: str, numbers: Sequence[int]) -> str:
    return f"{word}{'s' if len(numbers) > 1 else ''} {in_words(spans(numbers), 4)}"


def _left_out(run: RecordedRun, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The results whose units never read the rows or keys that a sum of some pairs needs.

    A unit reads them for all that it stores, so a pair may be left out though they are read: this tells no such one.
    """
    for name in wrong:
        if name not in PRODUCTS or (run.has_zeros and name in ("dV", "O")):
            continue
        made: dict[Site, tuple[Array, Array]] = {}
        for elements in (*run.launches, *run.by_thread):
            visited, whole = _pairs_of(elements, name, run.valid)
            needed = run.valid & whole
            if (needed & ~visited).any():
                place = next(x for x in elements.places if x.name == PRODUCTS[name].other and x.is_load)
                # With those of a launch of the same kernel on other heads.
                before = made.get(_site(elements, place), (np.zeros_like(visited), np.zeros_like(visited)))
                made[_site(elements, place)] = visited | before[0], needed | before[1]
        yield from (_lacking(name, site, *pairs) for site, pairs in made.items())


def _pairs_of(elements: AccessedElements, name: str, valid: Array) -> tuple[Array, Array]:
    """[B, H, M, N] bool: the pairs that what is stored is made of, and all those of its rows, or keys."""
    visited, whole = np.zeros_like(valid), np.zeros_like(valid)
    stored, summed = _ROW_AND_KEY[name]
    stores = elements.sets(stored, lambda place: place.name == _CALLED.get(name, name) and not place.is_load)
    loads = elements.sets(summed, lambda place: place.name == PRODUCTS[name].other and place.is_load)
    for unit, by_place in stores.items() if loads and elements.launch.one_of == 1 else ():
        made, read = (_union(each) for each in (by_place, loads.get(unit, {})))
        sides = {stored: elements.mask(stored, made), summed: elements.mask(summed, read)}
        visited |= sides["bhm"][..., None] & sides["bgn"][:, :, None]
        whole |= sides["bhm"][..., None] if stored == "bhm" else sides["bgn"][:, :, None]
    return visited, whole


def _lacking(name: str, site: Site, visited: Array, needed: Array) -> Suspect:
    missing = needed & ~visited
    b, h, m, n = (int(at) for at in np.argwhere(missing)[0])
    is_of_rows = _ROW_AND_KEY[name][0] == "bhm"
    read = np.flatnonzero(visited[b, h, m] if is_of_rows else visited[b, h, :, n]).tolist()
    lane, others = (f"row {m}", "key") if is_of_rows else (f"key {n}", "row")
    summed = title(PRODUCTS[name].other)
    those = f"{summed} at {_counted(others, read)}" if read else f"nothing of {summed}"
    reason = f"{int(missing.sum()):,} pairs of a row and a key are left out, the first of row {m} and key {n} "
    reason += f"(batch {b}, head {h}); what is stored for {lane} reads {those}"
    return Suspect("pairs", name, site, site.lines[:1], reason, share(int(missing.sum()), int(needed.sum()), "pair"))


def _site(elements: AccessedElements, place: TensorLine) -> Site:
    return Site(elements.kernel, place.lines, "load" if place.is_load else "store", 0)


def _union(by_place: Mapping[Any, set[int]]) -> set[int]:
    return set[int]().union(*by_place.values())
