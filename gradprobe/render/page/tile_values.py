"""Values: what --evidence keeps of whole heads, tile by tile, as much of it as a page has room for."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...model.failures import UsageFailure
from ...model.heads import ABOUT, PARTS, KeptHeads, WholeHead
from ...model.layout_run import LEVELS, WITHIN, seen_in
from ...model.number import plural
from ...model.report import Report
from .maps import id_of

# Of a tile beside its values: its place, quotes and commas.
_AROUND = 16
# Of an element that is not finite, whose difference tells nothing: its expected value stands in place of that.
_AS_EXPECTED = 0x80


@dataclass(frozen=True)
class Values:
    """What of them stands on a page."""

    json: str = "{}"
    """By the id of a map: the shape of the head, a tile's size, and by place each tile as `_packed` writes it."""
    tiles: Mapping[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    """The tiles that open, by the id of their map."""
    words: str = ""
    """How many these are, and where the others are; "" where nothing was kept."""

    def opens(self, id: str, tile: tuple[int, int]) -> bool:
        """Whether a tile of a map opens to its values."""
        return tile in self.tiles.get(id, ())


def chosen(file: str, report: Report, room: int) -> Values:
    """The values of so many bytes at most: the worst tile of every head, then the next ones; wrong ones first.

    Raises:
        UsageFailure: the file cannot be read, or belongs to another report.
    """
    about, arrays = _read(file, report)
    compared = {seen_in(one.name, one.kernel): one for one in report.shown.compares}
    found = list[_Tile]()
    heads: dict[str, dict[str, Any]] = {}
    for head in about.heads:
        shown = compared.get(seen_in(head.intermediate, head.kernel))
        if shown is None or not shown.tile[0]:
            continue
        id = f"{id_of(shown)}-{head.batch or 0}-{head.head}"
        heads[id] = {"shape": head.shape, "tile": shown.tile, "lines": head.rows, "tiles": {}}
        found += _ranked(id, _tiles(id, head, shown.tile, arrays))
    opened: dict[str, set[tuple[int, int]]] = {}
    room -= len(json.dumps(heads))
    for tile in sorted(found, key=lambda tile: (not tile.is_wrong, tile.rank)):
        room -= len(tile.packed) + _AROUND
        if room < 0:
            break
        heads[tile.id]["tiles"]["{},{}".format(*tile.at)] = tile.packed
        opened.setdefault(tile.id, set()).add(tile.at)
    count = sum(map(len, opened.values()))
    words = f"{plural(count, 'tile')} of {len(found)} open to every value: a button in the table of a map."
    if count < len(found):
        words += " The page has room for no more, the wrong ones first."
    words += f" {Path(file).name} holds {report.evidence.sentence}." if report.evidence else ""
    return Values(json.dumps(heads), {id: frozenset(of) for id, of in opened.items()}, words)


@dataclass(frozen=True)
class _Tile:
    id: str
    at: tuple[int, int]
    is_wrong: bool
    level: int
    packed: str
    rank: int = 0
    """How many tiles of its head are worse."""


def _ranked(id: str, tiles: Iterator[_Tile]) -> Iterator[_Tile]:
    for rank, tile in enumerate(sorted(tiles, key=lambda tile: -tile.level)):
        yield _Tile(id, tile.at, tile.is_wrong, tile.level, tile.packed, rank)


def _tiles(id: str, head: WholeHead, size: tuple[int, int], arrays: Mapping[str, Any]) -> Iterator[_Tile]:
    import numpy as np

    actual, expected, budget, wrong = (arrays[f"{head.key}.{part}"] for part in PARTS)
    with np.errstate(all="ignore"):
        difference = actual - expected
        times = np.abs(difference) / budget
        level = np.nan_to_num(np.ceil(np.log2(times)), nan=0.0) + LEVELS.index(WITHIN)
    within = LEVELS.index(WITHIN)
    level = np.where(wrong, level.clip(within + 1, len(LEVELS) - 1), level.clip(0, within))
    level = np.where(wrong & ~np.isfinite(actual), len(LEVELS) - 1, level).astype(np.uint8)
    second = np.where(np.isfinite(actual), difference, expected)
    signs = level | np.where(np.isfinite(actual), 0, _AS_EXPECTED).astype(np.uint8)
    for y in range(0, head.shape[0], size[0]):
        for x in range(0, head.shape[1], size[1]):
            at = (slice(y, y + size[0]), slice(x, x + size[1]))
            worst = int(level[at].max())
            at_tile = (y // size[0], x // size[1])
            yield _Tile(id, at_tile, worst > within, worst, _packed(actual[at], second[at], signs[at]))


def _packed(actual: Any, second: Any, signs: Any) -> str:
    """Row by row: all actual values, then all differences, as float32; then a byte each, how far it is off."""
    floats = b"".join(part.astype("<f4").tobytes() for part in (actual, second))
    return base64.b64encode(floats + signs.tobytes()).decode()


def refuse_others(file: str, reports: Sequence[Report]) -> None:
    """Does nothing where a file is what the check of a report wrote.

    Raises:
        UsageFailure: it is not, or it cannot be read.
    """
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise UsageFailure(f"--evidence {file}: cannot be read, {error.strerror}") from error
    if [digest] != [report.evidence and report.evidence.sha256 for report in reports]:
        way_out = "gradprobe check --evidence FILE.npz --json REPORT writes both"
        raise UsageFailure(f"--evidence {file}: it is not what the check of this report wrote", way_out)


def _read(file: str, report: Report) -> tuple[KeptHeads, Mapping[str, Any]]:
    import numpy as np

    refuse_others(file, (report,))
    arrays = np.load(file, allow_pickle=False)
    return msgspec.json.decode(str(arrays[ABOUT]), type=KeptHeads), arrays
