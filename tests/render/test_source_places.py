import pytest

from gradprobe.model.intermediates import TABLE, is_named_after
from gradprobe.model.report import CheckedTarget, Report
from gradprobe.render.source_places import Place, places_of
from tests.render.written import BASE, document, reports


@pytest.mark.parametrize(
    ("file", "relative", "uri"),
    [
        ("a/./b.py", "a/b.py", "a/b.py"), ("/repository/a/../../etc/b.py", None, "file:///etc/b.py"),
        ("/repository2/b.py", None, "file:///repository2/b.py"),
        ("/repository/ä b#c?d%e:f.py", "ä b#c?d%e:f.py", "%C3%A4%20b%23c%3Fd%25e%3Af.py"),
        ("/repository/half\ud800.py", "half\ud800.py", "half%ED%A0%80.py"),
    ],
)  # fmt: skip
def test_a_file_is_told_from_the_root_where_it_lies_below(file, relative, uri):
    assert BASE.relative(file) == relative
    assert BASE.uri(file) == (uri, relative is not None)


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        ("lazy_dkdv_kernel", {"dK", "dV"}), ("_attn_bwd_dq", {"dQ"}), ("bwd_dk_dv", {"dK", "dV"}),
        ("_bwd_preprocess_delta", {"delta"}), ("compute_DQ", {"dQ"}),
        ("lazy_forward_kernel", set()), ("adsorb", set()), ("backward", set()), ("", set()),
    ],
)  # fmt: skip
def test_a_kernel_is_named_after_gradients_only_by_whole_words(kernel, named):
    known = {row.name for row in TABLE}
    assert {name for name in known if is_named_after(kernel, name)} == named


def test_places_begin_with_what_a_diagnosis_names_and_then_the_kernel_named_after_the_intermediate():
    where = [{"file": "/repository/k.py", "line": 7, "code": "h * stride_qh"}]
    cause = {"fault": "f", "class": "S1", "summary": "wrong", "explained": 1.0, "where": where}
    diagnosed, other = reports(document(diagnoses=[cause]), document())
    first, second, third, *_ = places_of(diagnosed, "dV")
    assert first == Place("/repository/k.py", 7, "h * stride_qh")
    assert (second.name, third.name) == ("lazy_dkdv_kernel", "lazy")
    assert [place.line for place in places_of(other, "dP")] == [12, 56, 251]
    # No kernel is blamed for what only inherits.
    assert [place.line for place in places_of(diagnosed, "dP", inherits=True)] == [12, 56, 251]


def test_of_a_target_that_was_not_found_the_file_in_its_name_is_the_place():
    found = (Place("sub/mine.py", None, "f"),)
    for name, places in (("sub/mine.py:f", found), ("lazy", ()), ("a.b:f", ()), ("", ())):
        assert places_of(Report(verdict="error", target=CheckedTarget(name=name))) == places
