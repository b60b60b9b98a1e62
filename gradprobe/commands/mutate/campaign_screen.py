"""A campaign of mutants for people: how many were killed, by class, then every survivor with its edit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import CAUTION
from ...render.rows import folded, headed
from .campaign import INVALID, KILLED, SURVIVED, Campaign, MutantOutcome
from .mutants import CLASSES, Mutant

_CELL = 9
_GAP = "survived: the gate has a gap, or the edit changes no result"
# Mutants that did not run and are named; the others are in the JSON.
_NAMED = 3
_STYLES = {KILLED: "green", SURVIVED: "bold red", INVALID: CAUTION}


def render_campaign(campaign: Campaign, width: int) -> list[Text]:
    """The campaign as lines; the table fits 80 columns, sentences and code are folded to `width`."""
    lines = [*_verdict(campaign, width), Text(), *_table(campaign), Text()]
    survivors = campaign.having(SURVIVED)
    if survivors:
        lines.append(Text(f"  {_GAP}", "dim"))
    for outcome in survivors:
        lines += _mutant(outcome.mutant, width)
    for sentence in _sentences(campaign):
        lines += folded(sentence, width)
    return lines


def _verdict(campaign: Campaign, width: int) -> list[Text]:
    invalid = len(campaign.having(INVALID))
    verdict, style = "NOT RUN", f"bold {CAUTION}"
    if campaign.exit_code < 3:
        verdict = (KILLED, SURVIVED)[campaign.exit_code]
        style = ("bold green", "bold red")[campaign.exit_code]
    count = len(campaign.having(verdict)) if campaign.exit_code < 3 else invalid
    words = f"{count:,} of {plural(len(campaign.outcomes), 'fault')}"
    if invalid and count != invalid:
        words += f" ({invalid:,} did not run)"
    told = f"{words}: {campaign.target}, by {campaign.gate.words}"
    return list(headed(verdict.upper(), style, told, width))


def _table(campaign: Campaign) -> Iterator[Text]:
    longest = max(map(len, CLASSES.values()))
    heads = "".join(f"{head:>{_CELL}}" for head in ("planted", "killed", "survived", "not run"))
    yield Text(f"  {'class':<{longest + 6}}{heads}", "dim")
    for name, (planted, *counts) in _counts(campaign).items():
        line = Text(f"  {name:<6}{CLASSES[name]:<{longest}}{planted:>{_CELL}}")
        for count, style in zip(counts, _STYLES.values(), strict=True):
            line.append(f"{count:>{_CELL}}", style if count else "dim")
        yield line


def _counts(campaign: Campaign) -> dict[str, list[int]]:
    """By class how many mutants were planted, killed, survived and did not run; without those of which none was."""
    found = {}
    for name in CLASSES:
        those = [each for each in campaign.outcomes if each.mutant.fault_class == name]
        verdicts = [outcome.verdict for outcome in those]
        if verdicts:
            found[name] = [len(verdicts), *map(verdicts.count, _STYLES)]
    return found


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
    for outcome in invalid[:_NAMED]:
        words = outcome.words.removeprefix("gradprobe: ")
        yield f"did not run: {outcome.mutant.name}, line {outcome.mutant.line}: {words}"
    if len(invalid) > _NAMED:
        yield f"and {len(invalid) - _NAMED:,} more did not run: --json FILE names them"
    faults = plural(campaign.possible, "fault")
    possible = f"{faults} that can be planted in {campaign.file.path.name}"
    took = f"in {campaign.seconds:.0f} s; the gate alone takes {campaign.plain_seconds:.1f} s"
    yield f"tried {len(campaign.outcomes):,} of {possible}, {took}"


_KEYS = ("planted", "killed", "survived", "did_not_run")


def campaign_as_json(campaign: Campaign, repro_command: str) -> dict[str, Any]:
    """The document, ready for `json.dumps`; verdict "survived" where any mutant did, else "killed" or "error"."""
    gate, counts = campaign.gate, [len(campaign.outcomes)]
    counts += [len(campaign.having(verdict)) for verdict in _STYLES]
    by_class = {}
    for name, numbers in _counts(campaign).items():
        by_class[name] = dict(zip(_KEYS, numbers, strict=True))
    own = {"command": gate.words, "own": gate.own, "seconds": round(campaign.plain_seconds, 3)}
    return {
        "schema": "gradprobe.mutate/1",
        "verdict": {0: "killed", 1: "survived", 3: "error"}[campaign.exit_code],
        "target": campaign.target,
        "file": str(campaign.file.path),
        "gate": own,
        "possible": campaign.possible,
        "chosen": len(campaign.chosen),
        **dict(zip(_KEYS, counts, strict=True)),
        "classes": by_class,
        "mutants": list(map(_as_plain, campaign.outcomes)),
        "reproduce": repro_command,
        "seconds": round(campaign.seconds, 3),
    }


def _as_plain(outcome: MutantOutcome) -> dict[str, Any]:
    mutant = outcome.mutant
    same = ("name", "function", "line", "before", "after", "diff")
    return {name: getattr(mutant, name) for name in same} | {
        "class": mutant.fault_class,
        "verdict": outcome.verdict.replace(" ", "_"),
        "words": outcome.words,
        "seconds": round(outcome.seconds, 3),
    }
