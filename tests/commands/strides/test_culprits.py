"""What failing layouts have in common is named: which strides are taken for which, or what is assumed."""

import pytest

from gradprobe.commands.strides.culprits import culprits
from tests.commands.strides.benches import bench_for, trials_for
from tests.commands.strides.written import write
from tests.planted.planting import KERNELS
from tests.sampling import sampled


def blamed(word):
    """The verdict of every fast trial but programs, and the culprits of those that fail."""
    bench = bench_for(word, seqlen=20, head_dim=8, causal=True)
    trials = [trial for trial in trials_for(bench).values() if trial.kind != "program"]
    tried = [(trial, bench.run(trial).verdict) for trial in trials]
    failing = [trial for trial, verdict in tried if verdict == "mismatch"]
    right = [one for one, verdict in tried if verdict == "match" and one.layout != "expanded"]
    by_title = {trial.title: verdict for trial, verdict in tried}
    return by_title, culprits(bench, failing, right) if failing else ()


@pytest.mark.parametrize(("name", "verdict"), [("right", "match"), ("wrong_always", "mismatch")])
def test_where_every_layout_is_right_or_wrong_no_stride_is_blamed(tmp_path, name, verdict):
    verdicts, found = blamed(write(tmp_path, name))
    assert ({*verdicts.values()}, found) == ({verdict}, ())


def test_do_read_with_the_head_stride_of_q_is_wrong_only_where_the_two_differ(tmp_path):
    verdicts, (culprit,) = blamed(write(tmp_path, "do_by_q_heads"))
    wrong = {title for title, verdict in verdicts.items() if verdict == "mismatch"}
    assert wrong == {"distinct", "distinct-unit", "do=blhd", "do=distinct"}
    assert (culprit.kind, culprit.strides) == ("mix-up", (("q", 1), ("do", 1)))
    assert culprit.words == "wrong only when do.stride(1) != q.stride(1)"


@sampled(
    "fault, kind, strides, words",
    [
        (
            "k_and_v_by_q_rows", "mix-up", [("q", 2), ("k", 2), ("v", 2)],
            "wrong only when v.stride(2), k.stride(2) and q.stride(2) are not all equal",
        ),
        ("q_taken_for_contiguous", "contiguous", [("q", -1)], "wrong only when q is not contiguous"),
        (
            "k_taken_for_dense_in_its_heads", "contiguous", [("k", 1)],
            "wrong only when k.stride(1) != k.shape[2] * k.stride(2)",
        ),
        ("do_taken_for_dense_in_its_rows", "contiguous", [("do", 3)], "wrong only when do.stride(3) != 1"),
    ],
    push=2,
)  # fmt: skip
def test_what_is_taken_for_granted_is_named_as_the_rule_that_was_broken(
    tmp_path, fault, kind, strides, words
):
    _, (culprit,) = blamed(write(tmp_path, fault))
    assert (culprit.kind, list(culprit.strides), culprit.words) == (kind, strides, words)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("q_taken_for_contiguous_and_do_by_v", "q is not contiguous", "do.stride(1) != v.stride(1)"),
        ("two_at_once", "do.stride(1) != q.stride(1)", "v.stride(0) != k.stride(0)"),
    ],
)  # fmt: skip
def test_two_faults_at_once_are_told_apart_and_neither_is_said_to_be_the_only_one(
    tmp_path, name, first, second
):
    _, found = blamed(write(tmp_path, name))
    words = [f"wrong when {first}", f"wrong when {second}"]
    assert [culprit.words for culprit in found] == words


def test_what_a_right_layout_belies_is_said_of_some_layouts_only(tmp_path):
    verdicts, found = blamed(write(tmp_path, "do_heads_by_q_rows"))
    assert verdicts["strided-last"] == "match"
    begins = [culprit.words.partition(" when ")[0] for culprit in found]
    assert begins == ["wrong in some layouts"] * 2
    assert all("stride(3) != 1" in culprit.words for culprit in found)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_grouped_heads_and_other_lengths_have_a_common_wide_layout_too(kv_heads):
    bench = bench_for("sdpa-math", heads=3, kv_heads=kv_heads, seqlen_q=9, seqlen_k=14)
    assert culprits(bench, [trials_for(bench)["distinct"]]) == ()


def test_a_stride_that_only_makes_a_wrapper_copy_is_not_blamed(tmp_path):
    edits = (
        (
            "*v.stride(), *do.stride(),",
            "*v.stride(), do.stride(0), q.stride(1), *do.stride()[2:],",
        ),
        (
            "    o, lse = lazy_forward(q, k, v, **options)\n    gradients",
            "    q, do = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, do))\n"
            "    o, lse = lazy_forward(q, k, v, **options)\n    gradients",
        ),
    )
    source = (KERNELS / "lazy.py").read_text()
    for find, replace in edits:
        assert source.count(find) == 1
        source = source.replace(find, replace)
    (tmp_path / "copying.py").write_text(source)
    word = f"{tmp_path / 'copying.py'}:lazy_intermediates"
    bench = bench_for(word, batch=1, heads=2, seqlen=9, head_dim=16, bias=False)
    (culprit,) = culprits(bench, [trials_for(bench)["distinct-unit"]])
    assert culprit.words == "wrong only when do.stride(1) != q.stride(1)"
