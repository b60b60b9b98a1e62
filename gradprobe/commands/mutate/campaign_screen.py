"""A campaign of mutants for people: how many were killed, by class, then every survivor with its edit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from ...model.number import plural
from ...render.notation import CAUTION, folded, headed
from .campaign import INVALID, KILLED, LATE, SURVIVED, Campaign, MutantOutcome
from .mutant import CLASSES, Mutant

_CELL = 9
_GAP = "survived: the gate has a gap, or the edit changes no result"
# Mutants that did not run and are named; the others are in the JSON.
_NAMED = 3


def render_campaign(campaign: Campaign, width: int) -> list[Text]:
    """The campaign as lines; the table fits 80 columns, sentences and code are folded to `width`."""
    lines = [*_verdict(campaign, width), Text(), *_table(campaign), Text()]
    survivors = campaign.having(SURVIVED)
    if survivors:
        lines.append(Text(f"  {_GAP}", "dim"))
    for outcome in survivors:
        more = "; this gate never runs that line" if outcome.ran is False else ""
        lines += [_head(outcome.mutant, more), *_edit(outcome.mutant, width)]
    return [*lines, *(line for sentence in _sentences(campaign) for line in folded(sentence, width))]


def render_list(mutants: Sequence[Mutant], of: int, width: int) -> list[Text]:
    """Mutants that are not tried, each with its edit.

    Args:
        of: how many there are in all.
    """
    lines = [line for mutant in mutants for line in (_head(mutant), *_edit(mutant, width))]
    part = f", {len(mutants):,} of them here" if len(mutants) < of else ""
    return [*lines, Text(f"{plural(of, 'fault')} can be planted{part}")]


def _verdict(campaign: Campaign, width: int) -> Iterator[Text]:
    killed, survived, invalid = (len(campaign.having(verdict)) for verdict in (KILLED, SURVIVED, INVALID))
    count, verdict, style = killed, "KILLED", "bold green"
    if survived:
        count, verdict, style = survived, "SURVIVED", "bold red"
    elif not killed:
        count, verdict, style = invalid, "NOT RUN", f"bold {CAUTION}"
    words = f"{count:,} of {plural(len(campaign.outcomes), 'fault')}"
    words += f" ({invalid:,} did not run)" if invalid and count != invalid else ""
    yield from headed(verdict, style, f"{words}: {campaign.target}, by {campaign.gate.words}", width)


def _table(campaign: Campaign) -> Iterator[Text]:
    heads = ("planted", "killed", "survived", "not run")
    longest = max(map(len, CLASSES.values()))
    yield Text(f"  {'class':<{longest + 6}}" + "".join(f"{head:>{_CELL}}" for head in heads), "dim")
    for name, words in CLASSES.items():
        counts = counts_of(campaign, name)
        if counts["planted"]:
            line = Text(f"  {name:<6}{words:<{longest}}{counts['planted']:>{_CELL}}")
            for verdict, style in ((KILLED, "green"), (SURVIVED, "bold red"), (INVALID, CAUTION)):
                line.append(f"{counts[verdict]:>{_CELL}}", style if counts[verdict] else "dim")
            yield line


def counts_of(campaign: Campaign, fault_class: str) -> dict[str, int]:
    """How many mutants of a class were planted, and how many came to each verdict."""
    those = [outcome.verdict for outcome in campaign.outcomes if outcome.mutant.fault_class == fault_class]
    return {"planted": len(those), **{verdict: those.count(verdict) for verdict in (KILLED, SURVIVED, INVALID)}}


def _head(mutant: Mutant, more: str = "") -> Text:
    words = f"  {mutant.fault_class}  {mutant.name} in {mutant.function}{more}"
    return Text.assemble("  ", (f"{mutant.file.rpartition('/')[2]}:{mutant.line}", "bold"), words)


def _edit(mutant: Mutant, width: int) -> Iterator[Text]:
    for sign, code, style in (("-", mutant.before, "red"), ("+", mutant.after, "green")):
        fold = textwrap.TextWrapper(max(width, 40), f"    {sign} ", " " * 10, break_on_hyphens=False)
        yield from (Text(line, style) for line in fold.wrap(code))


def _sentences(campaign: Campaign) -> Iterator[str]:
    survivors, killed = campaign.having(SURVIVED), campaign.having(KILLED)
    idle = [outcome for outcome in survivors if outcome.ran is False]
    if idle:
        lines = ", ".join(map(str, sorted({outcome.mutant.line for outcome in idle})))
        yield f"{len(idle):,} of {plural(len(survivors), 'survivor')} changed a line that this gate never runs: {lines}"
    invalid = campaign.having(INVALID)
    for outcome in invalid[:_NAMED]:
        words = outcome.words.removeprefix("gradprobe: ")
        yield f"did not run: {outcome.mutant.name}, line {outcome.mutant.line}: {words}"
    if len(invalid) > _NAMED:
        yield f"and {len(invalid) - _NAMED:,} more did not run: --json FILE names them"
    late = sum(outcome.words.startswith(LATE) for outcome in killed)
    if late:
        yield f"{late:,} of the killed were stopped because the gate did not end"
    possible = f"{plural(len(campaign.planted), 'fault')} that can be planted in {campaign.file.name}"
    took = f"in {campaign.seconds:.0f} s; the gate alone takes {campaign.plain_seconds:.1f} s"
    yield f"tried {len(campaign.outcomes):,} of {possible}, {took}"


SCHEMA = "gradprobe.mutate/1"
_KEYS = {KILLED: "killed", SURVIVED: "survived", INVALID: "did_not_run", "planted": "planted"}


def campaign_as_json(campaign: Campaign, repro_command: str) -> dict[str, Any]:
    """The document, ready for `json.dumps`; verdict "survived" where any mutant did, else "killed" or "error"."""
    by_class = {name: counts_of(campaign, name) for name in CLASSES}
    return {
        "schema": SCHEMA,
        "verdict": {0: "killed", 1: "survived", 3: "error"}[campaign.exit_code],
        "target": campaign.target,
        "file": str(campaign.file),
        "gate": {"command": campaign.gate.words, "own": campaign.gate.own, "seconds": round(campaign.plain_seconds, 3)},
        "possible": len(campaign.planted),
        "chosen": campaign.tried,
        "planted": len(campaign.outcomes),
        **{_KEYS[verdict]: len(campaign.having(verdict)) for verdict in (KILLED, SURVIVED, INVALID)},
        "classes": {
            name: {_KEYS[key]: count for key, count in counts.items()}
            for name, counts in by_class.items()
            if counts["planted"]
        },
        "mutants": [_mutant(outcome) for outcome in campaign.outcomes],
        "reproduce": repro_command,
        "seconds": round(campaign.seconds, 3),
    }


def _mutant(outcome: MutantOutcome) -> dict[str, Any]:
    mutant = outcome.mutant
    return {
        "name": mutant.name,
        "class": mutant.fault_class,
        "function": mutant.function,
        "line": mutant.line,
        "verdict": _KEYS[outcome.verdict],
        "words": outcome.words,
        "line_ran": outcome.ran,
        "before": mutant.before,
        "after": mutant.after,
        "diff": mutant.diff,
        "seconds": round(outcome.seconds, 3),
    }
