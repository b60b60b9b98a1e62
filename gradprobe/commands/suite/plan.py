"""Plan: checks with a title each, to which steps may add more; and what of a target plans depend on."""

import contextlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

from ...inputs.history import CheckRequest
from ...inputs.options import command_line
from ...model.assignment import parse_run, planned_runs, run_name
from ...model.case import Case
from ...model.documents import Coverage, RefusedCase
from ...model.failures import Failure
from ...model.report import Report
from ...processes import run_each, run_here

# Entries of P that take as long as what each check takes.
_AS_LONG = 16_000


@dataclass(frozen=True)
class Counterpart:
    name: str
    report: Report
    kept: str
    """The file of what its target gave; "" where it gave nothing."""


@dataclass(frozen=True)
class PlannedCheck:
    title: str
    """A short name of its case: "gqa", "heads=3 dtype=float16"."""
    request: CheckRequest
    close_up: tuple[str, tuple[int, int] | None] | None = None
    """Of one intermediate that is asked for its name, and the batch and head to show."""
    kept: str = ""
    """The file for what the target gave, for a check that is set beside this one."""
    against: Counterpart | None = None
    chosen: str = ""
    """Why it is of this target, where nobody named one."""
    fresh: bool = False
    functions: tuple[Callable[..., Any] | None, Callable[..., Any] | None] = (None, None)
    """What stands in this process for the word of the target, and of the reference."""
    number: int | None = None
    """Its place in the table of several; None for its place in the plan."""
    beyond: str = ""
    """What it asks for that no parameter of the target tells; "" where there is no such thing."""

    @cached_property
    def cost(self) -> float:
        """About how long it takes, where 1 is what each takes however small it is."""
        given = self.request.options
        packed = str(given.get("cu_seqlens", "")).rpartition(",")[2]
        length = int(packed) if packed.isdecimal() else given.get("seqlen", Case.seqlen_q)
        entries = given.get("seqlen_q", length) * given.get("seqlen_k", length)
        batch = 1 if packed else given.get("batch", Case.batch)
        return 1.0 + float(given.get("heads", Case.heads) * batch * entries) / _AS_LONG

    def number_at(self, place: int) -> int:
        return place if self.number is None else self.number

    @property
    def shared(self) -> tuple[object, ...]:
        request = self.request
        return request.target, request.reference, request.options.get("device")

    @property
    def layouts(self) -> tuple[str, ...]:
        options = self.request.options
        if "layout" in options:
            return (" ".join(options["layout"]),)
        asked = tuple(map(parse_run, options.get("runs") or ()))
        return tuple(map(run_name, planned_runs(asked, are_saved="inputs" in options)))

    @property
    def case_line(self) -> str:
        given = self.request.options.items()
        words = titled({name: word for name, word in given if not isinstance(word, list)})
        return f"{self.request.target}  {' '.join(words)}".rstrip()

    @property
    def repro_command(self) -> str:
        """The command line that repeats it alone; "" where a function has no word."""
        request, (name, at) = self.request, self.close_up or ("", None)
        if not request.target or request.reference == "":
            return ""
        words: dict[str, Any] = {"family": request.family, "reference": request.reference}
        words |= {"at": f"{at[0]},{at[1]}"} if at else {}
        words |= {"against": self.against.name} if self.against else {}
        words |= {"fresh": True} if self.fresh else {}
        command = f"diff {name}" if name else "check"
        return command_line(command, request.target, request.options, words)


Steps = Generator[Sequence[PlannedCheck], Any, Any]
"""It yields the checks to add to a plan, and is sent each CheckOutcome as it comes."""


@dataclass
class Plan:
    """Several checks: what pyproject.toml configures, a battery, a sweep."""

    checks: list[PlannedCheck] = field(default_factory=list)
    """Those that are known; grows behind its end."""
    steps: Steps | None = None
    """What adds others, begun with the first of `checks`."""
    is_own: bool = False
    """Whether nobody asked for its cases by name: then what a target refuses, or takes by no parameter, is no error."""
    looks_closer: bool = False
    """Whether the simplest that fails is made once more with the inside of a black box."""
    untaken: list[RefusedCase] = field(default_factory=list)
    titles: Sequence[str] = ()
    """Such as those of checks that are added may be."""
    coverage: Coverage | None = None
    """Which combinations all of them hold, once all are made."""

    def add(self, outcome: Any) -> list[PlannedCheck]:
        try:
            added = [*self.steps.send(outcome)] if self.steps is not None else []
        except StopIteration:
            self.steps, added = None, []
        self.checks += added
        return added

    def progress(self, done: Sequence[PlannedCheck]) -> tuple[str, float]:
        """How many are made, in words, and the share of all by what they cost."""
        whole, spent = (sum(map(attrgetter("cost"), checks)) for checks in (self.checks, done))
        return f"{len(done)} of {len(self.checks)} made", spent / whole


_SHORT = {
    "seqlen": "L", "seqlen_q": "Lq", "seqlen_k": "Lk", "head_dim": "D", "head_dim_v": "Dv", "heads": "H",
    "kv_heads": "Hkv", "batch": "B",
}  # fmt: skip


def titled(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(name if value else f"no-{name}")
        elif name in ("dtype", "pattern"):
            words.append(value)
        else:
            words.append(f"{_SHORT.get(name, name.replace('_', '-'))}={value}")
    return words


DESCRIBER = f"{__name__}:Describer"


@dataclass(frozen=True)
class TargetSignature:
    """What of a target's signature cases depend on."""

    family: str
    names: frozenset[str]
    required: frozenset[str]
    device: str = "cpu"
    file: str = ""
    """With `function`, its Python source; "" where there is none."""
    function: str = ""


class Describer:
    """`Describer(device)(request)`: torch is imported first, outside any timeout."""

    def __init__(self, device: str) -> None:
        from ...runtime.backend import prepare_backend

        self._device = prepare_backend(device)

    def __call__(self, request: CheckRequest) -> TargetSignature:
        from ...frontends.triton import stand_in_for
        from ...targets.find import find_target

        stand_in_for(request.options.get("arch"))
        with contextlib.redirect_stdout(sys.stderr):
            target = find_target(request.target, request.family)
        takes = target.family, frozenset(target.takes), target.required
        return TargetSignature(*takes, self._device, target.source.file, target.source.name)


def described(
    request: CheckRequest, timeout: float | None, *, isolate: bool = True
) -> TargetSignature | None:
    asked, found = (DESCRIBER, str(request.options.get("device", "auto")), [request]), None
    with contextlib.suppress(Failure):
        (ended,) = run_each(*asked, timeout=timeout) if isolate else run_here(*asked)
        found = ended.result
    return found
