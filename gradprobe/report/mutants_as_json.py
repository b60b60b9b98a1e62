"""A campaign of mutants for programs: schema gradprobe.mutate/1."""

from __future__ import annotations

from typing import Any

from ..mutate.campaign import Campaign, Outcome
from ..mutate.gate import INVALID, KILLED, SURVIVED
from ..mutate.mutant import CLASSES
from .mutants import counts_of

SCHEMA = "gradprobe.mutate/1"
_KEYS = {KILLED: "killed", SURVIVED: "survived", INVALID: "did_not_run", "planted": "planted"}


def campaign_as_json(found: Campaign, again: str) -> dict[str, Any]:
    """The document, ready for `json.dumps`; verdict "survived" where any mutant did, else "killed" or "error"."""
    by_class = {name: counts_of(found, name) for name in CLASSES}
    return {
        "schema": SCHEMA,
        "verdict": {0: "killed", 1: "survived", 3: "error"}[found.exit_code],
        "target": found.target,
        "file": str(found.file),
        "gate": {"command": found.gate.words, "own": found.gate.own, "seconds": round(found.plain_seconds, 3)},
        "possible": len(found.planted),
        "chosen": found.tried,
        "planted": len(found.outcomes),
        **{_KEYS[verdict]: len(found.having(verdict)) for verdict in (KILLED, SURVIVED, INVALID)},
        "classes": {
            name: {_KEYS[key]: count for key, count in counts.items()}
            for name, counts in by_class.items()
            if counts["planted"]
        },
        "mutants": [_mutant(outcome) for outcome in found.outcomes],
        "reproduce": again,
        "seconds": round(found.seconds, 3),
    }


def _mutant(outcome: Outcome) -> dict[str, Any]:
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
