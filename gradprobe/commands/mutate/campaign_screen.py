"""A campaign of mutants for people, and as JSON: how many were killed, by class, then every survivor with its edit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import CAUTION
from ...render.rows import folded, headed
from .campaign import INVALID, KILLED, SURVIVED, Campaign
from .mutants import CLASSES, Mutant

_GAP = "survived: the gate has a gap, or the edit changes no result"
# Mutants that did not run and are named; the others are in the JSON.
_NAMED = 3
_STYLES = {KILLED: "bold green", SURVIVED: "bold red", INVALID: f"bold {CAUTION}"}


def render_campaign(campaign: Campaign, width: int) -> Iterator[Text]:
    """The campaign as lines; the table fits 80 columns, sentences and code are folded to `width`."""
    yield from _verdict(campaign, width)
    yield from (Text(), *_table(campaign), Text())
    survivors = campaign.having(SURVIVED)
    if survivors:
        yield Text(f"  {_GAP}", "dim")
    for mutant in survivors:
        yield from _mutant(mutant, width)
    for sentence in _sentences(campaign):
        yield from folded(sentence, width)


def _verdict(campaign: Campaign, width: int) -> list[Text]:
    verdict = {0: KILLED, 1: SURVIVED, 3: INVALID}[campaign.exit_code]
    invalid = len(campaign.having(INVALID))
    words = f"{len(campaign.having(verdict)):,} of {plural(len(campaign.outcomes), 'fault')}"
    if invalid and verdict != INVALID:
        words += f" ({invalid:,} did not run)"
    head = "NOT RUN" if verdict == INVALID else verdict.upper()
    told = f"{words}: {campaign.target}, by {campaign.gate.words}"
    return headed(head, _STYLES[verdict], told, width)


def _table(campaign: Campaign) -> Iterator[Text]:
    """How many of each class were killed."""
    longest = max(map(len, CLASSES.values()))
    for name, title in CLASSES.items():
        those = [each.verdict for each in campaign.outcomes if each.fault_class == name]
        if those:
            killed, planted = those.count(KILLED), len(those)
            style = "green" if killed == planted else "red"
            told = f"{killed:>3,} of {planted:,} killed"
            yield Text.assemble(f"  {name:<6}{title:<{longest}}  ", (told, style))


def _mutant(mutant: Mutant, width: int) -> Iterator[Text]:
    words = f"  {mutant.fault_class}  {mutant.name} in {mutant.function}"
    yield Text.assemble("  ", (f"{mutant.file.rpartition('/')[2]}:{mutant.line}", "bold"), words)
    for sign, code, style in (("-", mutant.before, "red"), ("+", mutant.after, "green")):
        fold = textwrap.TextWrapper(
            max(width, 40), f"    {sign} ", " " * 10, break_on_hyphens=False
        )
        yield from (Text(line, style) for line in fold.wrap(code))


def _sentences(campaign: Campaign) -> Iterator[str]:
    invalid = campaign.having(INVALID)
    for mutant in invalid[:_NAMED]:
        words = mutant.words.removeprefix("gradprobe: ")
        yield f"did not run: {mutant.name}, line {mutant.line}: {words}"
    if len(invalid) > _NAMED:
        yield f"and {len(invalid) - _NAMED:,} more did not run: --json FILE names them"
    faults = plural(campaign.possible, "fault")
    possible = f"{faults} that can be planted in {campaign.file.path.name}"
    took = f"in {campaign.seconds:.0f} s; the gate alone takes {campaign.plain_seconds:.1f} s"
    yield f"tried {len(campaign.outcomes):,} of {possible}, {took}"


def campaign_as_json(campaign: Campaign, repro_command: str) -> dict[str, Any]:
    """The document, ready for `json.dumps`; verdict "survived" where any mutant did, else "killed" or "error"."""
    gate = campaign.gate
    return {
        "schema": "gradprobe.mutate/1",
        "verdict": {0: "killed", 1: "survived", 3: "error"}[campaign.exit_code],
        "target": campaign.target,
        "file": str(campaign.file.path),
        "gate": {"command": gate.words, "own": gate.own, "seconds": campaign.plain_seconds},
        "possible": campaign.possible,
        "chosen": len(campaign.chosen),
        "planted": len(campaign.outcomes),
        **{verdict: len(campaign.having(verdict)) for verdict in _STYLES},
        "mutants": list(map(_as_plain, campaign.outcomes)),
        "reproduce": repro_command,
        "seconds": round(campaign.seconds, 3),
    }


def _as_plain(mutant: Mutant) -> dict[str, Any]:
    names = ("name", "function", "line", "before", "after", "diff", "verdict", "words")
    told = {name: getattr(mutant, name) for name in names}
    return told | {"class": mutant.fault_class, "seconds": round(mutant.seconds, 3)}
