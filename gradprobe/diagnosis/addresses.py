"""Addresses: the lines of CUDA kernels that read or write other elements than those they work with.

In what one block works on by itself, q, dO, O, LSE, delta and dQ belong to the same rows of the same heads, and k, v,
dK and dV to the same keys of the heads that those read. Two lines that touch different ones meet as two tiles of a
Triton kernel do that disagree, and the same vote says which is at fault. Names, block numbers and values play no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..frontends.cuda import BLOCK, THREAD, WARP, Recorded, Recording, recorded
from ..frontends.triton.interpreter.dataflow import AccessLine, Conflict, Flow, Site
from ..frontends.triton.interpreter.dataflow.lanes import NOWHERE, OUTSIDE, IndexTable
from ..inputs.memory import Array, elements_of
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import OUTPUTS, Assigned
from ..model.case import Case
from ..model.intermediates import DERIVED, PRODUCTS, title
from ..model.number import in_words, spans
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import run_target
from ..runtime.trace import Trace
from ..source.text import SourceLine
from .explainers.diagnoses import Suspect
from .explainers.misread import misread_in
from .explainers.sums import left_out
from .follow import copied, in_shape, results_among
from .roles import Roles

_LETTERS = "bhgmnde"
_MOST_THREADS, _LANES = 1024, 32
# What is compared, from the coarse to the fine. Key heads are compared on both sides.
_LEVELS = ("b", "h", "g", "bh", "bg", "bhm", "bgn")
_INPUTS = ("q", "k", "v", "do", "o")
# What kernels make and read again is called as it is where it is an input.
_CALLED = {name: own for own, name in DERIVED.items()}

Touched = dict[int, dict[int, set[int]]]
"""By unit and place: what is touched there, as numbers of the indices of some letters; OUTSIDE for no element."""


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
        return self.tensor.untyped_storage().data_ptr()


class AccessedElements:
    """What the threads of one launch read and wrote of tensors that are known, each element once a unit.

    A unit is what no other gives values to: a block, a warp or a thread of a kernel that shares nothing further.
    """

    def __init__(self, launch: Recorded, known: Sequence[KnownTensor], case: Case) -> None:
        self.launch, self.kernel, self.case = launch, launch.entry.name, case
        self._touched: dict[AccessLine, Array] = {}
        """By line that reads one tensor, or writes it: [unit and an index a letter, accesses]."""
        self._inlined = launch.lines(sorted({int(each) for each in np.unique(launch.records["pc"])} - {0}))
        for home in {tensor.home for tensor in known}:
            self._read([tensor for tensor in known if tensor.home == home])

    @property
    def places(self) -> list[AccessLine]:
        return [*self._touched]

    def _read(self, known: Sequence[KnownTensor]) -> None:
        """Notes what was touched of the tensors of one storage."""
        home, width = known[0].home, known[0].tensor.element_size()
        end = home + known[0].tensor.untyped_storage().nbytes()
        regions = [number for number, base in enumerate(self.launch.bases) if home <= base < end]
        records = self.launch.records[np.isin(self.launch.records["region"], regions)]
        # An access of several elements is one of each.
        many = np.maximum(records["bytes"].astype(np.int64) // width, 1)
        step = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        records = np.repeat(records, many)
        offset, rest = np.divmod(records["address"].astype(np.int64) + step * width - home, width)
        for tensor in known:
            first = (tensor.tensor.data_ptr() - home) // width
            sizes = {letter: self.case.size(letter) for letter in _LETTERS}
            table = IndexTable(elements_of(tensor.tensor), tensor.letters, sizes)
            at = table.at(np.where(rest == 0, offset - first, -1))
            indices = np.stack([at.get(letter, np.full(len(records), NOWHERE)) for letter in _LETTERS])
            # What is no element belongs to the one tensor that lies there; of several it could be any.
            is_own = (indices[0] != OUTSIDE) | (len(known) == 1)
            self._note(tensor.name, records[is_own], indices[:, is_own])
            records, offset, rest = records[~is_own], offset[~is_own], rest[~is_own]

    def _note(self, name: str, records: Array, indices: Array) -> None:
        chains = np.vstack([records["pc"].T, records["access"] == 0]).astype(np.int64)
        _, first, chain = np.unique(_hashes(chains), return_index=True, return_inverse=True)
        thread = records["thread"].astype(np.int64)
        within = {BLOCK: thread * 0, WARP: thread // _LANES}.get(self.launch.together, thread)
        rows = np.vstack([records["block"].astype(np.int64) * _MOST_THREADS + within, indices])
        for number, (*addresses, is_load) in enumerate(chains[:, first].T.tolist()):
            site = Site(self.kernel, self._lines(addresses), "load" if is_load else "store", 0)
            place, own = AccessLine(name, site), rows[:, chain.reshape(-1) == number]
            own = np.concatenate([self._touched.get(place, own[:, :0]), own], 1)
            self._touched[place] = own[:, np.unique(_hashes(own), return_index=True)[1]]

    def _lines(self, chain: Sequence[int]) -> tuple[SourceLine, ...]:
        inwards = [line for address in chain if address for line in self._inlined[address]]
        source = self.launch.entry.source
        files = (source.path.name, *(path.name for path, _ in source.included))
        return tuple(line for line in reversed(inwards) if line.file.endswith(files))

    def forget_stores(self, names: set[str]) -> None:
        """As if nothing had been stored to some tensors."""
        kept = [place for place in self._touched if _is_load(place) or place.tensor not in names]
        self._touched = {place: self._touched[place] for place in kept}

    def size(self, letters: str) -> tuple[int, ...]:
        return tuple(self.case.size(letter) for letter in letters)

    def sets(self, level: str, name: str = "", *, is_load: bool = True) -> Touched:
        """What is touched by some letters; nothing of tensors that lack one.

        Args:
            name: the tensor whose loads, or stores, are meant; "" for all.
        """
        found, several = Touched(), math.prod(self.size(level)) - OUTSIDE
        for number, (place, rows) in enumerate(self._touched.items()):
            if name and (place.tensor, _is_load(place)) != (name, is_load):
                continue
            indices = rows[[1 + _LETTERS.index(letter) for letter in level]]
            is_known = (indices != NOWHERE).all(0)
            keys = np.ravel_multi_index(tuple(np.maximum(indices, 0)), self.size(level))
            keys = np.where(indices[0] == OUTSIDE, OUTSIDE, keys)
            pairs = np.unique((rows[0] * several + keys - OUTSIDE)[is_known])
            for unit, key in zip(*(each.tolist() for each in np.divmod(pairs, several)), strict=True):
                found.setdefault(unit, {}).setdefault(number, set()).add(key + OUTSIDE)
        return found


def _is_load(place: AccessLine) -> bool:
    return place.site.operation == "load"


def _hashes(rows: Array) -> Array:
    """A number for each column: different ones for different columns, as good as surely."""
    factors = np.random.default_rng(0).integers(0, 1 << 63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (rows.astype(np.uint64) * factors[:, None]).sum(0, dtype=np.uint64)


# --- one run


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
    copies: list[KnownTensor] = []

    def learn(tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            for view in (view for shape in shapes for view in in_shape(tensor, shape)):
                if letters := copied(view, inputs.tensors, roles):
                    copies.append(KnownTensor(name, letters, view, is_input=letters != "bhm"))

    recording = Recording(learn)
    outcome = run_target(experiment.target, case, inputs, recorded(recording))
    if outcome.trace is None:
        return None
    known = _known_tensors(case, inputs, recording, outcome.trace, copies)
    of_inputs = {tensor.name for tensor in known if tensor.is_input}
    launches = _of_attention([AccessedElements(launch, known, case) for launch in recording.launches], of_inputs)
    by_thread = []
    for launch in recording.launches:
        if launch.copies is not None and launch.together == BLOCK:
            records = np.concatenate([launch.copies, launch.records[launch.records["is_copied"] == 0]])
            by_thread.append(AccessedElements(replace(launch, records=records, together=THREAD), known, case))
    return RecordedRun(tuple(launches), tuple(by_thread), roles.valid, bool(case.dropout) or case.family == "lazy")


def _known_tensors(
    case: Case, inputs: Inputs, recording: Recording, trace: Trace, copies: Sequence[KnownTensor]
) -> list[KnownTensor]:
    """The inputs, the results, and copies of inputs: the first of each storage."""
    known = []
    for name, tensor in inputs.tensors.items():
        letters = case.input_axes(name)
        if letters and len(letters) == tensor.dim():
            # What is passed to be written into, dq, is called what it becomes, dQ.
            known.append(KnownTensor(title(name) if name in OUTPUTS else name, letters, tensor, name in _INPUTS))
    launched = [tensor for launch in recording.launches for _, tensor in launch.tensors]
    found = results_among(launched, trace)
    results = [KnownTensor(_CALLED.get(name, name), case.axes(name), view, False) for name, view in found]
    for each in (*results, *copies):
        if all(each.home != other.home for other in known):
            known.append(each)
    return known


def _of_attention(launches: Sequence[AccessedElements], inputs: set[str]) -> Iterator[AccessedElements]:
    """The launches that read two tensors and more than inputs, without stores that a later kernel writes over."""
    for number, elements in enumerate(launches):
        later = [other for other in launches[number + 1 :] if other.kernel != elements.kernel]
        elements.forget_stores({place.tensor for other in later for place in other.places if not _is_load(place)})
        loads = {place.tensor for place in elements.places if _is_load(place)}
        if len(loads) > 1 and not {place.tensor for place in elements.places} <= inputs:
            yield elements


# --- what disagrees


def misread(run: RecordedRun, wrong: Sequence[str]) -> list[Suspect]:
    """The lines that touch other elements than they should; where there are none, what is left out.

    Args:
        wrong: the results that are wrong.
    """
    flow = Flow(lambda view: "", {}, lambda data, lanes: None)
    for elements in run.launches:
        _compare(flow, elements)
    return [*misread_in(flow)] or [*_left_out(run, wrong)]


def _compare(flow: Flow, elements: AccessedElements) -> None:
    """Notes the places of one launch that disagree: each touches in one unit what the other does not.

    What a place touches and none of another tensor's does is compared with what it lacks of that: a part is right.
    """
    offset, places = len(flow.sources), elements.places
    flow.sources += places
    whole, short = _rows_of(elements)
    apart: set[tuple[int, int, str]] = set()
    for level in _LEVELS:
        for unit, here in elements.sets(level).items():
            by_tensor: dict[str, set[int]] = {}
            for place, keys in here.items() if unit in whole else ():
                by_tensor.setdefault(places[place].tensor, set()).update(keys)
                if len(level) == 1:
                    empty = np.zeros(elements.size(level), bool)
                    flow.reached.setdefault((place + offset, level), empty)[sorted(keys - {OUTSIDE})] = True
            met = [(place, keys, name) for place, keys in here.items() for name in by_tensor]
            for place, keys, name in met:
                if name == places[place].tensor or (unit, place, name) in apart:
                    continue
                alone, due = keys - by_tensor[name], by_tensor[name] - keys - {OUTSIDE}
                if OUTSIDE in alone and (unit, place) in short:
                    alone, due = {OUTSIDE}, by_tensor[name] - {OUTSIDE}
                if not alone or not due:
                    flow.agreed[place + offset, level] += 1
                    continue
                apart.add((unit, place, name))
                others = [other + offset for other in here if places[other].tensor == name and here[other] & due]
                letter, example = _example(elements, level, alone, due)
                flow.irregular |= {place + offset} if example[0] == OUTSIDE else set()
                sides = frozenset([place + offset]), frozenset(others)
                flow.conflicts.append(Conflict(places[place].site, letter, *sides, example))


def _rows_of(elements: AccessedElements) -> tuple[set[int], set[tuple[int, int]]]:
    """The units that read a whole row of a tensor, which no copy or conversion by element does; the units and loads
    that miss some dims, as one does that takes the last stride for 1."""
    whole, short, places = set[int](), set[tuple[int, int]](), elements.places
    for letter in "de":
        (size,) = elements.size(letter)
        for unit, here in elements.sets(letter).items():
            for place, keys in here.items():
                if _is_load(places[place]) and len(keys - {OUTSIDE}) < size:
                    short.add((unit, place))
                elif _is_load(places[place]):
                    whole.add(unit)
    return whole, short


def _example(elements: AccessedElements, level: str, alone: set[int], due: set[int]) -> tuple[str, tuple[int, int]]:
    """The first letter in which two places differ, and its index in each."""
    there, inside = np.unravel_index(min(due), elements.size(level)), alone - {OUTSIDE}
    if not inside:
        return level[-1], (OUTSIDE, int(there[-1]))
    here = np.unravel_index(min(inside), elements.size(level))
    at = next(at for at in range(len(level)) if here[at] != there[at])
    return level[at], (int(here[at]), int(there[at]))


def _left_out(run: RecordedRun, wrong: Sequence[str]) -> Iterator[Suspect]:
    """The results whose units never read the rows or keys that a sum of some pairs needs.

    A unit reads them for all that it stores, so a pair may be left out though they are read: this tells no such one.
    """
    for name in wrong:
        if name not in PRODUCTS or (run.has_zeros and name in ("dV", "O")):
            continue
        other, is_by_row = PRODUCTS[name].other, not PRODUCTS[name].is_transposed
        found: dict[Site, tuple[Array, Array]] = {}
        for elements in (*run.launches, *run.by_thread):
            visited, whole = _pairs_of(elements, name, run.valid)
            if (run.valid & whole & ~visited).any():
                site = next(place.site for place in elements.places if place.tensor == other and _is_load(place))
                # With those of a launch of the same kernel on other heads.
                before = found.get(site, (visited, whole))
                found[site] = visited | before[0], whole | before[1]
        for site, (visited, whole) in found.items():
            missing = run.valid & whole & ~visited
            b, h, m, n = (int(at) for at in np.argwhere(missing)[0])
            reads = np.flatnonzero(visited[b, h, m] if is_by_row else visited[b, h, :, n]).tolist()
            lane, others = (f"row {m}", "keys") if is_by_row else (f"key {n}", "rows")
            those = f"{title(other)} at {others} {in_words(spans(reads), 4)}" if reads else f"nothing of {title(other)}"
            reason = f"{left_out(missing)}; what is stored for {lane} reads {those}"
            yield Suspect("pairs", name, site, site.lines[:1], reason)


def _pairs_of(elements: AccessedElements, name: str, valid: Array) -> tuple[Array, Array]:
    """[B, H, M, N] bool: the pairs that what is stored is made of, and all those of its rows, or keys."""
    visited, whole = np.zeros_like(valid), np.zeros_like(valid)
    stored, summed = ("bgn", "bhm") if PRODUCTS[name].is_transposed else ("bhm", "bgn")
    loads = elements.sets(summed, PRODUCTS[name].other)
    if not loads or elements.launch.one_of > 1:
        return visited, whole
    for unit, by_place in elements.sets(stored, _CALLED.get(name, name), is_load=False).items():
        is_stored = _mask(elements, stored, by_place)
        visited |= is_stored & _mask(elements, summed, loads.get(unit, {}))
        whole |= is_stored
    return visited, whole


def _mask(elements: AccessedElements, level: str, by_place: Mapping[int, set[int]]) -> Array:
    """What is touched in one unit, [B, H, M, 1] or [B, H, 1, N]."""
    found = np.zeros(elements.size(level), bool)
    for keys in by_place.values():
        found.reshape(-1)[sorted(keys - {OUTSIDE})] = True
    if "g" not in level:
        return found[..., None]
    return np.repeat(found, elements.case.heads // elements.case.kv_heads, 1)[:, :, None]
