"""What the contracts of import-linter do not say: kernels and reference stand alone, and help loads no torch."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import sampled
from tests.versions import ROOT, SUITE

PACKAGE = ROOT / "gradprobe"

# Folders of their own, which know nothing of the tool; the tool may import them anywhere.
APART = ("kernels", "reference")
# Loaded by name only, when a target in them is asked for, or copied.
TARGETS = ("adapters", "templates")


def module_name(file):
    """ "render.notation" for gradprobe/render/notation.py; "" for gradprobe/__init__.py."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(file): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not {*APART, *TARGETS} & set(file.relative_to(PACKAGE).parts)
}


@functools.cache
def parsed(file):
    return ast.parse(file.read_text())


@functools.cache
def imported(file):
    """(relative level, dotted name) of every import in a file, at any depth of indentation."""
    found = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            found += [(node.level, base + alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("folder", APART)
def test_kernels_and_reference_import_nothing_of_gradprobe_nor_of_each_other(folder):
    files = list((ROOT / folder).rglob("*.py"))
    allowed = {
        "__future__", "bisect", "collections", "dataclasses", "functools", "math", "torch",
        "typing",
    }  # fmt: skip
    allowed |= {"triton"} if folder == "kernels" else set()
    assert files
    for file in files:
        depth = len(file.relative_to(ROOT / folder).parts)
        for level, dotted in imported(file):
            assert level <= depth, f"{file} reaches out of {folder}"
            assert level or dotted.split(".")[0] in allowed, f"{file} imports {dotted}"


@pytest.mark.parametrize("folder", TARGETS)
def test_targets_import_torch_and_the_library_that_they_are_named_after_and_nothing_of_the_tool_but_cuda(
    folder,
):
    for file in (PACKAGE / "targets" / folder).rglob("*.py"):
        allowed = {
            "__future__", "collections", "dataclasses", "contextlib", "functools", "inspect",
            "itertools", "pathlib", "typing", "warnings", "torch",
        }  # fmt: skip
        for level, dotted in imported(file):
            assert level <= 1, f"{file} reaches out of {folder}"
            if "cuda" in file.stem and dotted in ("gradprobe.cuda", "gradprobe.kernels"):
                continue
            is_allowed = level or dotted.split(".")[0] in allowed | {file.stem}
            assert is_allowed, f"{file} imports {dotted}"


def test_no_module_imports_an_adapter_or_template():
    for name, file in MODULES.items():
        loaded = {part for _, dotted in imported(file) for part in dotted.split(".")}
        assert not loaded & set(TARGETS), name


def test_only_the_folder_cli_imports_typer():
    users = set()
    for name, file in MODULES.items():
        loaded = {dotted.split(".")[0] for level, dotted in imported(file) if not level}
        users |= {name.partition(".")[0]} if loaded & {"typer", "click"} else set()
    assert users == {"cli"}


# They compute with torch, as the reference does, and are imported late; what a verdict is kept in is read without.
COMPUTING = (
    "inputs.dyadic", "numerics.", "faults.", "pipeline.audit", "probing.", "diagnosis.", "sharded.",
    "frontends.python.",
)  # fmt: skip
READ_WITHOUT = "numerics.evidence"
# Of kernels: the interpreter's, those that Triton's front end lowers, and the tool's own, which is imported where a GPU
# judges large matrices.
WITH_TRITON = ("frontends.triton.interpreter.", "frontends.triton.lowering")


def test_no_module_but_what_computes_imports_torch_at_its_top_level_nor_any_but_what_has_kernels_triton():
    for name, file in MODULES.items():
        if not name.startswith(WITH_TRITON):
            computes = name.startswith(COMPUTING) and name != READ_WITHOUT
            late, loaded = {"triton"} if computes else {"torch", "triton"}, list[str]()
            for node in parsed(file).body:
                if isinstance(node, ast.Import):
                    loaded += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    loaded.append(str(node.module))
            assert not late & {word.split(".")[0] for word in loaded}, name


@sampled(
    "words",
    ["--help", *(f"{name} --help" for name in ("check", "diff", "init", "sweep", "mutate", "shrink"))],
    push=["--help", "check --help", "init --help", "mutate --help"],
)  # fmt: skip
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
    command = [sys.executable, "-c", script]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: gradprobe" in ran.stdout
    assert ran.stdout.splitlines()[-1].split() == ["LOADED"]


def test_every_module_begins_with_a_line_that_says_what_it_holds():
    for name, file in MODULES.items():
        assert ast.get_docstring(parsed(file)), name


@pytest.mark.nightly
def test_a_target_without_triton_imports_none_for_the_gpu_that_is_stood_in():
    code = "import sys; from gradprobe.frontends.triton import gpu_stood_in as stood\nwith stood(): pass\n"
    code += "assert 'torch' in sys.modules and 'triton' not in sys.modules"
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_every_test_that_runs_with_each_release_exists():
    for place in (place for tests in SUITE.values() for place in tests):
        file, _, name = place.partition("::")
        assert f"\ndef {name}(" in Path(ROOT, file).read_text() or not name, place
