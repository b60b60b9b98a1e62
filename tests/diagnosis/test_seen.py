"""What kernels hold of P, dP, delta and dS: all of it right in right kernels, and wrong in the kernel of the fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradprobe.diagnosis.follow import followed_run
from gradprobe.diagnosis.kernel_values import KernelValue, kernel_values, shown_with
from gradprobe.model.case import Case
from gradprobe.model.documents import document_of, report_from
from gradprobe.model.layout_run import INHERITED, MATCH, MISMATCH
from gradprobe.numerics.closeup import close_up_of
from gradprobe.numerics.evidence import MeasuredRun, ProbeResult
from gradprobe.pipeline.reported import report_of
from gradprobe.probing.experiment import experiment_of, inputs_of
from gradprobe.probing.measure import measure
from gradprobe.render.screen.details import render
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.flash_faults import DO_BY_Q, LSE_OF_HEAD_0, NO_DELTA, NO_SCALE
from tests.planted.planting import KERNELS, Edit, edited
from tests.probe import probe
from tests.sampling import sampled
from tests.strangers.faults import STRANGERS, file_of

SMALL = {"batch": 1, "heads": 2, "seqlen": 36, "head_dim": 16}
FLASH, LAZY = (
    f"{KERNELS / 'flash.py'}:flash_black_box",
    f"{KERNELS / 'lazy.py'}:lazy_intermediates",
)
DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
GRADIENTS = ("dQ", "dK", "dV")
NAMES = ("P", "dP", "delta", "dS")


def held_by(
    target: str, case: Case, layout: str = "contiguous"
) -> tuple[MeasuredRun, list[KernelValue]]:
    """The gradients of a run alone, compared, and what its kernels hold."""
    experiment, assigned = experiment_of(case, find_target(target)), (("all", layout),)
    run = followed_run(experiment, assigned)
    assert run is not None
    assert run.outcome.trace is not None
    own, trace = (
        measure(experiment, inputs_of(experiment, assigned), run.outcome.trace),
        run.outcome.trace,
    )
    alone = replace(trace, values={name: trace.values[name] for name in GRADIENTS})
    return replace(own, trace=alone), kernel_values(run, case)


RIGHT: list[tuple[str, str, dict[str, Any], str]] = [
    ("flash", FLASH, {**SMALL, "causal": True, "heads": 4, "kv_heads": 2}, "distinct"),
    ("flash", FLASH, {**SMALL, "softcap": 5.0, "window": (8, 4)}, "contiguous"),
    ("flash", FLASH, {**SMALL, "causal": True, "dtype": "float16"}, "blhd"),
    ("flash", FLASH, {**SMALL, "dtype": "bfloat16"}, "contiguous"),
    ("flash", FLASH, {**SMALL, "batch": 2, "seqlens": (20, 36), "bias": True}, "contiguous"),
    (
        "flash",
        FLASH,
        {**SMALL, "seqlen": None, "seqlen_q": 50, "seqlen_k": 30, "causal": True},
        "contiguous",
    ),
    ("lazy", LAZY, SMALL, "distinct"),
    ("lazy", LAZY, {**SMALL, "dtype": "bfloat16"}, "contiguous"),
    *(
        (name, f"{file_of(name)}:{function}", options, "distinct")
        for name, (function, options) in STRANGERS.items()
    ),
    *(
        (name, f"{file_of(name)}:{function}", {**options, "dtype": "float16"}, "contiguous")
        for name, (function, options) in STRANGERS.items()
    ),
]


@sampled("of, target, options, layout", RIGHT, push=[RIGHT[at] for at in (0, 8)])
def test_all_that_right_kernels_hold_is_right(
    of: str, target: str, options: dict[str, Any], layout: str
) -> None:
    options = {name: value for name, value in options.items() if value is not None}
    case = (lazy_case if of == "lazy" else softmax_case)(**options)
    own, seen = held_by(target, case, layout)
    shown = shown_with(case, own, seen)
    assert own.matches
    assert shown is not None
    assert {row.finding.status for row in shown.rows} == {MATCH}
    # One kernel begins dP with -delta: what it holds is dP less delta alone.
    names = ("P", "dS") if of == "grouped" else NAMES
    kernels = dict.fromkeys(row.kernel for row in shown.rows)
    assert [(row.kernel, row.finding.name) for row in shown.rows] == [
        (k, name) for k in kernels for name in names
    ]


def planted(
    folder: Path, edits: tuple[Edit, ...], layout: str = "contiguous", **options: Any
) -> ProbeResult:
    """A probe of the flash kernels with a fault in them, in one layout."""
    file = folder / "planted.py"
    file.write_text(edited((KERNELS / "flash.py").read_text(), edits))
    case = softmax_case(**{**SMALL, **options, "layouts": (("all", layout),)})
    return probe(case, find_target(f"{file}:flash_black_box"), why=False)


WRONG: list[tuple[str, tuple[Edit, ...], str, str, str, int, set[str]]] = [
    ("P in the kernel of dQ", LSE_OF_HEAD_0[:1], "contiguous", "P", DQ, 1, {"dS"}),
    ("dS in the kernel of dK and dV", NO_DELTA[1:], "contiguous", "dS", DKDV, 0, set()),
    ("dP by another stride of dO", DO_BY_Q[:1], "distinct", "dP", DQ, 1, {"dS"}),
]


@sampled(
    "title, edits, layout, name, kernel, head, inherits", WRONG, push=[WRONG[0], WRONG[2]],
    ids=lambda each: each if isinstance(each, str) else None,
)  # fmt: skip
def test_the_first_mismatch_is_the_row_of_the_kernel_with_the_fault(
    tmp_path: Path, title: str, edits: tuple[Edit, ...], layout: str, name: str, kernel: str, head: int,
    inherits: set[str],
) -> None:  # fmt: skip
    probed = planted(tmp_path, edits, layout)
    run, shown = probed.failing or pytest.fail(title)
    first = shown.first
    assert first is not None
    assert (first.intermediate, first.kernel, first.head) == (name, kernel, head)
    own = {(row.finding.name, row.kernel) for row in shown.rows if row.finding.status == MISMATCH}
    inherited = {
        (row.finding.name, row.kernel) for row in shown.rows if row.finding.status == INHERITED
    }
    assert own == {(name, kernel)}
    assert inherited == {(each, kernel) for each in inherits}
    result = "dQ" if kernel == DQ else "dK"
    assert shown.comparison.findings[result].status == INHERITED
    assert run.inside is None


def test_what_the_interpreter_copies_from_a_gpu_is_seen_in_the_copies(
    tmp_path: Path, monkeypatch: Any
) -> None:
    # To a kernel on the CPU a copy has other addresses than torch, as of a GPU's tensors.
    monkeypatch.setattr(torch.UntypedStorage, "cpu", lambda self: self.clone())
    _, shown = planted(tmp_path, NO_DELTA[1:]).failing or pytest.fail("it matches")
    own = {(row.finding.name, row.kernel) for row in shown.rows if row.finding.status == MISMATCH}
    assert own == {("dS", DKDV)}


def test_a_seen_row_is_in_every_form_and_comes_back_from_json(tmp_path: Path) -> None:
    probed = planted(tmp_path, LSE_OF_HEAD_0[:1])
    view = close_up_of(probed, "P", None)
    assert (view.element.title, view.head) == (f"P in {DQ}", 1)
    report = report_of(probed, [view])
    document = document_of(report)
    assert report_from(document) == report
    assert (document["first_mismatch"]["intermediate"], document["first_mismatch"]["kernel"]) == (
        "P",
        DQ,
    )
    (run,) = document["runs"][:1]
    assert [
        (one["name"], one["kernel"], one["source"])
        for one in run["intermediates"]
        if one.get("kernel")
    ] == [(name, kernel, "seen") for kernel in (DQ, DKDV) for name in NAMES]
    lines = [line.plain for line in render(report, 200)]
    assert f"MISMATCH  P in {DQ} is the first wrong intermediate in head 1 of 2" in lines[0]
    assert [line for line in lines if line.startswith(f"  P in {DQ} ")]


def test_a_constant_left_out_behind_ds_leaves_ds_right(tmp_path: Path) -> None:
    probed = planted(tmp_path, NO_SCALE[:1])
    run, shown = probed.failing or pytest.fail("it is wrong")
    assert shown.first is not None
    assert (shown.first.intermediate, shown.first.kernel) == ("dQ", None)
    assert {row.finding.status for row in shown.rows} == {MATCH}


def test_what_a_kernel_does_not_compute_everywhere_is_no_row_and_is_recovered(
    tmp_path: Path,
) -> None:
    lost = Edit(
        DQ, "range(first, end, BLOCK_N)", "range(first, end // BLOCK_N * BLOCK_N, BLOCK_N)"
    )
    run, shown = planted(tmp_path, (lost,), heads=1, seqlen=20).failing or pytest.fail(
        "it is wrong"
    )
    assert not shown.rows
    assert run.inside is not None


def test_a_wrong_row_of_which_nothing_wrong_is_made_is_not_shown() -> None:
    case = softmax_case(**SMALL)
    own, seen = held_by(FLASH, case)
    doubled = [
        replace(one, values=2 * one.values) if (one.name, one.kernel) == ("dS", DQ) else one
        for one in seen
    ]
    assert shown_with(case, own, seen) is not None
    assert shown_with(case, own, doubled) is None
