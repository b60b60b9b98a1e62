"""What the dataflow of interpreted kernels shows: nothing of right ones, and the line of wrong ones."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradprobe.diagnosis.dataflow import suspects
from gradprobe.diagnosis.explainers.diagnoses import diagnoses_of
from gradprobe.diagnosis.explainers.misread import misread_in
from gradprobe.diagnosis.explainers.values import never_stored, other_factors
from gradprobe.diagnosis.follow import FollowedRun
from gradprobe.frontends.triton.interpreter import dataflow as graph
from gradprobe.source.syntax import SourceLine
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.diagnosis.following import followed, planted
from tests.planted.planting import Edit
from tests.probe import probe
from tests.sampling import sampled

EXAMPLE = Path(__file__).parents[2] / "examples" / "delta.py"
RIGHT = [
    ("flash", "distinct", {"causal": True, "heads": 4, "kv_heads": 2}), ("flash", "contiguous", {"softcap": 5.0}),
    ("flash", "contiguous", {"window": (8, 4), "batch": 2}), ("flash", "blhd", {"causal": True, "dtype": "float16"}),
    ("flash", "do=huge", {}), ("lazy", "distinct", {"batch": 2}), ("lazy", "contiguous", {"dtype": "bfloat16"}),
]  # fmt: skip


@sampled("of, layout, options", RIGHT, push=[RIGHT[4], RIGHT[5]])
def test_in_a_right_kernel_every_result_is_what_it_is_called(of, layout, options):
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

K_TILE = "offs_n, offs_d, stride_kn, stride_kd, live_n"
RANGE, NEVER = "range(first, end, BLOCK_N)", "range(end, end, BLOCK_N)"
CAUSAL = {"causal": True, "layout": "distinct"}
# An edit, the options of the case, the results that are wrong, and the kind and name of what is told first.
WRONG = {
    "P of another power": (Edit(DKDV, "p.to(do.dtype)", "(p * p).to(do.dtype)"), {}, "dQ dK dV", "value", "P"),
    "k across": (Edit(DQ, K_TILE, "offs_n, offs_d, stride_kd, stride_kn, live_n"), CAUSAL, "dQ", "load", "k"),
    "a mask one further": (
        Edit(DQ, "visible(m, n, distance, live_m", "visible(m, n, distance - 1, live_m"),
        CAUSAL, "dQ", "value", "Q K^T",
    ),
    "a range that never runs": (Edit(DQ, RANGE, NEVER), {}, "dQ", "pairs", "dQ"),
    "k across in a dot": (Edit(DQ, "tl.dot(q, tl.trans(k)", "tl.dot(q, (k)"), CAUSAL, "dQ", "value", ""),
    "k of half the dims": (Edit(DQ, f"{K_TILE}, head_dim", f"{K_TILE}, head_dim // 2"), CAUSAL, "dQ", "masked", "k"),
    "tiles of one head that no program stores": (
        Edit(DQ, "pid % n_tiles", "pid % n_tiles * (pid // n_tiles % n_heads)"), {}, "dQ", "unstored", "dQ",
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


@sampled("title", WRONG, push=3)
def test_the_first_that_is_wrong_is_told_with_its_line(tmp_path, title):
    edit, options, wrong, kind, name = WRONG[title]
    changed, run = planted(tmp_path, edit, **options)
    found = suspects(run, wrong.split())
    assert (found[0].kind, found[0].name) == (kind, name)
    assert found[0].site.kernel == edit.kernel or not edit.kernel.endswith("kernel")
    assert changed.lines() & {where.line for where in diagnoses_of(found)[0].where}


@pytest.mark.parametrize(("read", "accused"), [((True, False), "o"), ((True, True), "buffer")])
def test_a_buffer_that_was_made_of_one_head_alone_is_no_misread_one(read, accused):
    flow, lines = graph.Flow(lambda view: "", {"h": 2}), (SourceLine("k.py", 1, ""),)
    sites = [graph.Site(kernel, lines, "load", 0) for kernel in ("before", "after", "after")]
    named = zip(("o", "buffer", "do"), sites, strict=True)
    flow.sources += [graph.AccessLine(name, site) for name, site in named]
    flow.sources[1].is_derived = True
    for source, reached in zip(flow.sources, (read, (True, False), (True, True)), strict=True):
        source.reached["h"] = np.array(reached)
    made = graph.Node(
        sites[0], (), lanes=graph.Lanes({"h": np.zeros(4, np.int32)}, {"h": frozenset([0])})
    )
    flow.nodes += [made, graph.Node(sites[1], (made,), number=1)]
    flow.conflicts += [graph.Conflict(sites[1], "h", frozenset([1]), frozenset([2]), (0, 1))]
    assert [one.name for one in misread_in(flow)] == [accused]


@pytest.mark.parametrize(
    "at",
    ["diagnosis.dataflow.suspects", "frontends.triton.interpreter.dataflow.graph.Flow.note"],
)
def test_a_fault_in_following_costs_the_dataflows_own_sentences_alone(tmp_path, monkeypatch, at):
    monkeypatch.setattr(f"gradprobe.{at}", lambda *_, **__: 1 / 0)
    (tmp_path / "delta.py").write_text(EXAMPLE.read_text())
    case = softmax_case(batch=1, heads=2, seqlen=16, layouts=(("all", "distinct"),))
    report = probe(case, find_target(f"{tmp_path}/delta.py:delta"))
    first = report.diagnoses[0]
    assert (first.fault, first.is_named) == ("stride/do-head", True)
    assert not any("delta_kernel, line" in sentence for sentence in first.evidence)
    (note,) = report.known
    words = "the kernels' dataflow could not be followed to the end, by a fault of"
    assert note.startswith(words)
    assert note.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("storages", "is_sure"), [({1: "dQ"}, True), ({}, False)])
def test_a_result_without_its_scale_is_sure_where_no_host_code_can_multiply(storages, is_sure):
    site = graph.Site("kernel", (), "store", 0)
    node = graph.Node(site, (), role=graph.Role("dS K"))
    flow = SimpleNamespace(stores=[graph.StoredTile(home=1, node=node, site=site)])
    run = FollowedRun(flow, None, SimpleNamespace(storages=storages), ("dQ",))
    (found,) = other_factors(run)
    assert (found.kind, found.name, found.is_sure) == ("stored", "dQ", is_sure)
