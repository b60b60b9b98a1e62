"""CombinationRounds: the rounds of a battery whose cases hold every pair or triple of levels that a target takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from ...model.documents import PAIRS, Coverage
from .battery import Item, battery
from .case_factors import Factors, found_by_trying
from .checked import CheckOutcome
from .covering import Combination, Row, Space, covering, simplest, standing

Round = Generator[list[Item], Mapping[str, CheckOutcome], None]
"""Gives the items of a round, and is sent what came of each by its name."""
_PLAIN = "as it is"
# What every case has besides: an element that is never written shows.
_BESIDE = {"poison": True}
# Combinations of which the simplest case is made at once, and how often.
_AT_ONCE, _TIMES = 20, 6
RIGHT, WRONG, UNTAKEN = "right", "wrong", "not taken"


class CombinationRounds:
    """The rounds, each planned by what came of those before it.

    1. The case without any option, to which what a target takes is found by trying.
    2. Each level alone. What is refused or wrong so stands in no later case: it would hide what else is wrong there.
    3. A covering array of the others.
    4. Where some were refused or wrong: the simplest case of each pair (then triple) that stands in no right one shows
       which of them it is. Those stand in no later case either, and what is left is covered once more.
    """

    def __init__(self, factors: Factors, strength: int) -> None:
        self._factors, self._strength = factors, strength
        self._came: dict[Row, str] = {}
        """RIGHT, WRONG or UNTAKEN, of each row that was made."""
        self._out: set[Combination] = set()
        """Levels and combinations that stand in no further case."""
        self._wrong_alone: list[str] = []
        self._wrong_together: list[str] = []
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
        if self._came.get(self._simplest_row) != RIGHT:
            return
        self._is_combined = True
        yield from self._array()
        for size in range(2, self._strength + 1):
            yield from self._apart(size)

    @property
    def coverage(self) -> Coverage:
        """What the rows that were taken hold."""
        if not self._is_combined:
            return Coverage(strength=self._strength, properties=0, wrong_alone=tuple(self._wrong_alone))
        space = self._space
        held = {one for row, came in self._came.items() if came != UNTAKEN for one in standing(row, self._strength)}
        left = (one for one in space.combinations(self._strength) if one not in held)
        return Coverage(
            strength=self._strength,
            properties=len(self._factors.each),
            held=len(held),
            missing=sum(simplest(space, one) is not None for one in left),
            wrong_alone=tuple(self._wrong_alone),
            wrong_together=tuple(self._wrong_together),
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
        came = yield from self._combinations(dict.fromkeys([self._simplest_row, *rows.values()]), self._beside())
        found = {}
        for combination, row in rows.items():
            checked = came[self._name(row)]
            if checked.verdict != "match" or checked.report.case is None:
                self._out |= {combination} if row != self._simplest_row else set()
                self._wrong_alone += [self._factors.title(row)] if self._came[row] == WRONG else []
            else:
                found.update({place: found_by_trying(checked.report.case) for place in combination})
        self._factors = replace(self._factors, found=found)

    def _array(self) -> Round:
        """What stands in no right row yet, in few rows."""
        yield from self._combinations(covering(self._space, self._strength, self._right))

    @property
    def _right(self) -> list[Row]:
        return [row for row, came in self._came.items() if came == RIGHT]

    def _apart(self, size: int) -> Round:
        """Finds combinations that are refused or wrong in their simplest case, and covers what is left without them."""
        found = False
        for _ in range(_TIMES):
            rows = self._suspects(size)
            yield from self._combinations(row for row in dict.fromkeys(rows.values()) if row not in self._came)
            for combination, row in rows.items():
                self._out |= {combination} if self._came.get(row) != RIGHT else set()
                self._wrong_together += [self._factors.title(row)] if self._came.get(row) == WRONG else []
            found |= bool(rows)
        if found:
            yield from self._array()

    def _suspects(self, size: int) -> dict[Combination, Row]:
        """Combinations that stand in rows which are not right for no known reason, and in no right one: those in most
        of these rows first, each with its simplest row."""
        space = self._space
        known = [row for row in self._came if any(one <= set(enumerate(row)) for one in self._out)]
        unexplained = [row for row, came in self._came.items() if came != RIGHT and row not in known]
        right = {one for row in self._right for one in standing(row, size)}
        counts = Counter(one for row in unexplained for one in standing(row, size))
        asked = [one for one, _ in counts.most_common() if one not in right]
        return {one: row for one in asked[:_AT_ONCE] if (row := simplest(space, one)) is not None}

    def _combinations(
        self, rows: Iterable[Row], beside: Sequence[Item] = ()
    ) -> Generator[list[Item], Mapping[str, CheckOutcome], Mapping[str, CheckOutcome]]:
        rows = list(rows)
        if not rows and not beside:
            return {}
        came = yield [*map(self._item, rows), *beside]
        self._came |= {row: _word(checked) for row in rows if (checked := came.get(self._name(row)))}
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


def _word(checked: CheckOutcome) -> str:
    # What is an error only where nobody said that it is taken is not taken either.
    if checked.is_refused or checked.report.is_warning:
        return UNTAKEN
    return RIGHT if checked.verdict == "match" else WRONG
