"""What kernels hold of P, dP, delta and dS: all of it right in right kernels, and wrong in the kernel of the fault."""

from dataclasses import replace

from gradprobe.diagnosis.follow import followed_run
from gradprobe.diagnosis.kernel_values import kernel_values, shown_with
from gradprobe.model.documents import document_of
from gradprobe.model.layout_run import INHERITED, MATCH, MISMATCH
from gradprobe.numerics.locate import close_up_of
from gradprobe.pipeline.reported import report_of
from gradprobe.probing.experiment import experiment_of, inputs_of
from gradprobe.probing.measure import measure
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.flash_faults import DO_BY_Q, LSE_OF_HEAD_0, NO_DELTA
from tests.planted.planting import KERNELS, STRANGE, TARGETS, Edit, edited
from tests.probe import probe
from tests.sampling import sampled

SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}
TALL = {"batch": 1, "heads": 2, "seqlen_q": 50, "seqlen_k": 30, "head_dim": 16, "causal": True}
FLASH, LAZY = f"{KERNELS}/flash.py:flash_black_box", f"{KERNELS}/lazy.py:lazy_intermediates"
DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
NAMES = ("P", "dP", "delta", "dS")


def held_by(target, case, layout="contiguous"):
    """The gradients of a run alone, compared, and what its kernels hold."""
    experiment, assigned = experiment_of(case, find_target(target)), (("all", layout),)
    run = followed_run(experiment, assigned)
    trace = run.outcome.trace
    own = measure(experiment, inputs_of(experiment, assigned), trace)
    alone = replace(trace, values={name: trace.values[name] for name in ("dQ", "dK", "dV")})
    return replace(own, trace=alone), kernel_values(run, case)


RIGHT = [
    ("flash", FLASH, {**SMALL, "causal": True, "heads": 4, "kv_heads": 2}, "distinct"),
    ("flash", FLASH, {**SMALL, "softcap": 5.0, "window": (8, 4)}, "contiguous"),
    ("flash", FLASH, {**SMALL, "causal": True, "dtype": "bfloat16"}, "blhd"),
    ("flash", FLASH, {**SMALL, "batch": 2, "seqlens": (20, 36), "bias": True}, "contiguous"),
    ("flash", FLASH, TALL, "contiguous"), ("lazy", LAZY, SMALL, "distinct"),
    *((name, f"{TARGETS[name][0]}:{TARGETS[name][1]}", {**TARGETS[name][2], **more}, layout)
      for more, layout in (({}, "distinct"), ({"dtype": "float16"}, "contiguous")) for name in STRANGE),
]  # fmt: skip


@sampled("of, target, options, layout", RIGHT, push=[RIGHT[6]])
def test_all_that_right_kernels_hold_is_right(of, target, options, layout):
    case = (lazy_case if of == "lazy" else softmax_case)(**options)
    own, seen = held_by(target, case, layout)
    rows = shown_with(case, own, seen).rows
    assert own.matches
    assert {row.finding.status for row in rows} == {MATCH}
    # One kernel begins dP with -delta: what it holds is dP less delta alone.
    names = ("P", "dS") if of == "grouped" else NAMES
    kernels = dict.fromkeys(row.kernel for row in rows)
    held = [(kernel, name) for kernel in kernels for name in names]
    assert [(row.kernel, row.finding.name) for row in rows] == held


def planted(folder, edits, layout="contiguous", **options):
    file = folder / "planted.py"
    file.write_text(edited((KERNELS / "flash.py").read_text(), edits))
    case = softmax_case(**{**SMALL, **options, "layouts": (("all", layout),)})
    return probe(case, find_target(f"{file}:flash_black_box"), why=False)


def rows_of(shown, status):
    return {(row.finding.name, row.kernel) for row in shown.rows if row.finding.status == status}


WRONG = {
    "P in the kernel of dQ": (LSE_OF_HEAD_0[:1], "contiguous", "P", DQ, 1, {"dS"}),
    "dS in the kernel of dK and dV": (NO_DELTA[1:], "contiguous", "dS", DKDV, 0, set()),
    "dP by another stride of dO": (DO_BY_Q[:1], "distinct", "dP", DQ, 1, {"dS"}),
}


@sampled("title", WRONG, push=2)
def test_the_first_mismatch_is_the_row_of_the_kernel_with_the_fault(tmp_path, title):
    edits, layout, name, kernel, head, inherits = WRONG[title]
    probed = planted(tmp_path, edits, layout)
    run, shown = probed.failing
    first = shown.first
    assert (first.intermediate, first.kernel, first.head) == (name, kernel, head)
    assert rows_of(shown, MISMATCH) == {(name, kernel)}
    assert rows_of(shown, INHERITED) == {(each, kernel) for each in inherits}
    assert shown.comparison.findings["dQ" if kernel == DQ else "dK"].status == INHERITED
    assert run.inside is None
    if name != "P":
        return
    view = close_up_of(probed, "P", None)
    assert (view.element.title, view.head) == (f"P in {DQ}", 1)
    table = document_of(report_of(probed, [view]))["runs"][0]["intermediates"]
    of = [(one["name"], one["kernel"], one["source"]) for one in table if one.get("kernel")]
    assert of == [(name, kernel, "seen") for kernel in (DQ, DKDV) for name in NAMES]


def test_what_a_kernel_does_not_compute_everywhere_is_no_row_and_is_recovered(tmp_path):
    short = "range(first, end // BLOCK_N * BLOCK_N, BLOCK_N)"
    lost = Edit(DQ, "range(first, end, BLOCK_N)", short)
    run, shown = planted(tmp_path, (lost,), heads=1, seqlen=20).failing
    assert not shown.rows
    assert run.inside is not None


def test_a_wrong_row_of_which_nothing_wrong_is_made_is_not_shown():
    case = softmax_case(**SMALL)
    own, seen = held_by(FLASH, case)
    doubled = [
        replace(one, values=2 * one.values) if (one.name, one.kernel) == ("dS", DQ) else one
        for one in seen
    ]
    are_shown = [shown_with(case, own, each) is not None for each in (seen, doubled)]
    assert are_shown == [True, False]


def test_what_a_coarser_arithmetic_explains_is_right_beside_a_fault(tmp_path):
    """Q is rounded to 16 bits once more, as it is where a factor is multiplied in before its dot."""
    dot, to_be = "tl.dot({}, tl.trans(k), input_precision=DOTS) * {}", "(q * 1.4427).to(q.dtype)"
    rounded = Edit(DQ, dot.format("q", "scale"), dot.format(to_be, "(scale / 1.4427)"))
    _, shown = planted(tmp_path, (rounded, NO_DELTA[0]), dtype="float16").failing
    assert rows_of(shown, MISMATCH) == {("dS", DQ)}
