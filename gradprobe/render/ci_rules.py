"""The rules that reports for CI name: ids that never change, each told in topics/rules.md.

An id is never given to another rule, nor taken back: alerts that somebody closed are known by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import memory_finding as memory
from .topics.topic import RULE, Topic, topics


@dataclass(frozen=True)
class Rule:
    """One kind of finding."""

    id: str
    name: str
    """In CamelCase, for lists of rules."""
    level: str
    """SARIF's: error, warning, note, or none for what is told and no finding."""
    rank: float
    """0 to 100, the worst first."""
    topic: Topic
    """What it means, and what to do."""


def _rule(topic: Topic) -> Rule:
    name, level, rank = topic.detail.split(", ")
    return Rule(topic.name, name, level, float(rank), topic)


RULES = tuple(
    _rule(topic) for topic in topics() if topic.kind == RULE and topic.name.startswith("GP")
)
_BY_ID = {rule.id: rule for rule in RULES}
WRONG, INHERITED, IDENTITY, CAUSE = (_BY_ID[f"GP{number:03}"] for number in (1, 2, 3, 4))
REFERENCE, TOOL, USAGE, REFUSED = (_BY_ID[f"GP{number:03}"] for number in (23, 24, 25, 30))
_WARNED = (memory.HUGE, memory.VECTOR, memory.UNDECLARED)
OF_WARNING = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_WARNED, 40)}
_KINDS = [
    "outside",
    "guard",
    "unwritten",
    "race",
    "barrier",
    "misaligned",
    "changed",
    "shared",
    "dtype",
    "shuffle",
]
OF_MEMORY = {kind: _BY_ID[f"GP{number:03}"] for number, kind in enumerate(_KINDS, 10)}
_FAILURES = {
    "GP020": "Crash DeviceLost NoRoom",
    "GP021": "Timeout",
    "GP022": "TargetFailure RanksFailure Refusal KernelStopped NoKernel",
    "GP023": "ReferenceFailure",
    "GP025": "UsageFailure UntestedVersion InputsFailure",
    "GP026": "Incomplete",
    "GP027": "CompileError",
}
OF_FAILURE = {kind: _BY_ID[known] for known, kinds in _FAILURES.items() for kind in kinds.split()}
