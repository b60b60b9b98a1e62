"""Imports run one way, kernels and reference stand alone, and help loads neither torch nor triton."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gradprobe"

# A module may import those above it and none below: what data is, then the stages, then what shows them.
ORDER = (
    "cases", "targets", "running", "budgets", "judging", "inside", "recording", "probing",
    "baseline", "suite",
    "awaiting", "failures", "versions", "device", "room", "files", "incomplete",
    "isolation.programs", "naming", "severity", "spans", "intermediates",
    "cases.shapes", "cases.case", "cases.draw", "cases.outputs", "cases.placement", "cases.guards", "cases.layouts",
    "cases.contents", "cases.saved",
    "diagnosis", "model", "model.number", "model.memory", "model.report", "model.documents", "model.schema",
    "cases.decided",
    "targets.provenance", "targets.signatures", "targets.naming", "targets.stand_in", "targets.surroundings",
    "running.trace",
    "targets.builtin", "targets.find", "targets.mistyped", "targets.bind",
    "recording.call", "recording.seen", "recording.watch", "recording.capturing", "recording.child",
    "recording.child.entry", "recording.child.sitecustomize",
    "source", "source.line", "source.edits", "source.python_source", "source.cuda_syntax", "source.child",
    "source.child.sitecustomize", "source.shadow",
    "cuda.host", "cuda.source", "cuda.unit", "cuda.findings", "running.elements", "running.marks",
    "running.unwritten", "cuda.watch", "cuda.arguments",
    "cuda.on_cpu.build",
    "cuda.on_cpu.library", "cuda.on_cpu.lines", "cuda.on_cpu.regions", "cuda.on_cpu.launch", "cuda.on_cpu",
    "cuda.nvrtc", "cuda.module", "cuda",
    "running.allocations", "running.changes", "running.interpreter.arguments",
    "running.interpreter.bfloat16", "running.interpreter.language", "running.interpreter.scalars",
    "running.interpreter.selfcheck",
    "running.interpreter.memory.findings", "running.interpreter.memory.views", "running.interpreter.memory.frames",
    "running.interpreter.memory.origins",
    "running.interpreter.memory.launch", "running.interpreter.memory.accesses", "running.interpreter.memory.seen",
    "running.interpreter.memory",
    "running.interpreter", "running.backend", "running.configurations", "running.surroundings",
    "running.launches", "running.sharing", "running.taps.words",
    "running.taps.functions", "running.taps.axes", "running.taps.loops", "running.taps.places",
    "running.taps.rewrite", "running.taps.buffer", "running.taps.sentences",
    "running.taps.session", "running.taps.propose", "running.taps", "running.run",
    "budgets.constants", "budgets.precision", "budgets.roundings", "budgets.scores", "budgets.chain", "budgets.sums",
    "budgets.budget",
    "inside.recovery",
    "judging.tally", "judging.compare", "judging.range", "judging.accumulators", "judging.operands",
    "judging.unshown", "judging.strays", "judging.held", "judging.invariants", "judging.locate",
    "judging.measured", "judging.misreading",
    "inside.onehot", "inside.recover", "inside.rereading",
    "faults.variant", "faults.hypothesis", "faults.memory", "faults.products", "faults.stride", "faults.store",
    "faults.layout", "faults.index", "faults.wrap", "faults.mask", "faults.tile", "faults.tail", "faults.dead",
    "faults.factor", "faults.delta", "faults.softcap", "faults.tau", "faults.operand", "faults.dropout", "faults.group",
    "faults.precision", "faults", "faults.table",
    "lint", "lint.finding", "lint.names", "lint.values", "lint.record", "lint.expressions",
    "lint.reading", "lint.cuda", "lint.host", "lint.launch", "lint.strides", "lint.problems", "lint.catching",
    "lint.memory", "lint.view", "lint.foreign", "lint.uses", "lint.missing", "lint.swapped", "lint.siblings",
    "lint.survey", "lint.computed",
    "inside.patterns", "inside.evidence", "inside.look",
    "verdict",
    "probing.experiment", "probing.observe", "probing.audit", "probing.measure", "probing.runs", "probing.symmetries",
    "probing.insides",
    "probing.receipt",
    "diagnosing", "diagnosing.observed", "diagnosing.prediction", "diagnosing.testing", "diagnosing.diagnose",
    "diagnosing.confirm", "diagnosing.elsewhere", "diagnosing.shape",
    "diagnosing.lines", "diagnosing.strays", "diagnosing.behaviour", "diagnosing.behaviour.again",
    "diagnosing.behaviour.repeats", "diagnosing.behaviour.compiled",
    "diagnosing.dead_rows", "diagnosing.why",
    "probe",
    "judging.closeup",
    "recording.replay",
    "report", "report.text", "report.paths", "report.reasons", "report.reported",
    "report.console", "report.captures", "report.closeup",
    "report.phrases", "report.places", "report.rules", "report.alerts",
    "report.junit", "report.sarif", "report.github", "report.markdown",
    "options",
    "lint.inquiry", "report.lint",
    "targets.catalogue",
    "report.targets",
    "targets.scaffold",
    "last", "smaller", "problem", "sanitizer",
    "isolation.telling", "isolation.lines",
    "fitting", "fitting.adaptations", "fitting.trial", "fitting.fit", "fitting.probed",
    "isolation.ended", "isolation.frames", "isolation.child", "isolation.process", "isolation.each", "isolation",
    "strides", "strides.trials", "strides.result",
    "strides.bits", "strides.bench", "strides.wide", "strides.claims", "strides.culprits", "strides.hazards",
    "strides.worker",
    "strides.survey",
    "report.survey", "report.surveyed",
    "progress", "answer", "screen",
    "suite.checked", "suite.heard", "suite.unfinished", "suite.worker", "suite.watched", "suite.rest", "suite.checking",
    "suite.described", "suite.matrix",
    "suite.battery", "suite.table", "suite.weighing",
    "shrink", "shrink.ordering", "shrink.sizes", "shrink.steps", "shrink.symptom", "shrink.fewest",
    "shrink.literals", "shrink.formula", "shrink.program_parts", "shrink.program", "shrink.pytest_file",
    "shrink.trial", "shrink.attempts", "shrink.search", "shrink.kept", "shrink.shrinking", "shrink.shown",
    "shrink.documents",
    "configuration", "configuration.words", "configuration.table", "configuration.settings",
    "configuration.environment", "configuration.force",
    "baseline.noise", "baseline.entry", "baseline.file", "baseline.measure", "baseline.changes", "report.baseline",
    "mutate", "mutate.mutant", "mutate.source", "mutate.operators.change", "mutate.operators.strides",
    "mutate.operators.indices", "mutate.operators.masks", "mutate.operators.tiles", "mutate.operators.algebra",
    "mutate.operators.sums", "mutate.operators.precision", "mutate.operators.host", "mutate.operators",
    "mutate.sample", "mutate.subject", "mutate.gate",
    "mutate.campaign", "report.mutants", "report.mutants_as_json",
    "ci", "ci.origin", "ci.workflow", "wording", "testing", "pytest_plugin",
    "cli.forms", "cli.failing", "cli.words", "cli.apart", "cli.several", "cli.alone", "cli.battery", "cli.root",
    "cli.check",
    "cli.sweep", "cli.strides", "cli.mutate", "cli.lint", "cli.baseline", "cli.diff", "cli.shrink", "cli.run",
    "report.comparison", "cli.show", "cli.compare",
    "cli.targets", "cli.init",
    "cli.commands", "cli.completion", "cli.unread", "cli.app", "cli", "__main__",
)  # fmt: skip
# Folders of their own, which know nothing of the tool; the tool may import them anywhere.
APART = ("kernels", "reference")
# Loaded by name only, when a target in them is asked for, or copied.
TARGETS = ("adapters", "templates")
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "core", "manager", "base", "tools"}


def module_name(file):
    """ "report.text" for gradprobe/report/text.py; "" for gradprobe/__init__.py."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(file): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not {*APART, *TARGETS} & set(file.relative_to(PACKAGE).parts)
}


def imported(file):
    """(relative level, dotted name) of every import in a file, at any depth of indentation."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield from ((node.level, base + alias.name) for alias in node.names)


def own_imports(name):
    """The modules of gradprobe that a module imports, by their names in ORDER or APART."""
    file = MODULES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for level, dotted in imported(file):
        parts = dotted.split(".")
        if level:
            above = package.split(".") if package else []
            parts = above[: len(above) - level + 1] + parts
        elif parts[0] == "gradprobe":
            parts = parts[1:]
        else:
            continue
        if parts[0] in APART:
            yield parts[0]
            continue
        found = next((".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES), None)
        if found is not None:
            yield found


def test_every_module_has_its_place_in_the_order():
    assert set(MODULES) - {""} == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_what_stands_above_it(name):
    above = {*ORDER[: ORDER.index(name)], *APART}
    assert {other for other in own_imports(name) if other != name} <= above


def test_the_order_test_sees_imports_inside_functions_and_type_checking_blocks():
    assert {"answer", "report.reported", "verdict"} <= set(own_imports("suite.worker"))
    assert "running.interpreter" in set(own_imports("running.backend"))
    assert "reference" in set(own_imports("judging.compare"))


@pytest.mark.parametrize("folder", APART)
def test_kernels_and_reference_import_nothing_of_gradprobe_nor_of_each_other(folder):
    files = list((ROOT / folder).rglob("*.py"))
    allowed = {"__future__", "collections", "dataclasses", "math", "torch", "typing"}
    allowed |= {"triton"} if folder == "kernels" else set()
    assert files
    for file in files:
        depth = len(file.relative_to(ROOT / folder).parts)
        for level, dotted in imported(file):
            assert level <= depth, f"{file} reaches out of {folder}"
            assert level or dotted.split(".")[0] in allowed, f"{file} imports {dotted}"


@pytest.mark.parametrize("folder", TARGETS)
def test_targets_import_torch_and_the_library_that_they_are_named_after_and_nothing_of_the_tool_but_cuda(folder):
    for file in (PACKAGE / "targets" / folder).rglob("*.py"):
        allowed = {
            "__future__",
            "collections",
            "dataclasses",
            "contextlib",
            "functools",
            "inspect",
            "itertools",
            "pathlib",
            "typing",
            "warnings",
            "torch",
        }
        for level, dotted in imported(file):
            assert level <= 1, f"{file} reaches out of {folder}"
            if "cuda" in file.stem and dotted in ("gradprobe.cuda", "gradprobe.kernels"):
                continue
            assert level or dotted.split(".")[0] in allowed | {file.stem}, f"{file} imports {dotted}"


def test_no_module_imports_an_adapter_or_template():
    for name, file in MODULES.items():
        loaded = {part for _, dotted in imported(file) for part in dotted.split(".")}
        assert not loaded & set(TARGETS), name


def test_only_the_folder_cli_imports_typer():
    users = [
        name for name, file in MODULES.items()
        if any(not level and dotted.split(".")[0] in ("typer", "click") for level, dotted in imported(file))
    ]  # fmt: skip
    assert users
    assert {name.partition(".")[0] for name in users} == {"cli"}


def test_no_module_outside_the_interpreter_imports_torch_or_triton_at_its_top_level():
    for name, file in MODULES.items():
        if not name.startswith("running.interpreter."):
            loaded = [
                alias.name
                for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import) for alias in node.names
            ]  # fmt: skip
            loaded += [node.module for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)]
            assert not {"torch", "triton"} & {str(word).split(".")[0] for word in loaded}, name


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "check --help",
        "diff --help",
        "targets --help",
        "init --help",
        "sweep --help",
        "mutate --help",
        "shrink --help",
    ],
)
def test_help_loads_neither_torch_nor_triton_nor_numpy(words):
    script = f"""
import sys
sys.argv = ["gradprobe", *{words.split()!r}]
from gradprobe.cli import main
try:
    main()
finally:
    print("LOADED", *sorted({{"torch", "triton", "numpy"}} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: gradprobe" in ran.stdout
    assert ran.stdout.splitlines()[-1].split() == ["LOADED"]


def test_no_file_or_folder_has_a_name_that_says_nothing():
    named = [path for folder in ("gradprobe", "kernels", "reference", "tests") for path in (ROOT / folder).rglob("*")]
    assert [path for path in named if path.stem.removeprefix("test_") in VAGUE] == []


def test_every_module_begins_with_a_line_that_says_what_it_holds():
    for name, file in MODULES.items():
        assert ast.get_docstring(ast.parse(file.read_text())), name
