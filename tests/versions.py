"""`make versions`: a short suite in an environment for each release that gradprobe supports, and docs/versions.md.

Needs uv, g++ and Pythons 3.10 to 3.13. uv's cache shares files between the environments, and keeps some 20 GB of them;
far less with UV_TORCH_BACKEND=cpu, which takes PyTorch's builds without CUDA.
"""

import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "versions.md"
PACKAGES = ("torch", "triton", "numpy", "typer", "rich")
# Each triton is the one that this torch's CUDA build asks for. Where no version is named, pip's choice is the newest.
ROWS = {
    "oldest": (
        "3.10",
        "torch==2.11.0 triton==3.6.0 numpy==1.26.4 typer==0.12.5 click<8.2 rich==13.9.0",
    ),
    "oldest torch, newer numpy": (
        "3.11",
        "torch==2.11.0 triton==3.6.0 numpy==2.4.6 typer==0.27.2 rich==13.9.4",
    ),
    "torch 2.12": (
        "3.12",
        "torch==2.12.1 triton==3.7.1 numpy==2.2.6 typer==0.20.1 rich==14.0.0",
    ),
    "constraints.txt": ("3.10", "-c constraints.txt"),
    "torch 2.14": ("3.13", "torch==2.14.1 triton==3.8.0 numpy==2.4.6"),
    "newest": ("3.12", "torch==2.15.0 triton==3.9.0 numpy==2.5.5"),
}
SUITE = {
    "check": (
        "tests/cli/test_cli_console.py::test_a_terminal_gets_colour_and_no_line_of_the_table_is_folded",
        "tests/runtime/interpreter/test_features.py",
        "tests/runtime/interpreter/test_plans.py",
        "tests/cli/test_cli_init.py::test_a_workflow_goes_where_github_looks_and_the_next_steps_are_said",
    ),
    "bfloat16": (
        "tests/runtime/interpreter/test_bfloat16.py",
        "tests/runtime/interpreter/test_interpreted_kernels.py::"
        "test_a_bfloat16_check_matches_and_its_errors_are_those_of_bfloat16",
    ),
    "strides": (
        "tests/runtime/interpreter/memory/test_kernels.py",
        "tests/cli/test_cli_strides.py::"
        "test_a_mismatch_has_the_verdict_first_then_the_place_the_cause_and_the_tensors",
    ),
    "CUDA on the CPU": (
        "tests/cli/test_cli_cuda.py::test_a_race_that_the_cpu_computes_rightly_is_the_first_mismatch_without_a_number",
        "tests/cli/test_cli_cuda.py::test_a_race_whose_numbers_are_wrong_or_right_is_a_mismatch_with_both_lines",
        "tests/cuda/test_memory.py::test_a_fault_is_told_once_with_its_kind_place_and_lines",
        "tests/cuda/test_memory.py::test_a_right_matmul_and_right_reductions_have_no_finding",
    ),
}
# An old typer is warned by a new click, which is between the two of them.
QUIETLY = ("-q", "-n", "0", "-p", "no:cacheprovider", "-W", "default::DeprecationWarning")
FEATURES = {
    test.partition(".py")[0].replace("/", "."): name
    for name, tests in SUITE.items()
    for test in tests
}


@dataclass(frozen=True)
class Row:
    versions: tuple[str, ...]
    """Of Python, then of the packages, as they were installed."""
    passed: Counter[str]
    """By feature."""
    failed: Counter[str]

    def cells(self) -> list[str]:
        def cell(name: str) -> str:
            failed, passed = self.failed[name], self.passed[name]
            return f"{failed} of {failed + passed} fail" if failed else str(passed)

        return [*self.versions, *map(cell, SUITE)]


def main() -> int:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as several:
        rows = list(several.map(row, ROWS))
    DOCUMENT.write_text(document(rows))
    return int(any(one.failed or set(one.passed) != set(SUITE) for one in rows))


def row(name: str) -> Row:
    """Builds an environment and runs the suite in it."""
    python, pins = ROWS[name]
    with tempfile.TemporaryDirectory(prefix="gradprobe-") as folder:
        there, results = Path(folder, "bin", "python"), Path(folder, "results.xml")
        subprocess.run(["uv", "venv", "-q", "--clear", "--python", python, folder], check=True)
        words = ["uv", "pip", "install", "-q", "--python", there, ".[test]", *pins.split()]
        subprocess.run(words, cwd=ROOT, check=True)
        say = f"import platform, importlib.metadata as m; print(platform.python_version(), *map(m.version, {PACKAGES}))"
        versions = subprocess.check_output([there, "-c", say], text=True).split()
        tests = [test for tests in SUITE.values() for test in tests]
        words = [there, "-m", "pytest", *QUIETLY, f"--junit-xml={results}", *tests]
        path = f"{there.parent}{os.pathsep}{os.environ['PATH']}"
        changed = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            words, cwd=ROOT, env=changed, capture_output=True, text=True, check=False
        )
        found = Row(tuple(versions), *counted(results))
    wrong = ran.stdout if ran.returncode else ""
    print(f"== {name}", wrong, "  ".join(found.cells()), sep="\n", flush=True)
    return found


def counted(results: Path) -> tuple[Counter[str], Counter[str]]:
    """How many tests of each feature passed and failed; those that were skipped are neither."""
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for case in ElementTree.parse(results).iter("testcase"):
        ends = {child.tag for child in case}
        feature = FEATURES.get(case.get("classname", ""), "check")
        if "skipped" not in ends:
            counts[bool(ends & {"failure", "error"})][feature] += 1
    return counts


def document(rows: list[Row]) -> str:
    head = ["Python", *PACKAGES, *SUITE]
    table = [head, ["--"] * len(head), *(one.cells() for one in rows)]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return f"""# Versions

`make versions` builds these environments, runs a short suite in each, and writes this file. A number is how many tests
of that feature passed; where some failed it says so. The bounds in pyproject.toml are those of this table, and outside
them a check is refused before anything runs; `--untested` goes on, and the report says so.

{lines}

Run on {datetime.date.today()}, {platform.system()} on {platform.machine()}, without a GPU.
"""


if __name__ == "__main__":
    sys.exit(main())
