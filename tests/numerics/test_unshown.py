"""Options that a case cannot show are told: a kernel without them would be judged right."""

from __future__ import annotations

import pytest

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.range import unshown
from gradprobe.runtime.run import Trace
from tests.emulated import case_of, lazy, softmax, target_of
from tests.probe import probe

SMALL = {"batch": 2, "heads": 2, "seqlen": 20, "head_dim": 8, "recover": False, "runs": ((),)}


def notes(names, family="softmax", **options):
    """The options that are unshown, of some that were given, where everything is exposed."""
    case = case_of(family, **SMALL | options)
    values = draw(case)
    more = {name: getattr(case, name) for name in ("causal", "window", "softcap", "dropout")}
    results = (lazy if family == "lazy" else softmax)(
        **values, scale=case.scale, **({} if family == "lazy" else more)
    )
    trace = Trace(results, dict.fromkeys(results, "exported"))
    precision = precision_of("float32", "ieee")
    said = unshown(case, values, lambda: attention_of(case, values), trace, precision, names)
    return [words.partition(": this case cannot show")[0].removeprefix("--") for words in said]


@pytest.mark.parametrize(
    ("name", "below", "above"),
    [
        ("softcap", {"softcap": 1e4}, {"softcap": 5.0}),
        ("window", {"window": (19, 19)}, {"window": (18, 19)}),
        ("dropout", {"dropout": 0.0}, {"dropout": 0.3}),
        ("causal", {"causal": True, "seqlen": 1}, {"causal": True, "seqlen": 2}),
        ("scale", {"scale": 8**-0.5}, {"scale": 0.36}),
        ("sinks", {}, {"sinks": True}),
        ("tau", {"tau": (0.0,)}, {"tau": (0.5,)}),
    ],
)
def test_an_option_is_unshown_where_a_kernel_without_it_is_right_and_shown_where_it_is_wrong(
    name, below, above
):
    family = "lazy" if name == "tau" else "softmax"
    assert notes([name], family, **below) == ([name] if below else [])
    assert notes([name], family, **above) == []


def test_a_match_says_so_once_for_each_option_that_was_given_and_exits_0():
    def ignoring(q, k, v, do, *, scale, softcap=None, window=None):
        return softmax(q, k, v, do, scale=scale)

    case = case_of("softmax", **SMALL, softcap=1e4, window=(19, 19))
    report = probe(case, target_of(ignoring), given=("softcap", "window", "heads"))
    assert report.verdict == "match"
    assert [note.partition(":")[0] for note in report.notes if "cannot show" in note] == [
        "--softcap",
        "--window",
    ]
    assert not any("cannot show" in note for note in probe(case, target_of(ignoring)).notes)


def never():
    raise AssertionError("the problem of the whole case was made")


def test_an_option_is_not_tried_where_the_case_is_large(monkeypatch):
    case = case_of("softmax", **SMALL, softcap=1e4)
    trace, precision = Trace({}, {}), precision_of("float32", "ieee")
    monkeypatch.setattr("gradprobe.numerics.range._MOST_SCORES", 2 * 2 * 20 * 20 - 1)
    assert list(unshown(case, draw(case), never, trace, precision, ["softcap"])) == [
        "--softcap: whether this case shows it was not tried: it is too large for it"
    ]


def test_a_fault_in_finding_it_out_is_told_and_changes_no_verdict(monkeypatch):
    def raising(*arguments):
        raise KeyError("tiles")

    monkeypatch.setattr("gradprobe.pipeline.probe.unshown", raising)
    report = probe(
        case_of("softmax", **SMALL, softcap=1e4), target_of(softmax), given=("softcap",)
    )
    assert report.verdict == "match"
    assert (
        "could not be found out, by a fault of gradprobe: KeyError: 'tiles'" in report.notes[-1]
    )
