"""What the source says of a cause: one told fix of all its places, or none."""

from types import SimpleNamespace

import pytest

from gradprobe.diagnosis import lines
from gradprobe.diagnosis.lines import Lines, _fix_of, among
from gradprobe.lint.finding import FOREIGN, finding_at
from gradprobe.model.report import Diagnosis, Where
from gradprobe.source.text import SourceLine

ADD = "add a parameter stride_doh of kernel"


@pytest.mark.parametrize(
    ("fixes", "told"),
    [
        ((f"a -> stride_doh; {ADD}", f"b -> stride_doh; {ADD}"), f"a -> stride_doh; {ADD}; b -> stride_doh"),
        ((f"a -> stride_doh; {ADD}", ""), ""),
    ],
)
def test_a_step_is_told_once_and_nothing_where_a_place_has_no_edit(fixes, told):
    at = SourceLine("my.py", 7, "do_ptr += a")
    assert _fix_of([finding_at(at, FOREIGN, "kernel", "wrong", fix, "do") for fix in fixes]) == told


@pytest.mark.parametrize(("kernel", "told"), [("backward", [92, 375, 390]), ("other", [390])])
def test_a_load_that_was_seen_is_told_with_its_tensors_strides_in_all_kernels(monkeypatch, kernel, told):
    fix = "n * stride_vn -> n * stride_kn"
    spots = {name: SourceLine("my.py", line, fix) for name, line in (("forward", 92), ("backward", 375))}
    found = [finding_at(spot, FOREIGN, name, "k: no", fix, "k") for name, spot in spots.items()]
    monkeypatch.setattr(
        lines, "findings_of", lambda *_: (*found, finding_at(spots["forward"], FOREIGN, kernel, "", "", "v"))
    )
    seen = Diagnosis("load/k", "S1", "other elements", 1.0, (), (Where("my.py", 390, "load", kernel=kernel),))
    made = Lines(SimpleNamespace(target=None, case=None)).of_access(seen)
    assert [where.line for where in made.where] == told
    assert made.fix == (f"{fix} in forward, backward" if len(told) > 1 else "")


@pytest.mark.parametrize(
    ("line", "kernel", "told"),
    [
        (2, "kernel", "2 in helper"),  # a helper that the kernel calls
        (6, "kernel", "6 in kernel"),
        (9, "kernel", "9 in host"),  # what launches it
        (9, "", "9"),
        (4, "kernel", "4 in kernel"),  # a decorator is in no function
    ],
)
def test_a_line_is_told_with_the_function_that_holds_it(tmp_path, line, kernel, told):
    file = tmp_path / "my.py"
    file.write_text(
        "def helper(q):\n    return load(q)\n\n@jit\ndef kernel(q):\n    return helper(q)\n\n"
        "def host(q):\n    kernel[(1,)](q)\n"
    )
    found = among(Where(str(file), line, "", kernel=kernel))
    assert (found.place, found.kernel) == (told, kernel)
