"""What each mechanism is worth: what only it finds, places, names, gives a line or mends, and what it takes.

    python benchmarks/ledger.py FOLDER [--kernels DIR ...] [--faults 15] [--corpora score cuda strangers]
                                [--sample N ...] [--seed 0] [-n WORKERS] [--survey] [--write FILE]

Three corpora: the planted faults of the score (`make score`); the faults of the CUDA kernels that it does not count;
and faults planted in other people's kernels, as `strangers.py` plants and judges them, of each folder in a DIR. Each
case is run once with everything, and once without each mechanism that spoke there or took `SHARE` of its seconds.

FOLDER holds the journal, one line a run, and the planted copies: a ledger that was stopped goes on from there. With
`--sample` only so many cases of each corpus, in their order, drawn under the seed. Seconds are a processor's, of all
processes of a case. The score tries no edits and looks for no coincidences, so what these give shows in other people's
kernels alone. What only saves time is not left out here: `main_job.py --without NAME` measures that.

  spoke   in so many cases, with everything, it said anything; in so many of these and of those where it takes long
          it was left out
  lost    cases that are found (placed, named, with the fault's line, fixed) with everything, and not without it
  gained  the other way round: what it spoils
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import strangers  # noqa: E402
from mechanisms import MECHANISMS, Mechanism  # noqa: E402

FIGURES = ("found", "placed", "named", "line", "fixed")
CORPORA = ("score", "cuda", "strangers")
SHARE = 0.02
LIMIT = 900.0


@dataclass(frozen=True)
class Run:
    """One case, with everything or without one mechanism."""

    case: str
    """The corpus and the name: "score/lazy/...", "cuda/...", "strangers/KERNEL/MUTANT"."""
    without: str
    figures: Mapping[str, bool] = field(default_factory=dict)
    """By figure; {} where the run came to no end."""
    seconds: float = 0.0
    took: Mapping[str, float] = field(default_factory=dict)
    """By mechanism that worked: its seconds."""
    spoke: Sequence[str] = ()

    def concerns(self, name: str) -> bool:
        """Whether a mechanism, or one of its family, spoke or took long."""
        family = f"{name}/"
        took = max(
            self.took.get(name, 0.0),
            sum(took for of, took in self.took.items() if of.startswith(family)),
        )
        return (
            any(of == name or of.startswith(family) for of in self.spoke)
            or took >= SHARE * self.seconds
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--kernels",
        type=Path,
        nargs="*",
        default=[],
        help="folders of folders, as strangers.py takes",
    )
    parser.add_argument("--corpora", nargs="*", choices=CORPORA, default=CORPORA)
    parser.add_argument("--faults", type=int, default=15, help="of each kernel (15)")
    parser.add_argument(
        "--sample", type=int, nargs="*", default=[], help="cases of each corpus, in their order"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-n", "--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--survey", action="store_true", help="only run with everything: what speaks where"
    )
    parser.add_argument(
        "--write", type=Path, help="also write the table there, between its two marks"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.one:
        print(json.dumps(figures_of(given.folder, given.one)))
        return
    journal = Journal(given.folder / "journal.jsonl")
    counts = dict(zip(given.corpora, given.sample, strict=False))
    cases = [
        one
        for of in given.corpora
        for one in sampled(cases_of(of, given), counts.get(of), given.seed)
    ]
    work(journal, [(case, "") for case in cases], given)
    jobs = [
        (one.case, of.name)
        for one in journal.runs(cases, "")
        for of in MECHANISMS
        if _is_asked(of, one)
    ]
    random.Random(given.seed).shuffle(jobs)  # a ledger that is stopped early has some of each
    work(journal, [] if given.survey else jobs, given)
    text = ledger(journal, cases, given.corpora)
    print(text)
    if given.write:
        written(given.write, text)


def _is_asked(of: Mechanism, run: Run) -> bool:
    """Speculation gives nothing but time, which a run by itself does not show: see main_job.py."""
    return not of.is_speculation and bool(run.figures) and run.concerns(of.name)


class Journal:
    """All runs so far, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # A line without its end is of a ledger that was stopped while it wrote.
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        runs = [Run(**json.loads(line)) for line in lines if line.endswith("\n")]
        self._runs = {(one.case, one.without): one for one in runs}
        if len(runs) < len(lines):
            path.write_text("".join(lines[:-1]))

    def __contains__(self, job: tuple[str, str]) -> bool:
        return job in self._runs

    def add(self, run: Run) -> None:
        self._runs[run.case, run.without] = run
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")

    def runs(self, cases: Iterable[str], without: str) -> list[Run]:
        """Those of some cases, without a mechanism."""
        return [self._runs[case, without] for case in cases if (case, without) in self._runs]


def sampled(cases: Sequence[str], count: int | None, seed: int) -> list[str]:
    """So many cases, in the order in which they are drawn: a larger sample begins with a smaller one."""
    if count is None:
        return list(cases)
    draws, found = random.Random(seed), dict[str, None]()
    while len(found) < min(count, len(cases)):
        found[draws.choice(cases)] = None
    return list(found)


def cases_of(corpus: str, given: argparse.Namespace) -> list[str]:
    """The names of a corpus; of strangers' kernels the faults are drawn, judged and planted first."""
    if corpus == "score":
        from tests.planted.scored import SCORED

        return [f"score/{one.title}" for one in SCORED]
    if corpus == "cuda":
        from tests.planted.cuda_faults import CUDA_FAULTS

        return [f"cuda/{one.name}" for one in CUDA_FAULTS if not one.cause]
    folders = sorted(
        path.parent.resolve() for folder in given.kernels for path in folder.glob("*/words")
    )
    return [
        f"strangers/{folder.name}/{name}"
        for folder in folders
        for name in planted(folder, given)
    ]


# Runs


def work(journal: Journal, jobs: Sequence[tuple[str, str]], given: argparse.Namespace) -> None:
    """Makes the runs that the journal has not, several at a time."""
    from gradprobe.processes.executables import Program, run_programs

    left = [job for job in jobs if job not in journal]
    with tempfile.TemporaryDirectory() as folder:
        records = [Path(folder) / str(number) for number in range(len(left))]
        programs = []
        for (case, without), record in zip(left, records, strict=True):
            command = (
                sys.executable,
                str(Path(__file__).resolve()),
                str(given.folder),
                "--one",
                case,
            )
            environment = {
                "GRADPROBE_WITHOUT": without,
                "GRADPROBE_MECHANISMS": str(record),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{ROOT}/benchmarks/doors{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            }
            programs.append(Program(command, {**os.environ, **environment}))
        for number, ran in enumerate(
            run_programs(programs, timeout=LIMIT, workers=given.workers)
        ):
            case, without = left[ran.number]
            came = json.loads(ran.output.splitlines()[-1]) if ran.code == 0 else {}
            journal.add(Run(case, without, **came, **recorded(records[ran.number])))
            print(
                f"{number + 1} of {len(left)}: {case} without {without or 'nothing'}",
                file=sys.stderr,
                flush=True,
            )


def recorded(record: Path) -> dict[str, Any]:
    """What mechanisms left in a record."""
    took: dict[str, float] = defaultdict(float)
    spoke = set()
    for line in record.read_text().splitlines() if record.exists() else ():
        name, seconds, said = line.split()
        took[name] += float(seconds)
        spoke |= {name} if said == "1" else set()
    return {
        "took": {name: round(seconds, 3) for name, seconds in took.items()},
        "spoke": sorted(spoke),
    }


def figures_of(folder: Path, case: str) -> dict[str, Any]:
    """What one case comes to, in this process's environment, and the processor's seconds that it takes."""
    corpus, _, name = case.partition("/")
    start = _processor()
    figures = {"score": _of_score, "cuda": _of_cuda, "strangers": _of_stranger}[corpus](
        folder, name
    )
    return {
        "figures": figures,
        "seconds": round(figures.pop("seconds", _processor() - start), 2),
    }


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _of_score(_: Path, name: str) -> dict[str, Any]:
    from tests.planted.scored import TRIALS
    from tests.planted.scoring import Judged, Prober

    with tempfile.TemporaryDirectory() as folder:
        start = _processor()
        judged = Judged(TRIALS[name], Prober(folder)(name))
        seconds = _processor() - start
        figures = {
            "found": judged.found,
            "placed": judged.placed,
            "named": judged.named,
            "line": judged.line,
        }
        return {**figures, "seconds": seconds}


def _of_cuda(_: Path, name: str) -> dict[str, Any]:
    from gradprobe.model.layout_run import MISMATCH
    from tests.planted.cuda_faults import CUDA_FAULTS, LAID

    fault = next(one for one in CUDA_FAULTS if one.name == name)
    with tempfile.TemporaryDirectory() as folder:
        report = fault.probe(Path(folder), sizes=LAID, why=False)
    first = report.failing[1].first if report.failing else None
    memory = [(one.kind, one.tensor) for one in report.runs[0].memory]
    is_placed = first is not None and (first.intermediate, first.head) == (
        fault.first,
        fault.head,
    )
    told = [one.sentence for one in report.runs[0].memory]
    return {
        "found": report.verdict == MISMATCH,
        "placed": is_placed or (fault.right_on_cpu and (fault.memory, fault.array) in memory),
        "line": bool(fault.code)
        and all(any(code in sentence for sentence in told) for code in fault.code),
    }


# Other people's kernels


def planted(folder: Path, given: argparse.Namespace) -> list[str]:
    """The faults of one kernel that the judge calls wrong, each in a copy in the ledger's folder."""
    from gradprobe.commands.mutants import sampled as drawn

    place = given.folder / folder.name
    chosen = place / "chosen"
    if not chosen.exists():
        (place / "source").parent.mkdir(parents=True, exist_ok=True)
        (place / "source").write_text(str(folder))
        file, mutants, words, name = _read(place)
        mutants = drawn(tuple(mutants.values()), strangers.DRAWN * given.faults, given.seed)
        random.Random(given.seed).shuffle(mutants := list(mutants))
        plain = strangers.Copy.of(folder, name, file.text, place / "plain", words)
        strangers.run([plain.judging()], 1)
        copies = {
            one: strangers.Copy.of(folder, name, one.plant(file.text), place / one.name, words)
            for one in mutants
        }
        wanted = {"wrong": given.faults}
        found = strangers.judged(copies, plain.found("dense"), wanted, given.workers)
        chosen.write_text("\n".join(one.name for one in found))
    return chosen.read_text().split()


def _read(place: Path) -> tuple[Any, dict[str, Any], list[str], str]:
    """The file of kernels, its mutants by name, the words of check, and the file's name in the folder."""
    from gradprobe.commands.mutants import mutants_of, read_file

    folder = Path((place / "source").read_text())
    words, named = shlex.split((folder / "words").read_text()), folder / "kernels"
    path, _, function = words[0].partition(":")
    file = (
        read_file(folder / named.read_text().strip(), None)
        if named.exists()
        else read_file(folder / path, function)
    )
    return (
        file,
        {one.name: one for one in mutants_of(file)},
        words,
        str(file.path.relative_to(folder)),
    )


@dataclass(frozen=True)
class _Checked(strangers.Copy):
    """A copy, and the report that one check of it left."""

    report: Mapping[str, Any] = field(default_factory=dict)

    def found(self, name: str) -> dict[str, Any]:
        return dict(self.report) if name == "report" else super().found(name)


def _of_stranger(folder: Path, name: str) -> dict[str, Any]:
    kernel, _, mutant_name = name.partition("/")
    place = folder / kernel
    file, mutants, words, path = _read(place)
    mutant, own = mutants[mutant_name], strangers.loaded(place / "plain" / "dense")
    copy = strangers.Copy(place / mutant_name, (f"{place / mutant_name}/{words[0]}", *words[1:]))
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report"
        command = (
            sys.executable,
            "-m",
            "gradprobe",
            "check",
            *copy.words,
            "--json",
            str(report),
        )
        start, before = time.monotonic(), _processor()
        ran = subprocess.run(
            command, env=copy.environment, cwd=scratch, capture_output=True, check=False
        )
        seconds, wall = _processor() - before, time.monotonic() - start
        checked = _Checked(copy.folder, copy.words, strangers.loaded(report))
    text = strangers.mended_text(checked.report, mutant.plant(file.text))
    fixed = _is_right(place, text, words, path, own) if text is not None else None
    ended = argparse.Namespace(seconds=wall, code=ran.returncode)
    trial = strangers.trial(kernel, mutant, file, ended, checked, own, fixed, (), 0)
    return {**{name: getattr(trial, name) is True for name in FIGURES}, "seconds": seconds}


def _is_right(
    place: Path, text: str, words: Sequence[str], path: str, own: strangers.Errors
) -> bool:
    """Whether the judge finds a mended text as right as the kernel's own; asked once of each text."""
    where = place / f"mended-{sha256(text.encode()).hexdigest()[:12]}"
    if not (where / "dense").exists():
        mended = strangers.Copy.of(
            Path((place / "source").read_text()), path, text, where, words
        )
        strangers.run([mended.judging()], 1)
    return strangers.verdict(strangers.loaded(where / "dense"), own) == "same"


# The ledger


@dataclass(frozen=True)
class Row:
    """One mechanism against everything."""

    of: Mechanism
    spoke: int
    cases: int
    lost: Mapping[str, int]
    gained: Mapping[str, int]
    seconds: float
    """That it takes of the cases in which it was left out, together; less than 0 where it saves some."""

    @property
    def worth(self) -> float:
        """What only it gives, less what it spoils, for each 100 of its lines."""
        return (
            100 * (sum(self.lost.values()) - sum(self.gained.values())) / max(1, self.of.lines)
        )


def rows_of(journal: Journal, cases: Sequence[str]) -> Iterator[Row]:
    """The mechanisms that were left out somewhere."""
    whole = {one.case: one for one in journal.runs(cases, "")}
    for of in MECHANISMS:
        pairs = [
            (whole[one.case], one)
            for one in journal.runs(cases, of.name)
            if one.case in whole and one.figures
        ]
        lost = {name: sum(_only(name, on, off) for on, off in pairs) for name in FIGURES}
        gained = {name: sum(_only(name, off, on) for on, off in pairs) for name in FIGURES}
        spoke = sum(
            any(f"{name}/".startswith(f"{of.name}/") for name in one.spoke)
            for one in whole.values()
        )
        if pairs or (spoke and not of.is_speculation):
            yield Row(
                of,
                spoke,
                len(pairs),
                lost,
                gained,
                sum(on.seconds - off.seconds for on, off in pairs),
            )


def _only(name: str, one: Run, other: Run) -> bool:
    return bool(one.figures.get(name)) and not other.figures.get(name)


def ledger(journal: Journal, cases: Sequence[str], corpora: Sequence[str]) -> str:
    """The figures with everything, a table of what was left out, and what never spoke."""
    rows = sorted(rows_of(journal, cases), key=lambda row: (-row.worth, row.of.name))
    whole = [one for one in journal.runs(cases, "") if one.figures]
    lines = [f"{_all(corpus, whole)}" for corpus in corpora]
    lines += [
        "",
        f"| mechanism | lines | spoke | left out | {' | '.join(FIGURES)} | seconds | for 100 lines |",
        "|--" * 10 + "|",
    ]
    for row in rows:
        counts = (
            f"{row.lost[name]}" + (f" -{row.gained[name]}" if row.gained[name] else "")
            for name in FIGURES
        )
        shown = (
            f"{row.of.name} | {row.of.lines} | {row.spoke} | {row.cases} | {' | '.join(counts)}"
        )
        lines.append(f"| {shown} | {row.seconds:+.1f} | {row.worth:.1f} |")
    told = {row.of.name for row in rows}
    silent = [of.name for of in MECHANISMS if not of.is_speculation and of.name not in told]
    return "\n".join(
        [*lines, "", f"Never spoke, and was never left out: {', '.join(silent) or 'none'}."]
    )


def _all(corpus: str, whole: Sequence[Run]) -> str:
    of = [one for one in whole if one.case.startswith(f"{corpus}/")]
    counts = ", ".join(
        f"{name} {sum(bool(one.figures.get(name)) for one in of)}" for name in FIGURES
    )
    return f"- {corpus}: {len(of)} cases with everything: {counts}"


_BEGIN, _END = "<!-- ledger -->", "<!-- end of the ledger -->"


def written(path: Path, text: str) -> None:
    """Puts the table into a page, between its marks."""
    page = path.read_text()
    before, _, rest = page.partition(_BEGIN)
    path.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{rest.partition(_END)[2]}")


if __name__ == "__main__":
    main()
