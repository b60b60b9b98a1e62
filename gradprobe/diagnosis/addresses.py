"""Addresses: the lines of CUDA kernels that read or write other elements than those they work with.

In what one block works on by itself, q, dO, O, LSE, delta and dQ belong to the same rows of the same heads, and k, v,
dK and dV to the same keys of the heads that those read. Two lines that touch different ones meet as two tiles of a
Triton kernel do that disagree, and the same vote says which is at fault. Names, block numbers and values play no part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..frontends.cuda import BLOCK, WARP, Recorded, Recording, recorded
from ..frontends.triton.interpreter.dataflow import AccessLine, Conflict, Flow, Site
from ..frontends.triton.interpreter.dataflow.lanes import NOWHERE, OUTSIDE, IndexTable
from ..inputs.memory import Array, elements_of
from ..model.assignment import OUTPUTS, Assigned
from ..model.case import Case
from ..model.intermediates import DERIVED, title
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..source.text import SourceLine
from .explainers.misread import misread_in
from .explainers.suspect import Suspect
from .follow import copied, in_shape, results_among
from .roles import Roles

_LETTERS = "bhgmnde"
_MOST_THREADS, _LANES = 1024, 32
# What is compared, from the coarse to the fine. Key heads are compared on both sides.
_LEVELS = ("b", "h", "g", "bh", "bg", "bhm", "bgn")
_INPUTS = ("q", "k", "v", "do", "o")
# What kernels make and read again is called as it is where it is an input.
_CALLED = {name: own for own, name in DERIVED.items()}


@dataclass(frozen=True)
class KnownTensor:
    """A tensor whose axes are known."""

    name: str
    letters: str
    tensor: Tensor
    is_input: bool
    """Whether it is q, k, v, dO or O, or a copy of one."""

    @property
    def home(self) -> int:
        """The address of its storage."""
        return self.tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class TensorLine:
    """One line that reads one tensor, or writes it."""

    name: str
    is_load: bool
    is_input: bool
    lines: tuple[SourceLine, ...]
    """The line in the kernel, then those in the functions that it called to get there."""


class AccessedElements:
    """What the threads of one launch read and wrote of tensors that are known, each element once a unit.

    A unit is what no other gives values to: a block, a warp or a thread of a kernel that shares nothing further.
    """

    def __init__(self, launch: Recorded, known: Sequence[KnownTensor], case: Case) -> None:
        self.launch, self.kernel, self._case = launch, launch.entry.name, case
        self.places: list[TensorLine] = []
        parts = [np.empty((2 + len(_LETTERS), 0), np.int64)]
        for home in {one.home for one in known}:
            parts += self._of_home([one for one in known if one.home == home])
        self.unit, self.place, *indices = np.concatenate(parts, 1)
        self.at: dict[str, Array] = dict(zip(_LETTERS, indices, strict=True))

    def _of_home(self, known: Sequence[KnownTensor]) -> Iterator[Array]:
        """For each tensor of one storage: units, places, and the index of each letter."""
        home, width = known[0].home, known[0].tensor.element_size()
        end = home + known[0].tensor.untyped_storage().nbytes()
        regions = [number for number, base in enumerate(self.launch.bases) if home <= base < end]
        records = self.launch.records[np.isin(self.launch.records["region"], regions)]
        # An access of several elements is one of each.
        many = np.maximum(records["bytes"] // width, 1)
        step = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        records = np.repeat(records, many)
        address = records["address"].astype(np.int64) + step * width
        left = np.ones(len(records), bool)
        for one in known:
            found = _indices(one, self._case, address)
            # What is no element belongs to the one tensor that lies there; of several it could be any.
            own = left & ((found[0] != OUTSIDE) | (len(known) == 1))
            left &= ~own
            if own.any():
                yield self._columns(one, records[own], [each[own] for each in found])

    def _columns(self, one: KnownTensor, records: Array, found: Sequence[Array]) -> Array:
        chains = np.vstack([records["pc"].T, records["access"] == 0]).astype(np.int64)
        _, first, chain = np.unique(_hashes(chains), return_index=True, return_inverse=True)
        numbers = []
        for *addresses, is_load in chains[:, first].T.tolist():
            place = TensorLine(one.name, bool(is_load), one.is_input, self._lines(addresses))
            if place not in self.places:
                self.places.append(place)
            numbers.append(self.places.index(place))
        thread = records["thread"].astype(np.int64)
        within = {BLOCK: thread * 0, WARP: thread // _LANES}.get(self.launch.together, thread)
        unit = records["block"].astype(np.int64) * _MOST_THREADS + within
        return _distinct(np.stack([unit, np.array(numbers)[chain.reshape(-1)], *found]))

    def _lines(self, chain: Sequence[int]) -> tuple[SourceLine, ...]:
        inwards = [line for address in chain if address for line in self._of_address[address]]
        return tuple(line for line in reversed(inwards) if line.file.endswith(self._files))

    @cached_property
    def _of_address(self) -> Mapping[int, tuple[SourceLine, ...]]:
        return self.launch.lines(sorted({int(each) for each in np.unique(self.launch.records["pc"])} - {0}))

    @cached_property
    def _files(self) -> tuple[str, ...]:
        source = self.launch.entry.source
        return (source.path.name, *(path.name for path, _ in source.included))

    def drop(self, places: Collection[TensorLine]) -> None:
        """Forgets what some places touch."""
        kept = np.array([place not in places for place in self.places], bool)[self.place]
        self.unit, self.place = self.unit[kept], self.place[kept]
        self.at = {letter: index[kept] for letter, index in self.at.items()}

    def size(self, letters: str) -> tuple[int, ...]:
        return tuple(self._case.size(letter) for letter in letters)

    def sets(self, level: str) -> dict[int, dict[int, set[int]]]:
        """By unit and place: what is touched there, as numbers of the indices of some letters; OUTSIDE for no element.

        Args:
            level: the letters. Places of tensors that lack one are left out.
        """
        kept = np.logical_and.reduce([self.at[letter] != NOWHERE for letter in level])
        indices = [self.at[letter][kept] for letter in level]
        keys = np.where(indices[0] == OUTSIDE, OUTSIDE, np.ravel_multi_index(np.maximum(indices, 0), self.size(level)))
        found: dict[int, dict[int, set[int]]] = {}
        for unit, place, key in _distinct(np.stack([self.unit[kept], self.place[kept], keys])).T.tolist():
            found.setdefault(unit, {}).setdefault(place, set()).add(key)
        return found

    def index(self, level: str, key: int) -> tuple[int, ...]:
        """The indices that a number of `sets` stands for."""
        return tuple(map(int, np.unravel_index(max(key, 0), self.size(level))))


def _indices(one: KnownTensor, case: Case, address: Array) -> list[Array]:
    """By letter, the index of the element at each address."""
    offset, rest = np.divmod(address - one.tensor.data_ptr(), one.tensor.element_size())
    sizes = {letter: case.size(letter) for letter in _LETTERS}
    found = IndexTable(elements_of(one.tensor), one.letters, sizes).at(np.where(rest == 0, offset, -1))
    return [found.get(letter, np.full(len(address), NOWHERE)) for letter in _LETTERS]


def _distinct(rows: Array) -> Array:
    """The different columns."""
    return rows[:, np.unique(_hashes(rows), return_index=True)[1]]


def _hashes(rows: Array) -> Array:
    """A number for each column: different ones for different columns, as good as surely."""
    factors = np.random.default_rng(0).integers(0, 1 << 63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.uint64) * factors[:, None]).sum(0, dtype=np.uint64)


# --- one run


def visited_run(experiment: Experiment, assigned: Assigned) -> list[AccessedElements]:
    """Runs the target once more in a layout and records its accesses.

    Returns:
        The launches in which something known meets, in order; none where the target refused the layout.
    """
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    roles = Roles(case, attention_of(case, inputs.values), inputs.values)
    shapes = {value.shape for _, value in roles.whole()}
    copies: list[KnownTensor] = []

    def learn(tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            for view in (view for shape in shapes for view in in_shape(tensor, shape)):
                if letters := copied(view, inputs.tensors, roles):
                    copies.append(KnownTensor(name, letters, view, is_input=letters != "bhm"))

    recording = Recording(learn)
    outcome = run_target(experiment.target, case, inputs, recorded(recording))
    if outcome.trace is None:
        return []
    known = _inputs(case, inputs.tensors)
    for one in (*_results(case, recording, outcome.trace), *copies):
        if one.home not in {other.home for other in known}:
            known.append(one)
    return _of_attention([AccessedElements(launch, known, case) for launch in recording.launches])


def _inputs(case: Case, tensors: Mapping[str, Tensor]) -> list[KnownTensor]:
    found = []
    for name, tensor in tensors.items():
        letters = case.input_axes(name)
        if letters and len(letters) == tensor.dim():
            # What is passed to be written into, dq, is called what it becomes, dQ.
            found.append(KnownTensor(title(name) if name in OUTPUTS else name, letters, tensor, name in _INPUTS))
    return found


def _results(case: Case, recording: Recording, trace: Trace) -> Iterator[KnownTensor]:
    tensors = [tensor for launch in recording.launches for _, tensor in launch.tensors]
    for name, view in results_among(tensors, trace):
        yield KnownTensor(_CALLED.get(name, name), case.axes(name), view, is_input=False)


def _of_attention(launches: Sequence[AccessedElements]) -> list[AccessedElements]:
    """The launches that read two tensors and more than inputs, without stores that a later kernel writes over."""
    found = []
    for number, elements in enumerate(launches):
        later = set[str]()
        for other in launches[number + 1 :]:
            if other.kernel != elements.kernel:
                later.update(place.name for place in other.places if not place.is_load)
        elements.drop([place for place in elements.places if not place.is_load and place.name in later])
        touched = [elements.places[place] for place in np.unique(elements.place)]
        loads = {place.name for place in touched if place.is_load}
        if len(loads) > 1 and not all(place.is_input for place in touched):
            found.append(elements)
    return found


# --- what disagrees


def misread(launches: Sequence[AccessedElements]) -> list[Suspect]:
    """The lines that touch other elements than they should."""
    flow = Flow(lambda view: "", {}, lambda data, lanes: None)
    for elements in launches:
        _Meetings(flow, elements).compare()
    return [*misread_in(flow)]


class _Meetings:
    """The places of one launch, which disagree where each touches in one unit what the other does not.

    What a place touches and none of another tensor's does is compared with what it lacks of that: a part is right.
    """

    def __init__(self, flow: Flow, elements: AccessedElements) -> None:
        self._flow, self._elements, self._offset = flow, elements, len(flow.sources)
        for place in elements.places:
            site = Site(elements.kernel, place.lines, "load" if place.is_load else "store", 0)
            flow.sources.append(AccessLine(place.name, site))
        self._whole: set[int] = set()
        """Units that read a whole row of a tensor, which no copy or conversion by element does."""
        self._short: set[tuple[int, int]] = set()
        """Units and loads that miss some dims, as one does that takes the last stride for 1."""
        self._apart: set[tuple[int, int, str]] = set()
        """Units and places with the tensors that these disagree with."""
        for letter in "de":
            (size,) = elements.size(letter)
            for unit, here in elements.sets(letter).items():
                for number, keys in here.items():
                    if elements.places[number].is_load and len(keys - {OUTSIDE}) < size:
                        self._short.add((unit, number))
                    elif elements.places[number].is_load:
                        self._whole.add(unit)

    def compare(self) -> None:
        """Notes what disagrees, from the coarse to the fine."""
        for level in _LEVELS:
            for unit, here in self._elements.sets(level).items():
                if unit in self._whole:
                    self._compare_unit(level, unit, here)

    def _compare_unit(self, level: str, unit: int, here: Mapping[int, set[int]]) -> None:
        by_tensor: dict[str, set[int]] = {}
        for place, keys in here.items():
            by_tensor.setdefault(self._elements.places[place].name, set()).update(keys)
            if len(level) == 1:
                size = self._elements.size(level)
                reached = self._flow.reached.setdefault((place + self._offset, level), np.zeros(size, bool))
                reached[sorted(keys - {OUTSIDE})] = True
        for place in here:
            for name, others in by_tensor.items():
                is_other = name != self._elements.places[place].name
                if is_other and (unit, place, name) not in self._apart:
                    self._compare_place(level, unit, place, here, name, others)

    def _compare_place(
        self, level: str, unit: int, place: int, here: Mapping[int, set[int]], name: str, others: set[int]
    ) -> None:
        flow, number = self._flow, place + self._offset
        alone, due = here[place] - others, others - here[place] - {OUTSIDE}
        if OUTSIDE in alone and (unit, place) in self._short:
            alone, due = {OUTSIDE}, others - {OUTSIDE}
        if not alone or not due:
            flow.agreed[number, level] += 1
            return
        self._apart.add((unit, place, name))
        met = set[int]()
        for other, keys in here.items():
            if self._elements.places[other].name == name and keys & due:
                met.add(other + self._offset)
        letter, example = self._example(level, alone, due)
        if example[0] == OUTSIDE:
            flow.irregular.add(number)
        site = flow.sources[number].site
        flow.conflicts.append(Conflict(site, letter, frozenset([number]), frozenset(met), example))

    def _example(self, level: str, alone: set[int], due: set[int]) -> tuple[str, tuple[int, int]]:
        """The first letter in which two places differ, and its index in each."""
        there, inside = self._elements.index(level, min(due)), alone - {OUTSIDE}
        if not inside:
            return level[-1], (OUTSIDE, there[-1])
        here = self._elements.index(level, min(inside))
        at = next(at for at in range(len(level)) if here[at] != there[at])
        return level[at], (here[at], there[at])
