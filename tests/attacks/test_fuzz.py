"""No command line, configuration or file ends in an error of the tool's own: each is a report or a told failure.

On every push some hundred tries, the same each time; `GRADPROBE_TESTS=night` draws 10,000 of each anew.
"""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gradprobe.commands.settings import settings_of
from gradprobe.inputs.draw import draw
from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.options import OPTIONS
from gradprobe.inputs.saved import SavedInputs, load, save
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.assignment import LAYOUTS, TENSORS
from gradprobe.model.failures import Failure
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.pipeline.run_check import run_check
from tests.cli.command import run
from tests.sampling import tries

SMALL = 1 << 14
RIGHT = """
import torch
def backward(q, k, v, do, *, causal=False, scale=None, softcap=None, window=None, bias=None):
    from gradprobe.reference import manual_attention_backward
    known = {"bias": bias} if bias is not None else {}
    found = manual_attention_backward(q=q, k=k, v=v, do=do, causal=causal, scale=scale, softcap=softcap, window=window,
                                      family="softmax", **known)
    return {name: found[name].to(q.dtype) for name in ("O", "dQ", "dK", "dV")}
"""


def told(action):
    """What an action returns; None where it is refused, which must be in words and not the tool's own fault."""
    try:
        return action()
    except Failure as failure:
        words = str(failure)
    assert words.strip()
    assert "gradprobe itself failed" not in words
    return None


INTEGERS = st.one_of(st.integers(-3, 40), st.sampled_from([0, -1, 2**31, 2**63, 10**30]))
ODD = [0.0, -0.0, 1e-320, 1e38, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-46]
FLOATS = st.one_of(st.floats(), st.sampled_from(ODD))
WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", " ", "-1", "1e999", "nan", "0,0", "1,2,3", "all=distinct", "do=expanded", "=", "q=", "\0"]),
    st.sampled_from([*LAYOUTS, *TENSORS, "float32", "float16", "cpu", "cuda", "normal", "dyadic", "random"]),
    st.lists(st.integers(-2, 90), max_size=4).map(lambda numbers: ",".join(map(str, numbers))),
    st.tuples(st.sampled_from([*TENSORS, "all", "x"]), st.sampled_from([*LAYOUTS, "y"])).map("=".join),
)  # fmt: skip
KINDS = {
    int: INTEGERS, float: FLOATS, str: WORDS, bool: st.booleans(),
    list: st.lists(WORDS, max_size=2),
}  # fmt: skip
# They choose files, or how often and where things run; a device that is not there has tests of its own.
LEFT_OUT = {"inputs", "repeat", "device", "recover", "block_m", "block_n"}
# So many scores and head dims that a try takes milliseconds.
MODEST = {"batch": 1, "heads": 2, "seqlen": 9, "head_dim": 4}
# Options that any softmax target takes.
PLAIN = {
    "dtype", "causal", "scale", "softcap", "window", "seed", "pattern", "layout", "heads", "batch", "seqlen", "bias",
    "head_dim", "seqlen_q", "seqlen_k", "align", "head_dim_v", "kv_heads",
}  # fmt: skip
CASES = st.fixed_dictionaries(
    {}, optional={one.name: KINDS[one.kind] for one in OPTIONS if one.name not in LEFT_OUT}
)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    path = tmp_path_factory.mktemp("right") / "right_of_fuzz.py"
    path.write_text(RIGHT)
    return f"{path}:backward"


def _size(case):
    scores = max(case.seqlen_q, 1) * max(case.seqlen_k, 1)
    longest = max(scores, case.bias_window)  # lazy's bias is [H, W]
    return case.batch * case.heads * longest * max(case.head_dim, case.head_dim_v)


@tries(100)
@given(
    CASES,
    st.sampled_from(["right", "lazy", "flash", "", "x", "FILE.py:f:x", "torch:nn", ":", "a:b"]),
)
@example(options={"scale": 1e300}, target="right")
@example(options={"softcap": 1e300}, target="right")
def test_the_options_of_a_case_are_taken_or_refused_in_words(right, options, target):
    words = {**MODEST, **({"seqlen_k": 9} if "seqlen_q" in options else {}), **options}
    request = CheckRequest(right if target == "right" else target, None, None, words)
    problem = told(lambda: resolve_problem(request))
    if problem is not None and _size(problem.case) < SMALL:
        for assigned in (problem.case.layouts, *(problem.case.runs or ())):
            told(lambda assigned=assigned: place(draw(problem.case), assigned))


@tries(40)
@given(options=CASES)
@example(options={"scale": 1e38})
@example(options={"softcap": 1e-300})
@example(options={"seqlen_q": 1, "seqlen_k": 37, "causal": True})
def test_a_right_target_is_never_accused_whatever_the_case(right, options):
    chosen = {name: word for name, word in options.items() if name in PLAIN}
    words = {**MODEST, "recover": False, **chosen}
    if {"seqlen_q", "seqlen_k"} & chosen.keys():
        del words["seqlen"]
        words = {"seqlen_q": 9, "seqlen_k": 9, **words}
    request = CheckRequest(right, None, None, words)
    problem = told(lambda: resolve_problem(request))
    if problem is not None and _size(problem.case) < SMALL:
        report = told(lambda: run_check(request, ""))
        assert report is None or report.verdict == "match", (words, report.failing)


LINES = st.lists(
    st.one_of(
        st.sampled_from(["check", "diff", "dS", "strides", "sweep", "lint", "shrink", "save", "init"]),
        st.sampled_from([f"--{option.name.replace('_', '-')}" for option in OPTIONS]),
        st.sampled_from(["--json", "-", "--junit", "--sarif", "--github", "--timeout", "--battery", "--", "-h"]),
        st.text(max_size=6), FLOATS.map(str), INTEGERS.map(str),
    ),
    max_size=7,
)  # fmt: skip


@tries(40)
@given(line=LINES)
def test_a_command_line_ends_in_an_exit_code_of_0_to_3_and_no_traceback(
    tmp_path_factory, monkeypatch, line
):
    # Where the parser lets it through, no target is there, so that nothing runs for long.
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)
    told = ("help", "install", "show-comp")
    words = [word for word in line if not word.strip("-").startswith(told)]
    ran = run(["check", "missing.py:f", *words])
    assert ran.code in (0, 1, 2, 3)
    assert "Traceback" not in ran.out + ran.err
    assert "gradprobe itself failed" not in ran.err


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), FLOATS, WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner),
    max_leaves=6,
)  # fmt: skip
TABLES = st.dictionaries(
    st.one_of(
        st.sampled_from(["targets", "cases", "layouts", "timeout", "family", "reference", *[o.name for o in OPTIONS]]),
        st.text(max_size=4),
    ),
    VALUES, max_size=4,
)  # fmt: skip


def _toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value.encode("utf-8", "replace").decode())
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items())
        return "{" + inner + "}"
    return str(value)  # of a float too: inf, -inf and nan are TOML's own


@tries(120)
@given(table=TABLES)
def test_a_configuration_of_any_values_is_taken_or_refused_in_words(tmp_path_factory, table):
    lines = [f"{_toml(key)} = {_toml(value)}" for key, value in table.items()]
    folder = tmp_path_factory.mktemp("configured")
    text = "\n".join(["[tool.gradprobe]", *lines])
    (folder / "pyproject.toml").write_bytes(text.encode())
    told(lambda: settings_of(folder).configured())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tensors = {name: torch.randn(1, 2, 3, 4) for name in ("q", "k", "v", "do")}
    save(folder / "x.pt", SavedInputs(tensors, {}, {"causal": True}))
    np.savez(folder / "y.npz", **{name: value.numpy() for name, value in tensors.items()})
    return {name: (folder / name).read_bytes() for name in ("x.pt", "y.npz")}


@tries(120)
@given(
    st.sampled_from(["x.pt", "y.npz"]), st.floats(0, 1), st.integers(0, 40), st.binary(max_size=20)
)  # fmt: skip
def test_a_damaged_file_of_inputs_is_read_or_refused_in_words(
    tmp_path_factory, saved, name, at, cut, put
):
    whole = saved[name]
    place_of = int(at * len(whole))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(whole[:place_of] + put + whole[place_of + cut :])
    told(lambda: load(str(path)))
