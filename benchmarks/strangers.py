"""How well faults in kernels that are not of this repository are found, placed, explained and mended.

    python benchmarks/strangers.py FOLDER [--faults 25] [--seed 0] [--workers 2] [--only NAME] [--json FILE]
        [--hosts]

FOLDER holds a folder for each kernel, with a file `words`: what follows `gradprobe check`, run in that folder. Where
TARGET is an adapter, a file `kernels` names the file that holds the kernels. Faults are planted with mutate's
operators, drawn under the seed, four times as many as asked for. Every one is judged by `judge.py`, which runs the
kernel in the same layouts and holds O and the gradients against autograd of a dense float64 forward. Checked are the
first that are wrong, as many as asked for, and half as many that change nothing. With --hosts they are planted in host
code, with the operators of `host_operators.py`: in launches, grids and buffers, and in what comes back.

A fault is wrong where a result errs by over 8 times what the kernel errs by as it is, and changes nothing where no
result errs by over 1.5 times that. What lies between is rounding, and counts as neither; nor does what does not run
in each layout in which the kernel runs as it is.

  found   the check ends with a mismatch
  placed  the report's first mismatch is right in three things. Head: its own has a wrong result. Intermediate: a wrong
          result is made of it, and every wrong result of one that is called wrong by itself. Kernel: the foremost
          diagnosis has a line in the function that holds the fault, in one that calls it, or in one that it calls.
  line    the foremost diagnosis has a line within the statement that was changed. Mutants only change statements: none
          goes away, so the statement is always there to be named.
  named   the foremost diagnosis explains enough to be called the cause, and has the fault's line, or is of its kind:
          addresses (S1 to S3), which keys and tiles (M1 to M3), or the class itself
  fixed   the tried edit of a diagnosis makes the kernel right again, by the dense judge; one with which it rounds
          otherwise is neither fixed nor wrong
  certain the tried edit is called certain
  seconds the middle one of a check, while as many others ran as there are workers

Each edit that makes the check match is also run in 20 configurations (`configurations.py`), which the tool does not
know: they are drawn of what the kernel is right with as it is, and how many there may be is said.

What must stay 0: edits that change nothing and are flagged, by a number (what touches memory that is not its own is
told apart: no result shows that), causes that have neither the line nor the kind, and edits that are called
certain after which the judge finds a wrong result, in the layouts of the check or in one of the configurations.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JUDGE = Path(__file__).resolve().with_name("judge.py")
sys.path.insert(0, str(ROOT))

# Of the kernel's own largest error in a layout: an error of more is wrong, an error of less changes nothing.
WRONG, SAME = 8.0, 1.5
# How many faults are drawn for one that is asked for: many change nothing, round or do not run.
DRAWN = 4
LIMIT = 1800.0
RESULTS = ("O", "dQ", "dK", "dV", "dBias", "dSink")
# What is made of each intermediate.
GRADIENTS = frozenset(("dQ", "dK", "dV", "dBias", "dSink"))
MADE_OF = {
    "LSE": GRADIENTS | {"O"}, "P": GRADIENTS | {"O"}, "O": GRADIENTS | {"O"},
    "dP": GRADIENTS - {"dV"}, "delta": GRADIENTS - {"dV"}, "dS": GRADIENTS - {"dV", "dSink"},
    **{name: {name} for name in GRADIENTS},
}  # fmt: skip

# Classes between which mutate and a diagnosis may choose for one fault.
KINDS = {
    **dict.fromkeys(("S1", "S2", "S3"), "address"),
    **dict.fromkeys(("M1", "M2", "M3"), "keys"),
}

Errors = Mapping[str, Mapping[str, Sequence[float | None]]]


@dataclass(frozen=True)
class Trial:
    """One fault, and what came of it."""

    kernel: str
    mutant: str
    fault_class: str
    function: str
    lines: tuple[int, int]
    diff: str
    judged: str
    """wrong or same."""
    found: bool
    by_memory: bool
    """Whether it was found by what was read or written outside a tensor, or by several programs, and no number."""
    head: bool
    intermediate: bool
    in_kernel: bool
    line: bool
    named: bool
    misnamed: bool
    """Whether a cause was named that has neither the fault's line nor its kind."""
    fixed: bool | None
    """None where no edit is told as tried."""
    certain: bool
    """Whether that edit is called certain."""
    wrong_in: tuple[str, ...]
    """The words of the configurations that the judge drew in which the kernel is wrong with it."""
    drawn: int
    """How many configurations it was run in."""
    first: str
    cause: str
    said: tuple[int, ...]
    """The lines of the foremost diagnosis."""
    seconds: float
    exit_code: int | None

    @property
    def placed(self) -> bool:
        return self.head and self.intermediate and self.in_kernel


def main() -> None:
    from host_operators import OPERATORS as HOST_OPERATORS

    from gradprobe.commands.mutants import OPERATORS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", type=int, default=25, help="faults of each kernel (25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="kernels whose folder begins with this")
    parser.add_argument(
        "--json", type=Path, help="also write every trial there, after each kernel"
    )
    parser.add_argument("--hosts", action="store_true", help="faults of host code")
    given = parser.parse_args()
    found: list[Trial] = []
    out = given.json.resolve() if given.json else None
    operators = HOST_OPERATORS if given.hosts else OPERATORS
    for folder in sorted(path.parent.resolve() for path in given.folder.glob("*/words")):
        if folder.name.startswith(given.only):
            here = trials_of(folder, given.faults, given.seed, given.workers, operators)
            found += here
            print("\n".join([table(folder.name, here), *missed(here)]), flush=True)
            if out:
                out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    print(table("all", found))


def table(name: str, trials: Sequence[Trial]) -> str:
    """The figures of some trials, in two lines."""
    wrong = [one for one in trials if one.judged == "wrong"]
    counts = {
        "found": sum(one.found for one in wrong), "placed": sum(one.placed for one in wrong),
        "line": sum(one.line for one in wrong), "named": sum(one.named for one in wrong),
        "fixed": sum(one.fixed is True for one in wrong),
    }  # fmt: skip
    edits = [one for one in trials if one.fixed is not None or one.drawn]
    certain = [one for one in edits if one.certain]
    same = [one for one in trials if one.judged == "same" and one.found]
    middle = statistics.median(one.seconds for one in wrong) if wrong else 0.0
    judged = sum(one.judged == "same" for one in trials)
    return (
        f"{name}: {', '.join(f'{title} {count}' for title, count in counts.items())} of {len(wrong)}; {middle:.0f} s\n"
        f"  of {judged} that change nothing flagged {sum(not one.by_memory for one in same)}"
        f" (by memory alone {sum(one.by_memory for one in same)}); causes of neither line nor kind"
        f" {sum(one.misnamed for one in trials)}\n"
        f"  of {len(edits)} edits that match the check {len(certain)} are called certain; wrong of these"
        f" {sum(map(is_wrong, certain))}, of the others {sum(map(is_wrong, edits)) - sum(map(is_wrong, certain))}"
    )


def is_wrong(one: Trial) -> bool:
    """Whether the judge finds an edit wrong, in the layouts of the check or in a configuration that it drew."""
    return one.fixed is False or bool(one.wrong_in)


def missed(trials: Sequence[Trial]) -> Iterator[str]:
    """What to look at: a fault that was not both placed and given its line, and what is flagged and right."""
    for one in trials:
        if one.judged == "wrong" and (
            one.wrong_in or not (one.found and one.placed and one.line and one.fixed)
        ):
            lacks = [
                name
                for name in ("found", "head", "intermediate", "in_kernel", "line")
                if not getattr(one, name)
            ]
            lacks += {None: ["no edit"], False: ["WRONG EDIT"], True: []}[one.fixed]
            certain = "CERTAIN AND" if one.certain else "its edit is"
            lacks += [f"{certain} WRONG in {words}" for words in one.wrong_in[:1]]
            yield f"    {one.function}:{one.lines[0]} {one.mutant}: not {', '.join(lacks)}; first {one.first or '-'}"
            yield f"      said {one.cause or 'nothing'} {list(one.said)}"
        elif one.judged == "same" and one.found and not one.by_memory:
            yield f"    {one.function}:{one.lines[0]} {one.mutant}: FLAGGED, first {one.first}, {one.cause}"


def trials_of(
    folder: Path, faults: int, seed: int, workers: int, operators: Mapping[str, Any]
) -> list[Trial]:
    """The faults of one kernel, each checked and judged."""
    from gradprobe.commands.mutants import mutants_of, read_file, sampled

    words = shlex.split((folder / "words").read_text())
    named = folder / "kernels"
    path, _, function = words[0].partition(":")
    file = (
        read_file(folder / named.read_text().strip(), None)
        if named.exists()
        else read_file(folder / path, function)
    )
    name = str(file.path.relative_to(folder))
    mutants = sampled(mutants_of(file, operators), DRAWN * faults, seed)
    random.Random(seed).shuffle(mutants)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        plain = Copy.of(folder, name, file.text, Path(scratch) / "plain", words)
        (ended,) = run([plain.judging()], 1)
        own = plain.found("dense")
        if not own:
            raise SystemExit(
                f"{folder.name} does not run as it is: gradprobe check {shlex.join(words)}: {ended.output}"
            )
        planted = {
            one: Copy.of(folder, name, one.plant(file.text), Path(scratch) / one.name, words)
            for one in mutants
        }
        chosen = judged(planted, own, {"wrong": faults, "same": faults // 2}, workers)
        ends = dict(
            zip(chosen, run([planted[one].check() for one in chosen], workers), strict=True)
        )
        mended = {
            one: Copy.of(folder, name, text, Path(scratch) / f"{one.name}-mended", words)
            for one in chosen if (text := mended_text(planted[one].found("report"), one.plant(file.text))) is not None
        }  # fmt: skip
        run([copy.judging() for copy in mended.values()], workers)
        verdicts = {one: verdict(copy.found("dense"), own) for one, copy in mended.items()}
        right = {one: came == "same" for one, came in verdicts.items() if came != "rounding"}
        wrong, count = wrong_configurations(plain, mended, seed, workers)
        came = {
            one: (right.get(one), wrong[one], count) if one in mended else (None, (), 0)
            for one in chosen
        }
        return [
            trial(folder.name, one, file, ends[one], planted[one], own, *came[one])
            for one in chosen
        ]


def wrong_configurations(
    plain: Copy, mended: Mapping[Any, Copy], seed: int, workers: int
) -> tuple[dict[Any, tuple[str, ...]], int]:
    """By fault, the drawn configurations in which the kernel is wrong with the edit for it; and of how many."""
    from configurations import drawn

    if not mended:
        return {}, 0
    found = drawn(plain.words[1:], seed, plain.judged_each)
    print(
        f"  {len(found.words)} configurations, drawn of {found.possible} that it may take",
        flush=True,
    )
    run([copy.judging_each(found.words) for copy in mended.values()], workers)
    wrong = {}
    for one, copy in mended.items():
        both = zip(copy.found_each(len(found.words)), found.errors, found.words, strict=True)
        wrong[one] = tuple(
            shlex.join(words)
            for came, own, words in both
            if verdict(came, own) in ("wrong", "not run")
        )
    return wrong, len(found.words)


def judged(
    planted: Mapping[Any, Copy], own: Errors, wanted: Mapping[str, int], workers: int
) -> list[Any]:
    """The first mutants of each verdict, as many as are wanted; judged in turn, until there are enough."""
    found: dict[str, list[Any]] = {verdict: [] for verdict in wanted}
    mutants = list(planted)
    for start in range(0, len(mutants), 2 * workers):
        if all(len(found[name]) >= most for name, most in wanted.items()):
            break
        chunk = mutants[start : start + 2 * workers]
        run([planted[one].judging() for one in chunk], workers)
        for one in chunk:
            found.setdefault(verdict(planted[one].found("dense"), own), []).append(one)
    return [one for name, most in wanted.items() for one in found[name][:most]]


@dataclass(frozen=True)
class Copy:
    """A kernel's folder with one file of another text."""

    folder: Path
    words: tuple[str, ...]
    """What follows `gradprobe check`, from anywhere."""

    @classmethod
    def of(cls, folder: Path, file: str, text: str, copy: Path, words: Sequence[str]) -> Copy:
        """Writes the copy."""
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", ".gradprobe"))
        (copy / file).write_text(text)
        return cls(copy, (f"{copy}/{words[0]}", *words[1:]))

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(self.folder), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def check(self) -> Any:
        """The program that checks it, and leaves its report there."""
        from gradprobe.processes.executables import Program

        command = (
            sys.executable,
            "-m",
            "gradprobe",
            "check",
            *self.words,
            "--json",
            str(self.folder / "report"),
        )
        return Program(command, self.environment)

    def judging(self) -> Any:
        """The program that judges it, and leaves what it finds there."""
        from gradprobe.processes.executables import Program

        return Program(
            (sys.executable, str(JUDGE), str(self.folder / "dense"), *self.words),
            self.environment,
        )

    def judging_each(self, configurations: Sequence[Sequence[str]]) -> Any:
        """The program that judges it in several configurations."""
        from gradprobe.processes.executables import Program

        given = self.folder / "configurations"
        given.write_text(json.dumps(configurations))
        command = (
            sys.executable,
            str(JUDGE),
            str(self.folder / "each"),
            "--each",
            str(given),
            self.words[0],
        )
        return Program(command, self.environment)

    def found_each(self, count: int) -> list[Errors]:
        """What that program left there of so many; {} of those that it did not come to."""
        try:
            found = list(json.loads((self.folder / "each").read_text()))
        except (OSError, ValueError):
            found = []
        return [*found, *({} for _ in range(count - len(found)))]

    def judged_each(self, configurations: Sequence[Sequence[str]]) -> list[Errors]:
        """What the judge finds in each."""
        run([self.judging_each(configurations)], 1)
        return self.found_each(len(configurations))

    def found(self, name: str) -> dict[str, Any]:
        """What one of these programs left there."""
        return loaded(self.folder / name)


def run(programs: Sequence[Any], workers: int) -> list[Any]:
    """How each program ended, in their order."""
    from gradprobe.processes.executables import run_programs

    return sorted(
        run_programs(programs, timeout=LIMIT, workers=workers), key=lambda ran: ran.number
    )


def loaded(path: Path) -> dict[str, Any]:
    """A JSON file; {} of one that is not there or was cut off."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def mended_text(report: Mapping[str, Any], text: str) -> str | None:
    """A file with the first edit of a report's diagnoses with which everything is said to match; None without one."""
    edits = [diagnosis.get("edit") or {} for diagnosis in report.get("diagnoses", ())]
    return next(
        (
            patched(text, edit["diff"])
            for edit in edits
            if edit.get("matches") and edit.get("diff")
        ),
        None,
    )


def is_certain(report: Mapping[str, Any]) -> bool:
    """Whether the edit that `mended_text` takes is called certain."""
    edits = [diagnosis.get("edit") or {} for diagnosis in report.get("diagnoses", ())]
    first = next((edit for edit in edits if edit.get("matches") and edit.get("diff")), None)
    return first is not None and not any(first.get(name) for name in ("doubts", "not_run"))


def patched(text: str, diff: str) -> str:
    """A text with a unified diff applied at the lines that its hunks name."""
    lines, shift, at = text.splitlines(keepends=True), 0, 0
    for line in diff.splitlines():
        if line.startswith("@@"):
            first, _, count = line.split()[1].removeprefix("-").partition(",")
            at = int(first) - 1 + shift + (count == "0")
        elif line.startswith(("---", "+++")):
            continue
        elif line.startswith("-"):
            assert lines[at].rstrip("\r\n") == line[1:], (lines[at], line)
            del lines[at]
            shift -= 1
        elif line.startswith("+"):
            lines.insert(at, line[1:] + "\n")
            at, shift = at + 1, shift + 1
        else:
            at += 1
    return "".join(lines)


def verdict(dense: Errors, own: Errors) -> str:
    """wrong, same, rounding, or not run, by the worst result in the layouts that the kernel runs in as it is."""
    if not own.keys() <= dense.keys():
        return "not run"
    most = max(ratios(dense, own).values(), default=float("inf"))
    return "wrong" if not most <= WRONG else "same" if most <= SAME else "rounding"


def ratios(dense: Errors, own: Errors) -> dict[tuple[str, str, int], float]:
    """By layout, result and head: the error, in the largest that the kernel itself has in that result and layout."""
    found = {}
    for layout, results in own.items():
        for name, heads in results.items():
            most = max((error for error in heads if error is not None), default=0.0) or 1e-7
            came = dense.get(layout, {}).get(name)
            for head in range(len(heads)):
                error = came[head] if came is not None and head < len(came) else None
                found[layout, name, head] = float("inf") if error is None else error / most
    return found


def trial(
    kernel: str,
    mutant: Any,
    file: Any,
    ran: Any,
    copy: Copy,
    own: Errors,
    fixed: bool | None,
    wrong_in: tuple[str, ...],
    drawn: int,
) -> Trial:
    """What came of one fault."""
    report, dense = copy.found("report"), copy.found("dense")
    lines = statement_at(mutant.line, file.tree)
    best = next(iter(report.get("diagnoses", ())), {})
    where = [place for place in best.get("where", ()) if place.get("line")]
    said = tuple(place["line"] for place in where if Path(place["file"]).name == file.path.name)
    line = any(lines[0] <= number <= lines[1] for number in said)
    is_cause, of_kind = (
        best.get("explained", 0.0) >= 0.9,
        kind(best.get("class", "")) == kind(mutant.fault_class),
    )
    first, (head, intermediate) = report.get("first_mismatch"), place_of(report, dense, own)
    kernels = {place.get("kernel") for place in where} | {
        function_at(number, file.tree) for number in said
    }
    judged = verdict(dense, own)
    return Trial(
        kernel, mutant.name, mutant.fault_class, mutant.function, tuple(lines), mutant.diff, judged,
        found=report.get("verdict") == "mismatch", by_memory=report.get("verdict") == "mismatch" and first is None,
        head=head, intermediate=intermediate,
        in_kernel=not kernels.isdisjoint(related_to(mutant.function, file.tree)),
        line=line, named=is_cause and (line or of_kind),
        misnamed=judged == "wrong" and is_cause and not (line or of_kind), fixed=fixed,
        certain=is_certain(report), wrong_in=wrong_in, drawn=drawn,
        first=f"{first['intermediate']} head {first['head']}" if first else "", cause=best.get("fault", ""), said=said,
        seconds=ran.seconds, exit_code=ran.code,
    )  # fmt: skip


def kind(fault_class: str) -> str:
    return KINDS.get(fault_class, fault_class)


def place_of(report: Mapping[str, Any], dense: Errors, own: Errors) -> tuple[bool, bool]:
    """Whether the head and the intermediate of the first mismatch are right, by what the judge finds in its layout."""
    run = next((run for run in report.get("runs", ()) if run.get("first_mismatch")), None)
    if run is None:
        return False, False
    first = run["first_mismatch"]
    found = ratios(dense, own)
    wrong = {
        (name, head)
        for (layout, name, head), error in found.items()
        if layout == run["layout"] and not error <= WRONG
    }
    heads = max((head for layout, name, head in found if name in ("O", "dQ")), default=0) + 1
    of_keys = max((head for layout, name, head in found if name == "dK"), default=0) + 1

    def is_in(name: str, head: int) -> bool:
        """Whether a result's head is the first mismatch's: query heads share those of keys."""
        here = first["head"]
        many = len(
            [1 for layout, other, _ in found if other == name and layout == run["layout"]]
        )
        ours = of_keys if first["intermediate"] in ("dK", "dV") else heads
        return (
            here is None
            or many == 1
            or here * many // ours == head
            or head * ours // many == here
        )

    by_itself = {one["name"] for one in run["intermediates"] if one["status"] == "mismatch"}
    explained = set().union(*(MADE_OF.get(name, set()) for name in by_itself))
    names = {name for name, _ in wrong}
    intermediate = bool(names & MADE_OF.get(first["intermediate"], set())) and names <= explained
    return any(is_in(name, head) for name, head in wrong), intermediate


def related_to(function: str, tree: ast.Module) -> set[str]:
    """A function, those that it calls and those that call it, however far away."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = {
        each.name: {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
        for each in functions
    }
    callers = {
        name: {other for other, called in calls.items() if name in called} for name in calls
    }
    return reached(function, calls) | reached(function, callers)


def statement_at(line: int, tree: ast.Module) -> tuple[int, int]:
    """The first and the last line of the smallest statement around a line; of one with a body, of its head."""
    found = (line, line)
    for node in ast.walk(tree):  # what is inside another comes behind it
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line):
            body = getattr(node, "body", None)
            found = (
                node.lineno,
                max(line, body[0].lineno - 1) if body else node.end_lineno or line,
            )
    return found


def function_at(line: int, tree: ast.Module) -> str:
    """The innermost function that holds a line; "" outside of all."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or line)]
    return max(around, key=lambda each: each.lineno).name if around else ""


def reached(start: str, steps: Mapping[str, set[str]]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        further = steps.get(waiting.pop(), set()) - found
        found |= further
        waiting += further
    return found


if __name__ == "__main__":
    main()
