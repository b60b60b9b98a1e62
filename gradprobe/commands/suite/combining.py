"""Combining: the rounds of a battery whose cases hold every pair or triple of levels that a target takes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from ...model.coverage import PAIRS, Coverage
from .battery import Item, battery
from .checked import Checked
from .covering import Combination, Row, Space, covering, simplest, standing
from .factors import Factors, found_by_trying

Round = Generator[list[Item], Mapping[str, Checked], None]
"""Gives the items of a round, and is sent what came of each by its name."""
_PLAIN = "as it is"
# What every case has besides: an element that is never written shows.
_BESIDE = {"poison": True}
# Of a target that refuses more combinations than these, which of them is not found out.
_MOST = 100


class Combining:
    """The rounds, each planned by what came of those before it.

    1. The case without any option, to which what a target takes is found by trying.
    2. Each level alone. What is refused or wrong so stands in no later case: it would hide what else is wrong there.
    3. A covering array of the others.
    4. Where some were refused: the simplest case of each pair (then triple) that stands in no other, and an array of
       those that are left when the refused ones are left out.
    """

    def __init__(self, factors: Factors, strength: int) -> None:
        self._factors, self._strength = factors, strength
        self._taken: dict[Row, bool] = {}
        """Whether the target takes each row that was made."""
        self._out: set[Combination] = set()
        """Levels and combinations that stand in no further case."""
        self._wrong_alone: list[str] = []
        self._is_combined = False
        self.rounds = self._rounds()

    @property
    def titles(self) -> list[str]:
        """Such as theirs may be."""
        return [self._item(row).name for row in covering(self._factors.space, PAIRS)]

    def _rounds(self) -> Round:
        untaken = [Item(0, name, {}, why) for name, why in self._factors.lacking]
        first = Item(0, _PLAIN, self._factors.plain, "")
        came = yield [first, *untaken]
        plain = came[first.name].report
        if plain.verdict != "match" or plain.case is None:
            return
        self._factors = self._factors.around(plain.case)
        yield from self._alone()
        if not self._taken.get(self._simplest_row):
            return
        self._is_combined = True
        yield from self._array()
        for size in range(2, self._strength + 1):
            if not all(self._taken.values()):
                yield from self._refused(size)

    @property
    def coverage(self) -> Coverage:
        """What the rows that were taken hold."""
        if not self._is_combined:
            return Coverage(strength=self._strength, properties=0, wrong_alone=tuple(self._wrong_alone))
        held, missing = self._held(self._strength), self._missing(self._strength)
        return Coverage(
            strength=self._strength,
            properties=len(self._factors.each),
            held=len(held),
            missing=len(missing),
            wrong_alone=tuple(self._wrong_alone),
        )

    @property
    def _space(self) -> Space:
        space = self._factors.space
        return replace(space, forbidden=space.forbidden | self._out)

    @property
    def _simplest_row(self) -> Row:
        return (0,) * len(self._factors.each)

    def _alone(self) -> Round:
        space = self._factors.space
        levels = [frozenset([(at, level)]) for at, count in enumerate(space.counts) for level in range(count)]
        rows = {one: row for one in levels if (row := simplest(space, one)) is not None}
        came = yield from self._made(dict.fromkeys([self._simplest_row, *rows.values()]), self._beside())
        found = {}
        for one, row in rows.items():
            checked = came[self._name(row)]
            if checked.verdict != "match" or checked.report.case is None:
                self._out |= {one} if row != self._simplest_row else set()
                self._wrong_alone += [self._factors.title(row)] if self._taken[row] else []
            else:
                found.update({place: found_by_trying(checked.report.case) for place in one})
        self._factors = replace(self._factors, found=found)

    def _array(self) -> Round:
        """What is still missing, in few rows."""
        yield from self._made(
            covering(self._space, self._strength, [row for row, is_taken in self._taken.items() if is_taken])
        )

    def _refused(self, size: int) -> Round:
        """Of combinations that stand only in refused rows the simplest case shows whether they are refused too."""
        space = self._space
        rows = {one: row for one in self._missing(size)[:_MOST] if (row := simplest(space, one)) is not None}
        yield from self._made(row for row in dict.fromkeys(rows.values()) if row not in self._taken)
        self._out |= {one for one, row in rows.items() if not self._taken[row]}
        yield from self._array()

    def _held(self, size: int) -> set[Combination]:
        return {one for row, is_taken in self._taken.items() if is_taken for one in standing(row, size)}

    def _missing(self, size: int) -> list[Combination]:
        space, held = self._space, self._held(size)
        return [one for one in space.combinations(size) if one not in held and simplest(space, one) is not None]

    def _made(
        self, rows: Iterable[Row], beside: Sequence[Item] = ()
    ) -> Generator[list[Item], Mapping[str, Checked], Mapping[str, Checked]]:
        rows = list(rows)
        if not rows and not beside:
            return {}
        came = yield [*map(self._item, rows), *beside]
        # What is an error only where nobody said that it is taken is not taken either.
        self._taken |= {
            row: not (checked.is_refused or checked.report.is_warning)
            for row in rows
            if (checked := came.get(self._name(row)))
        }
        return came

    def _item(self, row: Row) -> Item:
        return Item(
            0, self._factors.title(row), {**_BESIDE, **self._factors.options(row)}, "", self._factors.beyond(row)
        )

    def _name(self, row: Row) -> str:
        return self._item(row).name

    def _beside(self) -> list[Item]:
        """What the table of the quick battery shows and no combination does, as the target takes it."""
        takes = self._factors.takes
        own = self._factors.options(self._simplest_row)
        kept = {name: word for name, word in own.items() if name in ("head_dim", *self._factors.always)}
        rows = battery(takes.family, takes.names, takes.required)
        return [replace(one, options={**one.options, **kept}) for one in rows if one.is_alone and not one.why_not]
