"""Rules: what may be edited at a spot, each a pattern and a template, or a function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..text import Edit
from .patterns import Found, fits, parsed, replaced
from .spots import Edits, Spot, Undone

_RULE = re.compile(r"(?:([-\d.]+): )?(.+?) -> (.+?)(?: in (_\w+))?(?: as (\w+))?")


@dataclass(frozen=True)
class Swap:
    pattern: str
    text: str
    """A template; ".name": another function of the same module."""
    rank: float = 0.0
    """How late it is tried as an edit."""
    place: str = "_it"
    """The hole whose text is replaced."""
    fault: str | Callable[[Spot, Found], str] = ""
    when: Callable[[Spot, Found], bool] | None = None

    def edit(self, at: Spot, found: Found) -> Edit | None:
        if self.when is not None and not self.when(at, found):
            return None
        node = found["_it"]
        if self.text[0] != ".":
            return replaced(at.file, found[self.place], self.text, found)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        return at.file.replaced(node.func, at.file.text_of(node.func).removesuffix(node.func.attr) + self.text[1:])


Rule = Swap | Callable[[Spot], Undone]


def rules(
    text: str,
    when: Callable[[Spot, Found], bool] | None = None,
    fault: str | Callable[[Spot, Found], str] = "",
) -> tuple[Swap, ...]:
    """Of `RANK: PATTERN -> TEXT in PLACE as FAULT; ...`: rank, place and fault may be left out."""
    found = list[Swap]()
    for rule in text.split(";"):
        match = _RULE.fullmatch(rule.strip())
        assert match is not None, rule
        rank, pattern, template, place, its = match.groups()
        found.append(Swap(pattern, template, float(rank or 0), place or "_it", its or fault, when))
    return tuple(found)


def edits_of(several: tuple[Rule, ...], at: Spot) -> Iterator[tuple[float, Edits, str]]:
    """(rank, edits, class of fault or "") of all that some rules make of a spot."""
    swaps, others = _by_kind(several)
    for node in at.nodes:
        for swap in swaps.get(type(node), ()):
            found = {"_it": node}
            edit = swap.edit(at, found) if fits(parsed(swap.pattern), node, found) else None
            if edit is not None:
                yield swap.rank, (edit,), swap.fault if isinstance(swap.fault, str) else swap.fault(at, found)
    for rule in others:
        yield from ((rank, edits, "") for rank, edits in rule(at))


@lru_cache(maxsize=64)
def _by_kind(several: tuple[Rule, ...]) -> tuple[dict[type[ast.AST], list[Swap]], list[Callable[[Spot], Undone]]]:
    swaps, others = dict[type[ast.AST], list[Swap]](), list[Callable[[Spot], Undone]]()
    for rule in several:
        if isinstance(rule, Swap):
            swaps.setdefault(type(parsed(rule.pattern)), []).append(rule)
        else:
            others.append(rule)
    return swaps, others
