"""Lines of CUDA kernels that touch other elements than the rest of their block."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from operator import attrgetter, eq, itemgetter

import numpy as np
from torch import Tensor

from ..frontends import Launches
from ..frontends.cuda.watch import BLOCK, THREAD, WARP, RecordedAccesses
from ..frontends.triton.interpreter.dataflow import AccessLine, Conflict, Flow, Site
from ..frontends.triton.interpreter.dataflow.lanes import NOWHERE, OUTSIDE, indices_at
from ..inputs.memory import Array, elements_of
from ..inputs.tensor_layouts import Inputs
from ..model.assignment import OUTPUTS, Assigned
from ..model.case import Case
from ..model.intermediates import DERIVED, PRODUCTS, title
from ..model.number import in_words, spans
from ..numerics.compare import attention_of
from ..probing.experiment import Experiment, inputs_of
from ..runtime.run import run_target
from ..source.syntax import SourceLine
from .explainers.diagnoses import Suspect
from .explainers.misread import misread_in
from .explainers.values import left_out
from .follow import copied, in_shape, results_among
from .roles import Roles

_LETTERS, _DIMS = "bhgmn", "de"
_MOST_THREADS, _LANES = 1024, 32
# What is compared, from the coarse to the fine. Key heads are compared on both sides.
_LEVELS = ("b", "h", "g", "bh", "bg", "bhm", "bgn")
# What kernels make and read again is called as it is where it is an input.
_CALLED = {name: own for own, name in DERIVED.items()}

# An index by each of some letters; OUTSIDE where there is no element.
Key = tuple[int, ...]


@dataclass(frozen=True)
class KnownTensor:
    name: str
    letters: str
    tensor: Tensor
    is_input: bool  # q, k, v, dO, O, or a copy of one

    @property
    def home(self) -> int:
        return self.tensor.untyped_storage().data_ptr()


@dataclass
class UnitAccess:
    all_dims: int
    keys: set[Key] = field(default_factory=set)  # by b, h, g, m and n
    dims: set[int] = field(default_factory=set)

    def at(self, letters: str) -> set[Key]:
        columns = [*zip(*self.keys, strict=True)]
        found = set(zip(*(columns[_LETTERS.index(letter)] for letter in letters), strict=True))
        return {key for key in found if NOWHERE not in key}

    @property
    def is_known(self) -> bool:
        return (NOWHERE,) * len(_LETTERS) not in self.keys

    @property
    def is_short(self) -> bool:
        return len(self.dims - {NOWHERE, OUTSIDE}) < self.all_dims


class AccessedElements:
    """What one launch touched, by block, warp or thread."""

    def __init__(
        self, launch: RecordedAccesses, known: Sequence[KnownTensor], case: Case
    ) -> None:
        self.launch, self.kernel, self.case = launch, launch.entry.name, case
        self.places: dict[tuple[str, Site], AccessLine] = {}
        self.units: dict[int, dict[AccessLine, UnitAccess]] = {}
        source = launch.entry.source
        self._files = (source.path.name, *(path.name for path, _ in source.included))
        self._inlined = launch.lines(sorted({*np.unique(launch.records["pc"]).tolist()} - {0}))
        by_home = defaultdict[int, list[KnownTensor]](list)
        for tensor in known:
            by_home[tensor.home].append(tensor)
        for home, tensors in by_home.items():
            self._read(home, tensors)

    def _read(self, home: int, known: Sequence[KnownTensor]) -> None:
        width, size = known[0].tensor.element_size(), known[0].tensor.untyped_storage().nbytes()
        bases, records = np.array(self.launch.bases), self.launch.records
        regions = np.flatnonzero((home <= bases) & (bases < home + size))
        records = records[np.isin(records["region"], regions)]
        many = np.maximum(records["bytes"].astype(np.int64) // width, 1)
        step = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        records = np.repeat(records, many)
        offset, rest = np.divmod(
            records["address"].astype(np.int64) + step * width - home, width
        )
        offset[rest != 0] = -1  # no element
        sizes = {letter: self.case.size(letter) for letter in _LETTERS + _DIMS}
        for tensor in known:
            first = (tensor.tensor.data_ptr() - home) // width
            at = indices_at(elements_of(tensor.tensor), tensor.letters, sizes, offset - first)
            nowhere = np.full(len(offset), NOWHERE)
            indices = np.stack([at.get(letter, nowhere) for letter in sizes])
            # What is no element belongs to the one tensor that lies there; of several it could be any.
            is_own = (indices[0] != OUTSIDE) | (len(known) == 1)
            self._note(tensor, records[is_own], indices[:, is_own])
            records, offset = records[~is_own], offset[~is_own]

    def _note(self, tensor: KnownTensor, records: Array, indices: Array) -> None:
        chains = np.vstack([records["pc"].T, records["access"] == 0]).astype(np.int64)
        _, first, chain = np.unique(_sums(chains), return_index=True, return_inverse=True)
        thread = records["thread"].astype(np.int64)
        within = {BLOCK: thread * 0, WARP: thread // _LANES}.get(self.launch.together, thread)
        rows = np.vstack([records["block"].astype(np.int64) * _MOST_THREADS + within, indices])
        dims = next((self.case.size(letter) for letter in _DIMS if letter in tensor.letters), 0)
        for number, (*addresses, is_load) in enumerate(chains[:, first].T.tolist()):
            site = Site(self.kernel, self._lines(addresses), "load" if is_load else "store", 0)
            own = rows[:, chain.reshape(-1) == number]
            place = self.places.setdefault((tensor.name, site), AccessLine(tensor.name, site))
            for unit, *key in _distinct(own[: 1 + len(_LETTERS)]):
                here = self.units.setdefault(unit, {})
                here.setdefault(place, UnitAccess(dims)).keys.add(tuple(key))
            for unit, *of_dims in _distinct(own[[0, -2, -1]]):
                self.units[unit][place].dims.add(max(of_dims))

    def _lines(self, chain: Sequence[int]) -> tuple[SourceLine, ...]:
        lines = []
        for address in filter(None, chain):
            lines += [line for line in self._inlined[address] if line.file.endswith(self._files)]
        return tuple(reversed(lines))

    def names(self, *, is_load: bool) -> set[str]:
        return {place.tensor for place in self.places.values() if place.is_load == is_load}


def _sums(rows: Array) -> Array:
    return (rows * np.random.default_rng(0).integers(1, 1 << 62, (len(rows), 1))).sum(0)


def _distinct(rows: Array) -> list[list[int]]:
    return rows[:, np.unique(_sums(rows), return_index=True)[1]].T.tolist()  # type: ignore[no-any-return]


# --- one run


@dataclass(frozen=True)
class RecordedRun:
    # Those in which something known meets, in order.
    launches: tuple[AccessedElements, ...]
    by_thread: tuple[AccessedElements, ...]
    roles: Roles


def visited_run(experiment: Experiment, assigned: Assigned) -> RecordedRun | None:
    """None where it refused."""
    case, inputs = experiment.case, inputs_of(experiment, assigned)
    roles = Roles(case, attention_of(case, inputs.values), inputs.values)
    shapes = {value.shape for _, value in roles.whole()}
    copies, accesses = list[KnownTensor](), list[RecordedAccesses]()

    def learn(tensors: Mapping[str, Tensor]) -> None:
        for (name, tensor), shape in product(tensors.items(), shapes):
            for view in in_shape(tensor, shape):
                if letters := copied(view, inputs.tensors, roles):
                    copies.append(KnownTensor(name, letters, view, letters != "bhm"))

    found = Launches(inputs.tensors, before=learn, accesses=accesses)
    outcome = run_target(experiment.target, case, inputs, found=found)
    if outcome.trace is None:
        return None
    launched = list[Tensor]()
    for launch in accesses:
        launched += map(itemgetter(1), launch.tensors)
    views = results_among(launched, outcome.trace)
    known = _known_tensors(case, inputs, views, copies)
    launches = [AccessedElements(launch, known, case) for launch in accesses]
    by_thread = list[AccessedElements]()
    for launch in accesses:
        if launch.copies is not None and launch.together == BLOCK:
            own = launch.records[launch.records["is_copied"] == 0]
            records = np.concatenate([launch.copies, own])
            alone = replace(launch, records=records, together=THREAD)
            by_thread.append(AccessedElements(alone, known, case))
    inputs_named = {tensor.name for tensor in known if tensor.is_input}
    return RecordedRun(tuple(_of_attention(launches, inputs_named)), tuple(by_thread), roles)


def _known_tensors(
    case: Case, inputs: Inputs, views: Iterable[tuple[str, Tensor]], copies: list[KnownTensor]
) -> list[KnownTensor]:
    known, results = list[KnownTensor](), list[KnownTensor]()
    for name, tensor in inputs.tensors.items():
        letters = case.input_axes(name)
        if letters and len(letters) == tensor.dim():
            own = title(name) if name in OUTPUTS else name
            known.append(KnownTensor(own, letters, tensor, name in ("q", "k", "v", "do", "o")))
    for name, view in views:
        results.append(KnownTensor(_CALLED.get(name, name), case.axes(name), view, False))
    for each in (*results, *copies):
        if each.home not in map(attrgetter("home"), known):
            known.append(each)
    return known


def _of_attention(
    launches: Sequence[AccessedElements], inputs: set[str]
) -> Iterator[AccessedElements]:
    for number, elements in enumerate(launches):
        anew = set[str]()  # what later kernels store
        for later in launches[number + 1 :]:
            anew |= later.names(is_load=False) if later.kernel != elements.kernel else set()
        for key, place in [*elements.places.items()]:
            if place.tensor in anew and not place.is_load:
                del elements.places[key]
                for here in elements.units.values():
                    here.pop(place, None)
        loads = elements.names(is_load=True)
        if len(loads) > 1 and (loads | elements.names(is_load=False)) - inputs:
            yield elements


# --- what disagrees


def misread(run: RecordedRun, wrong: Sequence[str]) -> list[Suspect]:
    flow = Flow(lambda view: "", {})
    for elements in run.launches:
        _compare(flow, elements)
    return [*misread_in(flow)] or [*_left_out(run, wrong)]


# In one unit q, dO, O, LSE, delta and dQ are of the same rows of the same heads, and k, v, dK and dV of the same keys
# of the heads that those read: lines that touch different ones meet as tiles of a Triton kernel do that disagree.
def _compare(flow: Flow, elements: AccessedElements) -> None:
    places = elements.places.values()
    numbers = {place: at for at, place in enumerate(places, len(flow.sources))}
    flow.sources += places
    apart: set[tuple[int, AccessLine, str]] = set()
    for level, (unit, here) in product(_LEVELS, sorted(elements.units.items())):
        whole = [place for place in here if here[place].all_dims and not here[place].is_short]
        if not any(map(attrgetter("is_load"), whole)):
            continue  # no copy or conversion by element reads whole rows
        nothing, by_place = (OUTSIDE,) * len(level), dict[AccessLine, set[Key]]()
        by_tensor = defaultdict[str, set[Key]](set)
        for place, each in here.items():
            if keys := each.at(level) if each.is_known else None:
                by_place[place] = keys
                by_tensor[place.tensor] |= keys
            if keys and len(level) == 1:
                none = np.zeros(elements.case.size(level), bool)
                reached = place.reached.setdefault(level, none)
                reached[[*chain(*(keys - {nothing}))]] = True
        for (place, keys), (name, others) in product(by_place.items(), by_tensor.items()):
            if name == place.tensor or (unit, place, name) in apart:
                continue
            alone, due = keys - others, others - keys - {nothing}
            if nothing in alone and here[place].is_short and place.is_load:
                alone, due = {nothing}, others - {nothing}
            if not alone or not due:
                place.agreed[level] += 1
                continue
            apart.add((unit, place, name))
            own, other = min(alone - {nothing}, default=nothing), min(due)
            # What is outside the elements is so in the finest letter.
            at = -1
            if own == nothing:
                place.is_irregular = True
            else:
                at = [*map(eq, own, other)].index(False)
            met = set[int]()
            for met_by, met_keys in by_place.items():
                if met_by.tensor == name and met_keys & due:
                    met.add(numbers[met_by])
            sides = frozenset([numbers[place]]), frozenset(met)
            flow.conflicts.append(Conflict(place.site, level[at], *sides, (own[at], other[at])))


def _left_out(run: RecordedRun, wrong: Sequence[str]) -> Iterator[Suspect]:
    case, valid = run.roles.case, run.roles.valid
    # P of dropout and of lazy is 0 where keys are seen, too.
    has_zeros = bool(case.dropout) or case.family == "lazy"
    for name in wrong:
        if name not in PRODUCTS or (has_zeros and name in ("dV", "O")):
            continue
        other, is_by_row = PRODUCTS[name].other, not PRODUCTS[name].is_transposed
        by_site = dict[Site, Array]()
        for elements in (*run.launches, *run.by_thread):
            places = elements.places.values()
            loads = [place for place in places if place.tensor == other and place.is_load]
            visited, whole, reached = found = np.zeros((3, *valid.shape), bool)
            for here in elements.units.values() if loads and elements.launch.one_of == 1 else ():
                if not all(here[place].is_known for place in loads if place in here):
                    continue
                stored = _pairs(case, here, _CALLED.get(name, name), is_load=False)
                read = _pairs(case, here, other, is_load=True)
                visited |= stored & read
                whole |= stored
                reached |= read
            if reached.any():  # else nothing is known of where it is read
                by_site[loads[0].site] = found | by_site.get(loads[0].site, False)
        for site, (visited, whole, _) in by_site.items():
            missing = valid & whole & ~visited
            for b, h, m, n in np.argwhere(missing)[:1].tolist():
                pairs = visited[b, h, m] if is_by_row else visited[b, h, :, n]
                reads = np.flatnonzero(pairs).tolist()
                lane, others = (f"row {m}", "keys") if is_by_row else (f"key {n}", "rows")
                those = f"{title(other)} at {others} {in_words(spans(reads), 4)}"
                those = those if reads else f"nothing of {title(other)}"
                reason = f"{left_out(missing)}; what is stored for {lane} reads {those}"
                yield Suspect("pairs", name, site, site.lines[:1], reason)


def _pairs(
    case: Case, here: Mapping[AccessLine, UnitAccess], tensor: str, *, is_load: bool
) -> Array:
    """[B, H, M, N] bool."""
    by_head = np.zeros((case.batch, case.heads, case.seqlen_q, case.seqlen_k), bool)
    by_group = by_head.reshape(case.batch, case.kv_heads, -1, case.seqlen_q, case.seqlen_k)
    nothing = {(OUTSIDE,) * 3}
    for place, touched in here.items():
        if (place.tensor, place.is_load) == (tensor, is_load):
            for b, h, m in touched.at("bhm") - nothing:
                by_head[b, h, m] = True
            for b, g, n in touched.at("bgn") - nothing:
                by_group[b, g, ..., n] = True
    return by_head
