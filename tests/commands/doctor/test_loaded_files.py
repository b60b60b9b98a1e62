"""Which file runs: a planted copy, stale bytecode and a kernel of another text are named, and nothing right is."""

import importlib
import importlib.util
import os
import py_compile
import sys

import pytest

from gradprobe.commands.doctor.loaded_files import (
    kernels_of,
    loaded_file,
    stale_bytecode,
    why_imported,
)

OLD, NEW = "def f(x):\n    return x + 1\n", "def f(x):\n    return x + 2\n"
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def doubled_kernel(x_ptr):
    tl.store(x_ptr, 2.0 * tl.load(x_ptr))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def imported(name, folder):
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_a_copy_where_a_project_keeps_its_sources_is_named_though_no_path_leads_there(
    here, monkeypatch
):
    own, installed = (
        here / folder / "planted_project" / "attention.py" for folder in ("src", "site")
    )
    for file, text in ((own, NEW), (installed, OLD)):
        file.parent.mkdir(parents=True)
        (file.parent / "__init__.py").write_text("")
        file.write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(here / "site")])
    found = loaded_file("planted_project.attention", str(installed))
    assert [copy.file for copy in found.copies] == [str(own)]


@pytest.mark.parametrize(
    ("put", "words"), [("cwd", "the current folder"), ("PYTHONPATH", "PYTHONPATH")]
)
def test_why_a_module_is_imported_names_what_put_its_folder_on_the_path(
    here, monkeypatch, put, words
):
    folder = here / "elsewhere"
    folder.mkdir()
    root = here if put == "cwd" else folder
    (root / "planted_why.py").write_text(NEW)
    monkeypatch.setenv("PYTHONPATH", str(folder) if put == "PYTHONPATH" else "")
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    why = why_imported("planted_why", root / "planted_why.py")
    assert why == f"{words}, place 1 of {len(sys.path)} on the search path"


def test_bytecode_that_python_takes_and_is_of_an_older_text_is_stale(here):
    file = here / "planted_unchecked.py"
    file.write_text(OLD)
    kept = py_compile.compile(str(file), invalidation_mode=UNCHECKED)
    assert not list(stale_bytecode(file))
    file.write_text(NEW)
    assert imported("planted_unchecked", here).f(0) == 1  # the old text runs
    assert list(stale_bytecode(file)) == [
        "Python runs a stale compiled file, not what planted_unchecked.py holds now: delete it in __pycache__"
    ]
    os.utime(kept, (1_000_000_000, 1_000_000_000))  # which an older Python may have made
    assert not list(stale_bytecode(file))
    # An edit of the same size in the same second.
    file = here / "planted_second.py"
    file.write_text(OLD)
    os.utime(file, (1_000_000_000, 1_000_000_000))
    py_compile.compile(str(file))
    file.write_text(NEW)
    os.utime(file, (1_000_000_000.5, 1_000_000_000.5))
    assert imported("planted_second", here).f(0) == 1
    assert len(list(stale_bytecode(file))) == 1


def test_bytecode_that_python_would_not_take_accuses_nobody(here):
    file = here / "planted_later.py"
    file.write_text(NEW)
    py_compile.compile(str(file))
    os.utime(file, (file.stat().st_mtime + 5,) * 2)
    assert not list(stale_bytecode(file))
    py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    file.write_text(OLD)
    assert not list(stale_bytecode(file))


def test_a_kernel_whose_file_was_edited_after_its_import_is_named_and_an_unedited_one_is_not(
    here, monkeypatch
):
    file = here / "planted_kernel.py"
    file.write_text(KERNEL)
    module = imported("planted_kernel", here)
    (kernels,) = kernels_of([module]).values()
    assert not loaded_file("planted_kernel", str(file), kernels=kernels).stale
    file.write_text(KERNEL.replace("2.0", "33.0"))
    # Interpreted, Triton reads the text only now; compiled it has the old one.
    monkeypatch.setattr(
        kernels[0], "raw_src", KERNEL.splitlines(keepends=True)[4:], raising=False
    )
    (words,) = loaded_file("planted_kernel", str(file), kernels=kernels).stale
    assert words.startswith(
        "doubled_kernel was made from other text than planted_kernel.py holds now"
    )
    file.write_text("# a line more\n" + KERNEL.replace("2.0", "2.0  # twice"))
    assert not loaded_file("planted_kernel", str(file), kernels=kernels).stale
