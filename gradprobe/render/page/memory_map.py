"""Memory: how tensors lay, and where one is read in place of where it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...model.intermediates import AXIS_WORDS
from ...model.layout_run import TensorLayout
from ...model.number import plural
from ...model.report import AxisReach, Misread, Report, explained_diagnoses

# Heads of a tensor that are drawn, one below the other, and indices of an axis that is misread.
_HEADS, _STEPS = 3, 8
_WIDE, _TALL = 520, 9


@dataclass(frozen=True)
class LaidTensor:
    """One tensor of a layout."""

    name: str
    axes: str
    sizes: str
    strides: str
    words: str
    picture: Markup


@dataclass(frozen=True)
class StrideStep:
    """One step along the axis of a stride that is another's."""

    at: str
    due: int
    taken: int | None
    """None outside of everything."""
    lands: str
    is_wrong: bool


def tensors(laid: Sequence[TensorLayout]) -> list[LaidTensor]:
    """Each tensor, those of batches and heads first."""
    return [
        LaidTensor(
            name=tensor.name,
            axes=tensor.axes,
            sizes=", ".join(map(str, tensor.sizes)),
            strides=", ".join(map(str, tensor.strides)),
            words=_kind(tensor),
            picture=_rows_of(tensor),
        )
        for tensor in laid
    ]


def _kind(tensor: TensorLayout) -> str:
    long = [(stride, size) for stride, size in zip(tensor.strides, tensor.sizes, strict=True) if size > 1]
    if long and all(stride == 0 for stride, _ in long):
        return "one element for all"
    step = 1
    for stride, size in sorted(long):
        if stride != step:
            return "with gaps"
        step *= size
    return "contiguous" if long == sorted(long, reverse=True) else "without gaps, in another order"


def _rows_of(tensor: TensorLayout) -> Markup:
    """The memory of the first batch from its first element on: a line for each head, in it each row where it lies."""
    letters = dict(zip(tensor.axes, zip(tensor.sizes, tensor.strides, strict=True), strict=False))
    heads, by_head = letters.get("h") or letters.get("g") or (1, 0)
    rows, by_row = letters.get("m") or letters.get("n") or (1, 0)
    dims, by_dim = letters.get("d") or letters.get("e") or (1, 1)
    heads, wide = min(heads, _HEADS), (dims - 1) * by_dim + 1
    reach = max(1, (heads - 1) * by_head + (rows - 1) * by_row + wide)
    parts = []
    for head in range(heads):
        starts = (head * by_head + row * by_row for row in range(rows))
        scaled = ((at * _WIDE / reach for at in ends) for ends in _joined(starts, wide, reach / _WIDE))
        boxes = (f"M{x:.1f} {head * _TALL}h{end - x:.1f}v6H{x:.1f}z" for x, end in scaled)
        parts.append(Markup('<path class="lay-{}" d="{}"/>').format(head, "".join(boxes)))
    label = f"{tensor.name}: the first {plural(heads, 'head')}, one below the other, over {reach:,} elements of memory"
    return Markup('<svg class="lay" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDE, heads * _TALL, label, Markup("").join(parts)
    )


def _joined(starts: Iterable[int], wide: int, pixel: float) -> list[list[float]]:
    """From where to where rows lie: those together that half a pixel keeps apart; none is thinner than a pixel."""
    found = list[list[float]]()
    for start in starts:
        if found and found[-1][0] <= start < found[-1][1] + pixel / 2:
            found[-1][1] = max(found[-1][1], start + wide)
        else:
            found.append([start, start + max(wide, pixel)])
    return found


def accesses(read: Misread) -> list[StrideStep]:
    """Each of the first steps along the axes that are misread: where it should read, and where it reads."""
    letters = [at for at, letter in enumerate(read.axes) if letter in read.along]
    count = min(_STEPS, max((read.sizes[at] for at in letters), default=0))
    return [_access(read, letters, step) for step in range(count)]


def _access(read: Misread, letters: Sequence[int], step: int) -> StrideStep:
    steps = {at: min(step, read.sizes[at] - 1) for at in letters}
    due, taken = (sum(strides[at] * steps[at] for at in letters) for strides in (read.due, read.taken))
    names = dict.fromkeys(AXIS_WORDS.get(read.axes[at], "axis") for at in letters)
    return StrideStep(f"{' and '.join(names)} {step}", due, taken, _lands(read, taken), due != taken)


def _lands(read: Misread, element: int) -> str:
    """What lies so many elements behind the first one."""
    left, found = element, dict[int, int]()
    for at in sorted(range(len(read.due)), key=lambda at: -read.due[at]):
        found[at] = min(left // read.due[at], read.sizes[at] - 1) if read.due[at] else 0
        left -= found[at] * read.due[at]
    if left:
        reach = sum((size - 1) * stride for size, stride in zip(read.sizes, read.due, strict=True))
        return "between its elements" if element <= reach else f"outside, {element - reach:,} behind its last element"
    return ", ".join(f"{AXIS_WORDS.get(letter, 'axis')} {found[at]}" for at, letter in enumerate(read.axes))


def drawn(read: Misread) -> Markup:
    """A strip of memory: above it where each step should read, below it where it reads."""
    own = sum((size - 1) * stride for size, stride in zip(read.sizes[1:], read.due[1:], strict=True)) + 1
    steps = accesses(read)
    label = f"{read.tensor} in memory: above where each {steps[0].at.rsplit(' ', 1)[0]} lies, below where it is read"
    return _strip(steps, own, label)


def reaches(reach: AxisReach, laid: Sequence[TensorLayout]) -> list[StrideStep]:
    """Each index that a load or a store should reach and does not, in elements where it is known how the tensor lay."""
    word, known = AXIS_WORDS.get(reach.letter, "index"), {one.name: one for one in laid}.get(reach.tensor)
    stride = dict(zip(known.axes, known.strides, strict=False)).get(reach.letter, 1) if known else 1
    return [
        StrideStep(
            f"{word} {due}", due * stride, None if does is None else does * stride,
            "outside its elements" if does is None else f"{word} {does}", is_wrong=True,
        )
        for due, does in reach.pairs
    ]  # fmt: skip


def _strip(steps: Sequence[StrideStep], own: int, label: str) -> Markup:
    """Of so many elements of its own."""
    reach = max(1, *(one.due for one in steps), *(one.taken or 0 for one in steps)) * 1.05
    width = f"{min(own / reach, 1) * _WIDE:.1f}"
    parts = [Markup('<rect class="strip" x="10" y="26" width="{}" height="14"/>').format(width)]
    for number, step in enumerate(steps):
        due, taken = (
            f"{10 + at / reach * _WIDE:.1f}" for at in (step.due, reach if step.taken is None else step.taken)
        )
        kind = "wrong" if step.is_wrong else "fine"
        parts.append(
            Markup(
                '<path class="due" d="M{0} 18v14"/><text class="at" x="{0}" y="14">{2}</text>'
                '<path class="taken {3}" d="M{1} 34v14"/><text class="at {3}" x="{1}" y="60">{2}</text>'
            ).format(due, taken, number, kind)
        )
    return Markup('<svg class="strips" viewBox="0 0 {} 66" role="img" aria-label="{}">{}</svg>').format(
        _WIDE + 20, label, Markup("").join(parts)
    )


def _describe(reach: AxisReach) -> str:
    word, does = AXIS_WORDS.get(reach.letter, "index"), "written" if reach.is_store else "read"
    return f"{reach.tensor}: above each {word} that should be {does}, below the one that is"


def parts_of_memory(report: Report) -> dict[str, object]:
    """What `memory.html` reads."""
    read = next((one.misread for one in report.diagnoses if one.misread is not None), None)
    reached = next((one.reached for one in explained_diagnoses(report.diagnoses) if one.reached is not None), None)
    lay = next((run.laid for run in report.runs if report.measured and run.layout == report.shown.layout), ())
    reads = reaches(reached, lay) if reached else []
    return {
        "read": read,
        "accesses": accesses(read) if read else [],
        "strip": drawn(read) if read else "",
        "reached": reached,
        "reaches": reads,
        "reach": _strip(reads, max(one.due for one in reads) + 1, _describe(reached)) if reached else "",
        "laid": [(run.layout, tensors(run.laid)) for run in report.runs if run.laid],
    }
