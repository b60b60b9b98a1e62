"""Pairs: the rounds of a battery whose cases hold every two levels that a target takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace

from ...model.documents import PAIRS, Coverage
from .battery import Item, battery
from .case_factors import Factors, found_by_trying
from .covering import Level, Row, Space, covering, simplest, standing
from .outcome import CheckOutcome

Came = Mapping[str, CheckOutcome]
"""What came of items, by their names."""
_PLAIN = "as it is"
# What every case has besides: an element that is never written shows.
_BESIDE = {"poison": True}
# Pairs of which the simplest case is made at once, and how often.
_AT_ONCE, _TIMES = 20, 6
_RIGHT, _WRONG, _UNTAKEN = "right", "wrong", "not taken"


class PairRounds:
    """The rounds, each planned by what came of those before it.

    1. The case without any option, to which what a target takes is found by trying.
    2. Each level alone. What is refused or wrong so stands in no later case: it would hide what else is wrong there.
    3. A covering array of the others.
    4. Where some were refused or wrong: the simplest case of each pair that stands in no right one shows which of them
       it is. Those stand in no later case either, and what is left is covered once more.
    """

    def __init__(self, factors: Factors) -> None:
        self._factors = factors
        self._came: dict[Row, str] = {}
        """_RIGHT, _WRONG or _UNTAKEN, of each row that was made."""
        self._out = set[frozenset[Level]]()
        """Levels and pairs that stand in no further case."""
        self._wrong_alone: list[str] = []
        self._wrong_together: list[str] = []
        self._is_combined = False
        self.rounds = self._rounds()

    @property
    def titles(self) -> list[str]:
        """Such as theirs may be."""
        return [self._item(row).name for row in covering(self._factors.space)]

    def _rounds(self) -> Generator[list[Item], Came, None]:
        untaken = [Item(0, name, {}, why) for name, why in self._factors.lacking]
        first = Item(0, _PLAIN, self._factors.plain, "")
        came = yield [first, *untaken]
        plain = came[first.name].report
        if plain.verdict != "match" or plain.case is None:
            return
        self._factors = self._factors.around(plain.case)
        yield from self._alone()
        if self._came.get(self._simplest_row) == _RIGHT:
            self._is_combined = True
            yield from self._array()
            yield from self._apart()

    @property
    def coverage(self) -> Coverage:
        """What the rows that were taken hold."""
        alone, together = tuple(self._wrong_alone), tuple(self._wrong_together)
        if not self._is_combined:
            return Coverage(strength=PAIRS, properties=0, wrong_alone=alone)
        space, held = self._space, set[frozenset[Level]]()
        for row, came in self._came.items():
            if came != _UNTAKEN:
                held |= standing(row)
        missing = [
            pair
            for pair in space.pairs()
            if pair not in held and simplest(space, pair) is not None
        ]
        return Coverage(
            strength=PAIRS,
            properties=len(self._factors.each),
            held=len(held),
            missing=len(missing),
            wrong_alone=alone,
            wrong_together=together,
        )

    @property
    def _space(self) -> Space:
        space = self._factors.space
        return replace(space, forbidden=space.forbidden | self._out)

    @property
    def _simplest_row(self) -> Row:
        return (0,) * len(self._factors.each)

    def _alone(self) -> Generator[list[Item], Came, None]:
        space, rows = self._factors.space, dict[Level, Row]()
        for factor in range(len(space.counts)):
            for level in space.levels(factor):
                row = simplest(space, frozenset([level]))
                if row is not None:
                    rows[level] = row
        came = yield from self._outcomes([self._simplest_row, *rows.values()], self._beside())
        found = {}
        for level, row in rows.items():
            outcome = came[self._item(row).name]
            if outcome.verdict == "match" and outcome.report.case is not None:
                found[level] = found_by_trying(outcome.report.case)
                continue
            if row != self._simplest_row:
                self._out.add(frozenset([level]))
            if self._came[row] == _WRONG:
                self._wrong_alone.append(self._factors.title(row))
        self._factors = replace(self._factors, found=found)

    def _array(self) -> Generator[list[Item], Came, None]:
        """What stands in no right row yet, in few rows."""
        right = [row for row, came in self._came.items() if came == _RIGHT]
        yield from self._outcomes(covering(self._space, right))

    def _apart(self) -> Generator[list[Item], Came, None]:
        """Finds pairs that are refused or wrong in their simplest case, and covers what is left without them."""
        found = False
        for _ in range(_TIMES):
            rows = self._suspects()
            yield from self._outcomes(row for row in rows.values() if row not in self._came)
            for pair, row in rows.items():
                if self._came.get(row) != _RIGHT:
                    self._out.add(pair)
                if self._came.get(row) == _WRONG:
                    self._wrong_together.append(self._factors.title(row))
            found |= bool(rows)
        if found:
            yield from self._array()

    def _suspects(self) -> dict[frozenset[Level], Row]:
        """Pairs that stand in rows which are not right for no known reason, and in no right one: those in most of these
        rows first, each with its simplest row."""
        space, right, counts = self._space, set[frozenset[Level]](), Counter[frozenset[Level]]()
        for row, came in self._came.items():
            levels = set(enumerate(row))
            if came == _RIGHT:
                right |= standing(row)
            elif not any(known <= levels for known in self._out):
                counts.update(sorted(standing(row), key=sorted))
        asked = [pair for pair, _ in counts.most_common() if pair not in right]
        rows = {pair: simplest(space, pair) for pair in asked[:_AT_ONCE]}
        return {pair: row for pair, row in rows.items() if row is not None}

    def _outcomes(
        self, rows: Iterable[Row], beside: Sequence[Item] = ()
    ) -> Generator[list[Item], Came, Came]:
        items = {row: self._item(row) for row in rows}
        if not items and not beside:
            return {}
        came = yield [*items.values(), *beside]
        for row, item in items.items():
            if item.name in came:
                self._came[row] = _word(came[item.name])
        return came

    def _item(self, row: Row) -> Item:
        options = {**_BESIDE, **self._factors.options(row)}
        return Item(0, self._factors.title(row), options, "", self._factors.beyond(row))

    def _beside(self) -> list[Item]:
        """What the table of the quick battery shows and no pair does, as the target takes it."""
        takes = self._factors.takes
        own = self._factors.options(self._simplest_row)
        kept = {
            name: word
            for name, word in own.items()
            if name in ("head_dim", *self._factors.always)
        }
        items = battery(takes.family, takes.names, takes.required)
        alone = [item for item in items if item.is_alone and not item.why_not]
        return [replace(item, options={**item.options, **kept}) for item in alone]


def _word(outcome: CheckOutcome) -> str:
    # What is an error only where nobody said that it is taken is not taken either.
    if outcome.is_refused or outcome.report.is_warning:
        return _UNTAKEN
    return _RIGHT if outcome.verdict == "match" else _WRONG
