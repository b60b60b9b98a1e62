"""What explains one draw of values is a cause only where it explains a second one."""

import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.saved import SavedInputs
from tests.cases import softmax_case
from tests.emulated import softmax, target_of
from tests.probe import probe

SMALL = dict(batch=1, heads=2, seqlen=20, head_dim=8, recover=False, runs=((),))
FIRST = draw(softmax_case(**SMALL))["q"]


def doubled(q, k, v, do, *, scale):
    results = softmax(q, k, v, do, scale=scale)
    return {**{name: results[name] for name in ("dK", "dV")}, "dQ": 2 * results["dQ"]}


def doubled_on_the_first_draw(q, k, v, do, *, scale):
    results = doubled(q, k, v, do, scale=scale)
    return results if torch.equal(q, FIRST) else {**results, "dQ": results["dQ"] / 2}


def refusing_the_others(q, k, v, do, *, scale):
    if not (torch.equal(q, FIRST) or torch.equal(q, FIRST.flip(1))):
        raise ValueError("other values")
    return doubled(q, k, v, do, scale=scale)


def test_a_factor_that_another_draw_does_not_have_is_no_cause():
    report = probe(softmax_case(**SMALL), target_of(doubled_on_the_first_draw))
    assert report.verdict == "mismatch"
    assert not any(one.fault == "factor/dQ" for one in report.diagnoses)
    assert not any("by a fault of gradprobe" in words for words in report.known)


def test_values_of_a_file_are_drawn_once_more_as_the_same_rows_in_another_order():
    case, seen = softmax_case(**SMALL, inputs="real.pt"), []

    def watched(q, k, v, do, *, scale):
        seen.append(q.clone())
        return doubled(q, k, v, do, scale=scale)

    report = probe(
        case, target_of(watched), saved=SavedInputs(draw(softmax_case(**SMALL)), {}, {})
    )
    assert (report.diagnoses[0].fault, report.diagnoses[0].explained) == ("factor/dQ", 1.0)
    others = [q for q in seen if not torch.equal(q, FIRST)]
    assert [torch.equal(q.sort(2).values, FIRST.sort(2).values) for q in others].count(True) == 1


def test_a_target_that_takes_no_other_values_has_a_cause_that_says_so():
    cause = probe(softmax_case(**SMALL), target_of(refusing_the_others)).diagnoses[0]
    assert cause.fault == "factor/dQ"
    assert cause.evidence[1] == "tested on one draw of values only: the target refused another"
