"""Survey: a kernel's tiles, the files of what a target launches, and stale bytecode."""

import importlib
import importlib.util
import os
import py_compile
import sys

import pytest
import torch

from gradprobe.commands.doctor.machine_survey import stale_bytecode, survey_target, tile_of
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem

SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 16, "device": "cpu"}


def test_tiles_are_of_rows_and_keys_and_not_of_head_dims():
    sizes = {"BLOCK_M": 64, "BLOCK_SIZE_KV": 16, "BLOCK_DMODEL": 128, "BLOCK_D": 256}
    assert tile_of(sizes | {"IS_CAUSAL": True, "BLOCK_N": None}) == 64


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton interprets nothing in this process"
)
def test_the_files_of_a_target_and_of_its_kernels_are_told_and_what_it_is_given():
    survey = survey_target(resolve_problem(CheckRequest("flash", None, None, SMALL)))
    assert {file.file.rpartition("/")[2] for file in survey.files} == {"flash.py"}
    assert not any(file.stale for file in survey.files)
    assert survey.built.family == "softmax"
    assert set(survey.built.tensors) >= {"q", "k", "v", "do"}


OLD, NEW = "def f(x):\n    return x + 1\n", "def f(x):\n    return x + 2\n"
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def imported(name, folder):
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return importlib.import_module(name)


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
