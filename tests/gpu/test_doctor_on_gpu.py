"""The doctor on a GPU: every rung green; a wrong kernel is wrong in the interpreter too; a poisoned cache is named."""

import json
import re
import shutil

import pytest

from tests.diagnosis.test_edits import RIGHT
from tests.gpu.commands import gradprobe

pytestmark = pytest.mark.gpu

DOUBLED = RIGHT.replace("tl.sum(o * do, axis=1)", "2.0 * tl.sum(o * do, axis=1)")


def doctor(words, folder, **environment):
    ran = gradprobe(f"doctor {words} --json out.json", folder, COLUMNS="80", **environment)
    return ran.returncode, ran.stdout, json.loads((folder / "out.json").read_text())


def test_every_rung_is_green_compiled_interpreted_and_in_cuda(tmp_path, record_property):
    code, out, told = doctor("", tmp_path)
    record_property("out", out)
    assert code == 0, out
    assert {rung["how"] for rung in told["rungs"]} == {"compiled", "interpreted", "CUDA"}
    assert told["machine"]["gpu"]


def test_a_cache_that_holds_another_kernel_s_code_is_named(tmp_path):
    cache, words, file = tmp_path / "cache", "mine.py:delta --heads 2", tmp_path / "mine.py"
    file.write_text(RIGHT)
    code, out, _ = doctor(words, tmp_path, TRITON_CACHE_DIR=str(cache))
    assert code == 0, out
    of_right = set(cache.iterdir())
    file.write_text(DOUBLED)
    code, out, _ = doctor(words, tmp_path, TRITON_CACHE_DIR=str(cache))
    assert code == 1, out
    entries = set(cache.iterdir()) - of_right
    of_wrong = {arguments(entry): entry for entry in entries if arguments(entry)}
    poisoned = [entry for entry in of_right if arguments(entry) in of_wrong]
    assert poisoned
    for entry in poisoned:
        shutil.copy(of_wrong[arguments(entry)] / "delta_kernel.cubin", entry)
    file.write_text(RIGHT)
    code, out, told = doctor(words, tmp_path, TRITON_CACHE_DIR=str(cache))
    assert code == 1, out
    assert told["first_bad"]["state"] == "red"
    assert [rung["state"] for rung in told["closer"]] == ["green"]
    stale = "a cache of compiled kernels is stale: with every cache empty it is green"
    assert told["stale"] == [stale]
    assert doctor(f"{words} --fresh", tmp_path, TRITON_CACHE_DIR=str(cache))[0] == 0


def arguments(entry):
    """The types of the arguments of an entry's kernel; "" of an entry of no such kernel."""
    code = entry / "delta_kernel.ttir"
    text = code.read_text() if code.exists() else ""
    found = re.search(r"tt\.func public @delta_kernel\((.*?)\) attributes", text)
    return re.sub(r" loc\([^)]*\)+", "", found[1]) if found else ""
