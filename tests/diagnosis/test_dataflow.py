"""What the dataflow of interpreted kernels shows: nothing of right ones, and the line of wrong ones."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.diagnosis.explainers.misread import misread
from gradprobe.diagnosis.explainers.sums import never_stored
from gradprobe.diagnosis.explainers.values import other_factors
from gradprobe.diagnosis.follow import FollowedRun
from gradprobe.frontends.triton.interpreter.dataflow import (
    AccessLine,
    Conflict,
    Flow,
    Lanes,
    Node,
    Role,
    Site,
    StoredTile,
)
from gradprobe.source.text import SourceLine
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.diagnosis.following import followed, planted
from tests.planted.planting import Edit
from tests.probe import probe
from tests.sampling import sampled

EXAMPLE = Path(__file__).parents[2] / "examples" / "delta.py"
RIGHT = [
    ("flash", "distinct", {"causal": True, "heads": 4, "kv_heads": 2}),
    ("flash", "contiguous", {"softcap": 5.0}),
    ("flash", "contiguous", {"window": (8, 4), "batch": 2}),
    ("flash", "blhd", {"causal": True, "dtype": "float16"}),
    ("flash", "do=huge", {}),
    ("lazy", "distinct", {"batch": 2}),
    ("lazy", "contiguous", {"dtype": "bfloat16"}),
]


@sampled("of, layout, options", RIGHT, push=[RIGHT[0], RIGHT[4], RIGHT[5]])
def test_in_a_right_kernel_nothing_disagrees_and_every_result_is_what_it_is_called(
    of, layout, options
):
    run = followed(of, layout, options)
    storages, flow = run.outcome.storages, run.flow
    assert not flow.conflicts
    stored = [(storages.get(one.home, ""), one.node.role) for one in flow.stores]
    held = {"O": "O", "dQ": "scale * dS K", "dK": "scale * dS^T Q", "dV": "dV"}
    for name, words in held.items():
        # None of a tile that is too small to tell.
        known = [role.formula for of, role in stored if of == name and role is not None]
        assert known
        assert all(each.startswith(words) for each in known)
    visits = {storages.get(home, ""): counts for home, counts in flow.visits.items()}
    assert not [*never_stored(replace(run, wrong=("O", "dQ", "dK", "dV", "delta", "LSE")))]
    for name in ("dQ", "dK", "dV"):
        assert (visits[name][run.roles.valid] == 1).all()


DQ, DKDV = "flash_dq_kernel", "flash_dkdv_kernel"
LSE, OF_HEAD_0 = "lse_ptr += b * stride_lseb + h * stride_lseh", "lse_ptr += b * stride_lseb"
K_TILE = "offs_n, offs_d, stride_kn, stride_kd, live_n"
RANGE, NEVER = "range(first, end, BLOCK_N)", "range(end, end, BLOCK_N)"
CAUSAL = {"causal": True, "layout": "distinct"}
# An edit, the options of the case, the results that are wrong, and the kind and name of what is told first.
WRONG = {
    "lse of another head": (Edit(DQ, LSE, OF_HEAD_0), {}, "dQ dK dV", "load", "lse"),
    "the scale of dQ": (Edit(DQ, "dq * scale", "dq"), {}, "dQ dK dV", "stored", "dQ"),
    "P of another power": (Edit(DKDV, "p.to(do.dtype)", "(p * p).to(do.dtype)"), {}, "dQ dK dV", "value", "P"),
    "k across": (Edit(DQ, K_TILE, "offs_n, offs_d, stride_kd, stride_kn, live_n"), CAUSAL, "dQ", "load", "k"),
    "scores not masked": (Edit(DQ, 'tl.where(seen, s, float("-inf"))', "s"), CAUSAL, "dQ", "value", "P"),
    "a mask one further": (
        Edit(DQ, "visible(m, n, distance, live_m", "visible(m, n, distance - 1, live_m"),
        CAUSAL, "dQ", "value", "Q K^T",
    ),
    "a range that never runs": (Edit(DQ, RANGE, NEVER), {}, "dQ", "pairs", "dQ"),
    "k across in a dot": (Edit(DQ, "tl.dot(q, tl.trans(k)", "tl.dot(q, (k)"), CAUSAL, "dQ", "value", ""),
    "k of half the dims": (Edit(DQ, f"{K_TILE}, head_dim", f"{K_TILE}, head_dim // 2"), CAUSAL, "dQ", "masked", "k"),
    "a statement that lost a factor": (
        Edit(DQ, "store_tile(dq_ptr, dq * scale", "dq *= 1.0\n    store_tile(dq_ptr, dq"), {}, "dQ", "stored", "dQ",
    ),
    "tiles of one head that no program stores": (
        Edit(DQ, "pid % n_tiles", "pid % n_tiles * (pid // n_tiles % n_heads)"), {}, "dQ", "unstored", "dQ",
    ),
    "do outside its elements": (
        Edit("flash_preprocess_kernel", "h * stride_doh", "h * stride_oh"),
        {"layout": "do=huge"}, "delta", "load", "do",
    ),
    # Of a load and a store that disagree the load is right where something right is made of it.
    "bias from the end": (
        Edit("add_bias", "bias_ptr + distance", "bias_ptr + (window - 1 - distance)"), {"seqlen": 20, "heads": 1},
        "dBias", "load", "bias",
    ),
    "dbias from the end": (
        Edit("lazy_dq_kernel", "dbias_ptr + distance", "dbias_ptr + (window - 1 - distance)"),
        {"seqlen": 20, "heads": 1}, "dBias", "store", "dBias",
    ),
}  # fmt: skip
SAYS = {
    "lse of another head": "at head 0 where it meets head 1 of",
    "do outside its elements": "do is read outside its elements where it meets",
    "tiles of one head that no program stores": "of dQ, the first at batch 0, head 0, row 32",
}


@pytest.mark.parametrize("title", WRONG)
def test_the_first_that_is_wrong_is_told_with_its_line(tmp_path, title):
    edit, options, wrong, kind, name = WRONG[title]
    changed, run = planted(tmp_path, edit, **options)
    found = suspects(run, wrong.split())
    assert (found[0].kind, found[0].name) == (kind, name)
    assert found[0].site.kernel == edit.kernel or not edit.kernel.endswith("kernel")
    assert changed.lines() & {where.line for where in diagnoses_of(found)[0].where}
    assert SAYS.get(title, "") in found[0].reason


@pytest.mark.parametrize(("read", "accused"), [((True, False), "o"), ((True, True), "buffer")])
def test_a_buffer_that_was_made_of_one_head_alone_is_no_misread_one(read, accused):
    flow, lines = Flow(lambda view: "", {"h": 2}), (SourceLine("k.py", 1, ""),)
    sites = [Site(kernel, lines, "load", 0) for kernel in ("before", "after", "after")]
    named = zip(("o", "buffer", "do"), sites, strict=True)
    flow.sources += [AccessLine(name, site) for name, site in named]
    flow.sources[1].is_derived = True
    for source, reached in zip(flow.sources, (read, (True, False), (True, True)), strict=True):
        source.reached["h"] = np.array(reached)
    made = Node(sites[0], (), lanes=Lanes({"h": np.zeros(4, np.int32)}, {"h": frozenset([0])}))
    flow.nodes += [made, Node(sites[1], (made,), number=1)]
    flow.conflicts += [Conflict(sites[1], "h", frozenset([1]), frozenset([2]), (0, 1))]
    assert [one.name for one in misread(FollowedRun(flow, None, None))] == [accused]


def test_of_a_head_that_no_program_stores_the_launch_is_told(tmp_path):
    edit = Edit(DQ, "pid // n_tiles % n_heads", "pid // n_tiles % n_heads * 0")
    changed, run = planted(tmp_path, edit)
    (told, *_) = diagnoses_of(suspects(run, ("dQ",)))
    assert "36 rows of dQ, the first at batch 0, head 1, row 0" in told.evidence[0]
    lines = changed.plant().splitlines()
    assert any(f"{DQ}[" in lines[where.line - 1] for where in told.where)


def fails(*_, **__):
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize(
    "at", ["diagnosis.dataflow.suspects", "frontends.triton.interpreter.dataflow.graph.Flow.note"]
)
def test_a_fault_in_following_costs_the_dataflows_own_sentences_alone(tmp_path, monkeypatch, at):
    monkeypatch.setattr(f"gradprobe.{at}", fails)
    (tmp_path / "delta.py").write_text(EXAMPLE.read_text())
    case = softmax_case(batch=1, heads=2, seqlen=16, layouts=(("all", "distinct"),))
    report = probe(case, find_target(f"{tmp_path}/delta.py:delta"))
    first = report.diagnoses[0]
    assert (first.fault, first.is_named) == ("stride/do-head", True)
    assert not any("delta_kernel, line" in sentence for sentence in first.evidence)
    (note,) = report.known
    assert note.startswith(
        "the kernels' dataflow could not be followed to the end, by a fault of"
    )
    assert note.endswith("ZeroDivisionError: planted")


@pytest.mark.parametrize(("storages", "is_sure"), [({1: "dQ"}, True), ({}, False)])
def test_a_result_stored_without_its_scale_is_sure_where_no_host_code_can_multiply_it(
    storages, is_sure
):
    site = Site("kernel", (), "store", 0)
    node = Node(site, (), role=Role("dS K"))
    flow = SimpleNamespace(stores=[StoredTile(home=1, node=node, site=site)])
    run = FollowedRun(flow, None, SimpleNamespace(storages=storages), ("dQ",))
    (found,) = other_factors(run)
    assert (found.kind, found.name, found.is_sure) == ("stored", "dQ", is_sure)
