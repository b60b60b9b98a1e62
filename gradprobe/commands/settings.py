"""What a project sets: [tool.gradprobe] of pyproject.toml, in words of the command line, whose flags win over it."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, Option, parse, refuse_unknown_family, word_of
from ..model.failures import UsageFailure, did_you_mean
from .suite.plan import PlannedCheck

# Two options for the same thing: where a flag or a case sets one, the other of the table is ignored.
_EITHER = {"layout": "runs", "runs": "layout"}
# Seconds of a year: what the system's clocks take without overflow.
_LONGEST = 31_536_000.0


def seconds(word: float) -> float:
    if not 0 < word <= _LONGEST:
        most = f"at most {_LONGEST:.0f}"
        raise UsageFailure(f"--timeout must be seconds above 0, and {most}, got {word}")
    return float(word)


_RUNS = next(option for option in OPTIONS if option.name == "runs")
_TIMEOUT = Option("timeout", float, "", parse=seconds)
_SCOPE_ROWS = {
    "targets": Option("targets", list, ""),
    "layouts": _RUNS,
    "family": Option("family", str, "", parse=refuse_unknown_family),
    "reference": Option("reference", str, ""),
}
_CASE_ROWS = {**_SCOPE_ROWS, **{row.name: row for row in OPTIONS if row is not _RUNS}}
_TOP_ROWS = {**_SCOPE_ROWS, "strict": _CASE_ROWS["strict"]}


@dataclass(frozen=True)
class Scope:
    """What the table says, at the top or of one case. Files are told from the current folder."""

    targets: tuple[str, ...] = ()
    family: str | None = None
    reference: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    place: str = ""
    """The file, from the current folder where that is shorter; "" where no project is configured."""
    top: Scope = Scope()
    cases: Mapping[str, Scope] = field(default_factory=dict)
    limit: float | None = None

    def over(self, request: CheckRequest) -> CheckRequest:
        """A check that the command line names. The table's family and reference are those of its own targets."""
        top = self.top if request.target in self.top.targets else Scope()
        family, reference = request.family or top.family, request.reference or top.reference
        options = merged(request.options, self.top.options)
        return CheckRequest(request.target, family, reference, options)

    def timeout(self, given: float | None) -> float | None:
        return self.limit if given is None else seconds(given)

    def configured(self) -> list[PlannedCheck]:
        """Every configured target on every configured case, else the default one, target by target. UsageFailure."""
        top, plan = self.top, list[PlannedCheck]()
        for name, case in (self.cases or {"": Scope()}).items():
            targets = case.targets or top.targets
            if name and not targets:
                what = f"[tool.gradprobe.cases.{name}] of {self.place} has no target"
                way_out = 'add targets = ["FILE.py:FUNCTION"] to it, or to [tool.gradprobe]'
                raise UsageFailure(what, way_out)
            own = (case.family or top.family, case.reference or top.reference)
            for target in targets:
                request = CheckRequest(target, *own, merged(case.options, top.options))
                plan.append(PlannedCheck(f"{target} {name}".rstrip(), request))
        order = [check.request.target for check in plan]
        return sorted(plan, key=lambda check: order.index(check.request.target))


def merged(strong: Mapping[str, Any], weak: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: word for name, word in weak.items() if _EITHER.get(name) not in strong}
    return left | dict(strong)


def settings_of(folder: Path) -> Settings:
    """What the nearest pyproject.toml with a table says, from a folder upwards. UsageFailure."""
    for above in (folder, *folder.parents):
        file = above / "pyproject.toml"
        table = _table_of(file)
        if table is None:
            continue
        top, scopes = dict(table), dict[str, Scope]()
        cases, limit = top.pop("cases", {}), top.pop("timeout", None)
        if not isinstance(cases, dict) or not all(isinstance(c, dict) for c in cases.values()):
            way_out = "write [tool.gradprobe.cases.NAME] above a case's options"
            raise UsageFailure(f"{file}: cases in [tool.gradprobe] must hold tables", way_out)
        for name, case in cases.items():
            scopes[name] = _scope(file, case, f"[tool.gradprobe.cases.{name}]", _CASE_ROWS)
        if limit is not None:
            limit = _word(_TIMEOUT, limit, f"timeout in [tool.gradprobe] of {file}")
        place = min(os.path.relpath(file), str(file), key=len)
        return Settings(place, _scope(file, top, "[tool.gradprobe]", _TOP_ROWS), scopes, limit)
    return Settings()


def _table_of(file: Path) -> Mapping[str, Any] | None:
    try:
        # Of a folder that may not be entered nothing is known, and nobody configures a project there.
        raw = file.read_bytes() if os.path.isfile(file) else b""
    except OSError as error:
        what = f"{file}: it may hold [tool.gradprobe] and cannot be read, {error.strerror}"
        way_out = "make it readable, or add [tool.gradprobe] to one in a folder below it"
        raise UsageFailure(what, way_out) from None
    if b"gradprobe" not in raw.replace(b"\0", b""):  # most files, read by no parser
        return None
    if b"\0" in raw:
        raise UsageFailure(f"{file} must be UTF-8, and is UTF-16 or UTF-32", "save it as UTF-8")
    text = raw.decode(errors="replace")
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        tools = tomllib.loads(text).get("tool", {})
    except (ValueError, RecursionError) as error:
        if "tool.gradprobe" not in text:
            return None
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageFailure(f"{file} is not valid TOML: {why}") from None
    table = tools.get("gradprobe") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageFailure(f"{file}: tool.gradprobe must be a table", "write [tool.gradprobe]")
    return table


def refuse_misspelt(folder: Path) -> None:
    """Raises UsageFailure where a table of nearly this tool's name may be meant, which is not read."""
    for above in (folder, *folder.parents):
        file = above / "pyproject.toml"
        text = file.read_text("utf-8", "replace") if os.path.isfile(file) else ""
        tools = re.findall(r"^\s*\[\s*tool\s*\.\s*[\"']?([\w-]+)", text, re.MULTILINE)
        for close in difflib.get_close_matches("gradprobe", tools, 1, 0.85):
            what = f"{file}: [tool.{close}] is no table of gradprobe's"
            raise UsageFailure(what, "did you mean [tool.gradprobe]? else name a TARGET")


def _scope(
    file: Path, content: Mapping[str, Any], title: str, rows: Mapping[str, Option]
) -> Scope:
    """What a table holds; its files, which are told from its own folder, from the current one."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name, place = key.replace("-", "_"), f"in {title} of {file}"
        if name not in rows:
            way_out = did_you_mean(name, rows, "") or did_you_mean(name, rows)
            raise UsageFailure(f"unknown key {key!r} {place}", way_out)
        if name in found:
            raise UsageFailure(
                f"{key!r} is set twice {place}, with - and with _", "keep one of them"
            )
        found[name] = _word(rows[name], value, f"{key} {place}")

    def from_here(word: str) -> str:
        place, colon, name = word.rpartition(":")
        if not colon or not place.endswith((".py", ".cu")):
            return word
        return f"{os.path.relpath(file.parent / place)}:{name}"

    targets = tuple(map(from_here, found.pop("targets", ())))
    reference = from_here(found.pop("reference")) if "reference" in found else None
    if "inputs" in found:
        found["inputs"] = os.path.relpath(file.parent / found["inputs"])
    if "layouts" in found:
        found["runs"] = found.pop("layouts")
    return Scope(targets, found.pop("family", None), reference, found)


def _word(option: Option, value: Any, where: str) -> Any:
    """A value as the command line would hold it, once its option takes it."""
    word = word_of(option, value)
    if word is None or word == []:
        raise UsageFailure(f"{where} must be {option.expected}, got {value!r}")
    try:
        if option in OPTIONS:
            parse({option.name: word})
        elif option.parse is not None:
            option.parse(word)
    except UsageFailure as refused:
        raise UsageFailure(f"{where}: {refused}", refused.way_out) from None
    return word
