"""What a look into a black box says: the first wrong intermediate, the kernel at fault, and never a right one."""

import pytest
import torch

from tests.black_box import GRADIENTS, inside_of
from tests.cases import softmax_case
from tests.emulated import case_of, changed, softmax, target_of
from tests.probe import probe

pytestmark = pytest.mark.usefixtures("without_causes")

SIZES = {
    "batch": 2, "heads": 4, "kv_heads": 2, "seqlen_q": 40, "seqlen_k": 50, "head_dim": 16, "head_dim_v": 12,
}  # fmt: skip


def statuses_of(inside):
    return {
        name: finding.status for name, finding in inside.measured.comparison.findings.items()
    }


def wrong_by_itself(inside):
    return {name for name, status in statuses_of(inside).items() if status == "mismatch"}


def inherited(inside):
    return {name for name, status in statuses_of(inside).items() if status == "inherited"}


CHILDREN = {
    "P": {"dS", "dQ", "dK", "dV"}, "dP": {"dS", "dQ", "dK"}, "delta": {"dS", "dQ", "dK"}, "dS": {"dQ", "dK"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [("P", {"window": (9, 20), "sinks": True}), ("dP", {"softcap": 3.0}), ("delta", {"bias": True, "bias_axes": "bn"})],
    ids=str,
)  # fmt: skip
def test_two_rows_of_one_head_that_are_half_again_too_large_are_named_and_nothing_else_is(
    name, options
):
    # Every probe of one call has its own copy of the batches.
    fault = changed(name, lambda t: t[1::2, 2, 30:32].mul_(1.5))
    inside = inside_of(case_of("softmax", **SIZES | options), fault=fault)
    assert wrong_by_itself(inside) == {name}
    assert inherited(inside) - {"delta"} == CHILDREN[name]
    first = inside.measured.comparison.findings[name].first
    assert (first.batch, first.head, first.row) == (1, 2, 30)
    assert "dS is wrong in the kernels of dQ and dK" in inside.sentences


def test_a_ds_off_by_a_factor_is_said_to_be_so_throughout():
    fault = changed("dS", lambda t: t.mul_(0.7))
    inside = inside_of(case_of("softmax", **SIZES), fault=fault)
    assert wrong_by_itself(inside) == {"dS"}
    assert inherited(inside) == {"dQ", "dK"}
    said = "dS is wrong in the kernels of dQ and dK by the factor 0.7 throughout"
    assert inside.sentences == (said,)


def scaled(name, factor):
    return lambda results: {**results, name: results[name] * factor}


def test_one_gradient_off_by_a_factor_convicts_its_own_kernel():
    case = case_of("softmax", **SIZES, softcap=3.0)
    inside = inside_of(case, change=scaled("dK", 3.0))
    assert (wrong_by_itself(inside), inherited(inside)) == ({"dK"}, set())
    said = "the kernel of dK is at fault: dK shows dS wrong by the factor 3 throughout"
    assert inside.sentences == (f"{said}; dS in the kernel of dQ is right",)


def test_a_ds_without_one_tile_is_not_put_down_to_dp_or_delta():
    fault = changed("dS", lambda t: t[:, :, 8:24, :16].zero_())
    told = "whether dS itself is wrong, or its dP or delta, these gradients do not tell"
    assert inside_of(case_of("softmax", **SIZES), fault=fault).sentences[-1] == told


@pytest.mark.nightly
def test_a_dv_off_by_itself_leaves_p_out():
    case = case_of("softmax", **SIZES)
    inside = inside_of(case, change=scaled("dV", 0.5))
    assert "P" not in statuses_of(inside)
    assert "what computes dV is at fault" in inside.sentences[0]
    # Also where dK alone shows dS, and shows it right.
    beside_dk = inside_of(case, change=scaled("dV", 0.5), exposed=("dK", "dV"))
    for one in (inside, beside_dk):
        assert (wrong_by_itself(one), inherited(one)) == ({"dV"}, set())


def test_a_nan_anywhere_ends_in_a_verdict():
    fault = changed("P", lambda t: t[0, 0, 3].fill_(torch.nan))
    inside = inside_of(case_of("softmax", **SIZES), fault=fault)
    assert not inside.measured.matches


def gradients(q, k, v, do, *, scale, causal=False):
    results = softmax(q, k, v, do, scale=scale, causal=causal)
    return {name: results[name] for name in GRADIENTS}


def only_of_batch_2(q, k, v, do, *, scale):
    if q.shape[0] != 2:
        raise ValueError("this kernel was compiled for a batch of 2")
    return gradients(q, k, v, do, scale=scale)


def without_zeros(q, k, v, do, *, scale):
    if not k.all():
        raise ValueError("a key holds a 0")
    return gradients(q, k, v, do, scale=scale)


def with_derived(q, k, v, do, o, lse, delta, *, scale):
    p = (scale * q @ k.mT - lse[..., None]).exp()
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * (delta == delta)[..., None]
    return {"dQ": scale * ds @ k, "dK": scale * ds.mT @ q, "dV": p.mT @ do}


def test_a_target_that_takes_o_lse_and_delta_is_given_those_of_the_probes():
    report = probe(softmax_case(seqlen=40), target_of(with_derived))
    assert report.verdict == "match"
    assert report.runs[0].inside.measured.trace.sources["P"] == "recovered"


def test_a_target_of_one_batch_alone_is_asked_one_by_one():
    report = probe(softmax_case(seqlen=40), target_of(only_of_batch_2))
    assert report.verdict == "match"
    assert report.runs[0].inside is not None
    assert report.notes == ()


def test_a_target_that_raises_on_probes_keeps_its_verdict_and_the_report_says_why():
    report = probe(softmax_case(seqlen=40), target_of(without_zeros))
    assert (report.verdict, report.runs[0].inside) == ("match", None)
    (note,) = report.notes
    assert note.startswith("P and dS are not recovered in contiguous: target")
    assert "a key holds a 0" in note


def test_a_case_without_room_is_checked_and_said_not_to_be_looked_into_and_no_recover_asks_nothing():
    report = probe(softmax_case(head_dim=2, seqlen=20), target_of(gradients))
    assert (report.verdict, report.runs[0].inside) == ("match", None)
    words = "P and dS are not recovered: that takes 3 head dims of q and k and 2 of v"
    assert report.notes[0].startswith(words)
    unasked = probe(softmax_case(seqlen=40, recover=False), target_of(gradients))
    assert all(run.inside is None for run in unasked.runs)


def test_what_is_recovered_stands_beside_what_is_exported_of_one_layout_where_all_is_right():
    report = probe(softmax_case(seqlen=40), target_of(gradients))
    looked = {run.layout: run.inside is not None for run in report.runs}
    assert looked == {"contiguous": True, "distinct": False, "do=expanded": False}
    shown = report.runs[0].shown
    recovered = {name for name, source in shown.trace.sources.items() if source == "recovered"}
    assert recovered == {"P", "dP", "delta", "dS"}
    assert shown.comparison.absent == ("LSE", "O")
    assert report.runs[0].holding("dS").trace.values["dS"].shape == (2, 3, 40, 40)
    assert report.runs[0].holding("dQ") is not report.runs[0].inside.measured


def test_a_p_less_than_4_times_out_of_its_budget_beside_right_gradients_convicts_no_kernel():
    """A coarse float16 kernel: entries of P err by 0.7 of 2^-10, as where scale * K is rounded before its dot.

    2^-10 and a little is allowed. The dV that shows them is rounded by up to 2^-11 more: none errs by 1.2 times that,
    and of some thousand entries, whatever a CPU's last bits are, one is rounded by nine tenths of it in the same sense.
    """

    def coarser(p):
        signs = torch.randint(2, p.shape[1:], generator=torch.Generator().manual_seed(0)) * 2 - 1
        p.mul_(1 + 0.7 * 2.0**-10 * signs)

    case = case_of("softmax", **SIZES, dtype="float16")
    inside = inside_of(case, fault=changed("P", coarser))
    assert {*statuses_of(inside).values()} == {"match"}
    assert inside.sentences == ()


def wrong_where_a_key_has_no_value(q, k, v, do, *, scale):
    return gradients(
        q, k, v * v.any(-1, keepdim=True) + 10.0 * ~v.any(-1, keepdim=True), do, scale=scale
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("with_causes")
def test_what_is_wrong_in_one_hot_problems_alone_by_more_than_any_rounding_convicts_as_a_run_of_its_own():
    report = probe(softmax_case(seqlen=40), target_of(wrong_where_a_key_has_no_value))
    verdicts = {run.layout: run.verdict for run in report.runs}
    assert verdicts.pop("contiguous, one-hot inputs") == "mismatch"
    assert set(verdicts.values()) == {"match"}
    run, shown = report.failing
    statuses = {name: one.status for name, one in shown.comparison.findings.items()}
    assert statuses["P"] == statuses["dV"] == "match"
    assert statuses["dQ"] == statuses["dK"] == "inherited"
    assert run.inside.sentences[0] == (
        "with the case's own values all that is exported is right; in one-hot problems it is not"
    )
    assert report.diagnoses == ()


def doubled_dq_beside_ds(q, k, v, do, *, scale):
    results = softmax(q, k, v, do, scale=scale)
    return {name: results[name] for name in ("dS", "dK", "dV")} | {"dQ": 2 * results["dQ"]}


def test_an_exported_ds_is_shown_as_it_came_beside_a_dq_that_would_show_another():
    report = probe(softmax_case(seqlen=40), target_of(doubled_dq_beside_ds))
    shown = report.runs[0].shown
    assert shown.trace.sources["dS"] == "exported"
    assert shown.first.intermediate == "dQ"
    assert {name for name, one in shown.comparison.findings.items() if one.mismatched} == {"dQ"}
    assert shown.comparison.findings["dS"] is report.runs[0].measured.comparison.findings["dS"]
    assert "kernel of dS" not in " ".join(report.runs[0].inside.sentences)


def of_fewer_dims(lost):
    """A backward whose kernel of dQ leaves some value dims out of dP and delta."""

    def backward(q, k, v, do, *, scale):
        kept = torch.ones(v.shape[-1])
        kept[lost] = 0
        return {
            **gradients(q, k, v, do, scale=scale),
            "dQ": softmax(q, k, v * kept, do * kept, scale=scale)["dQ"],
        }

    return backward


def test_what_one_hot_problems_do_not_reach_is_not_shown_as_right():
    """The value dim 1 of 24 holds no values there."""
    case = softmax_case(seqlen=40, head_dim=16, head_dim_v=24, runs=((),))
    report = probe(case, target_of(of_fewer_dims(slice(1, 2))))
    shown = report.runs[0].shown
    assert {name for name, source in shown.trace.sources.items() if source == "recovered"} == {
        "P"
    }
    assert report.runs[0].inside.sentences == (
        "dQ is wrong, and right in one-hot problems: what is wrong shows with other values only",
    )


def test_do_of_another_head_of_the_group_is_said_and_p_is_not_blamed():
    def misread(q, k, v, do, *, scale=None, causal=False):
        heads = torch.arange(q.shape[1]) // 2
        results = softmax(q, k, v, do[:, heads], scale=scale, causal=causal)
        return {name: results[name] for name in GRADIENTS}

    case = case_of(
        "softmax", heads=4, kv_heads=2, batch=1, seqlen=24, head_dim=16, causal=True, runs=((),)
    )
    report = probe(case, target_of(misread), why=False)
    run, measured = report.failing
    statuses = {name: finding.status for name, finding in measured.comparison.findings.items()}
    assert "P" not in statuses
    assert statuses["dS"] == statuses["dV"] == "mismatch"
    assert statuses["dQ"] == statuses["dK"] == "inherited"
    words = "dO is read of head h // group, its key head's number"
    assert any(sentence.startswith(words) for sentence in run.inside.sentences)


ROWS_OF_P = changed("P", lambda t: t[:, 1].mul_(1.2))
HALF_DP = changed("dP", lambda t: t.mul_(0.5))


@pytest.mark.nightly
def test_two_faults_in_two_places_leave_nothing_that_is_right_called_wrong():
    """Of one fault a kernel, what stands in the other's place of dP or delta would be made of both."""
    case = softmax_case(batch=1, heads=2, seqlen=40, head_dim=16, runs=((),))

    def backward(q, k, v, do, *, scale):
        dq, dkdv = (
            softmax(q, k, v, do, scale=scale, fault=fault) for fault in (HALF_DP, ROWS_OF_P)
        )
        return {"dQ": dq["dQ"], "dK": dkdv["dK"], "dV": dkdv["dV"]}

    findings = probe(case, target_of(backward), why=False).failing[1].comparison.findings
    assert {name for name, finding in findings.items() if finding.status == "mismatch"} == {
        "P", "dS", "dK",
    }  # fmt: skip
