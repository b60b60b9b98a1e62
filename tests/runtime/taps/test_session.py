"""Kernels launched with taps, in the interpreter: what is seen is what the kernel held, and nothing of it changes."""

import inspect
import re
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import place
from gradprobe.kernels.triton import lazy
from gradprobe.model.assignment import LAYOUTS
from gradprobe.model.failures import Failure, TargetFailure, UsageFailure
from gradprobe.runtime.launches import recorded_launches
from gradprobe.runtime.taps import parse_tap, tapped
from gradprobe.runtime.trace import expected_shapes
from gradprobe.targets.naming import source_of
from tests.cases import lazy_case
from tests.runtime.taps import written
from tests.sampling import sampled

on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter alone runs these kernels as they stand")
pytestmark = on_cpu

# Partial tiles along both axes, and tiles that are not square.
SIZES = {"batch": 2, "heads": 3, "seqlen": 40, "head_dim": 16, "block_m": 16, "block_n": 32}
OUTER = "bhid // H, bhid % H"


def read(words, shapes, launch):
    with tapped([parse_tap(word) for word in words], shapes, "cpu") as session:
        results = launch()
    return session.read(), results


def lazy_backward(tensors, export=False):
    return lazy.lazy_backward(**tensors, export=export, block_m=16, block_n=32)


def lazy_reading(words, layout="contiguous", **options):
    """What taps saw of the lazy backward, its results, and its results with its own exports."""
    case = lazy_case(**SIZES, **options)
    tensors = place(draw(case), (("all", layout),)).tensors
    reading, results = read(words, expected_shapes(case), lambda: lazy_backward(tensors))
    return reading, results, lazy_backward(tensors, export=True)


def failure_of(words, launch=None, shapes=None):
    """The failure that a tap of the lazy backward ends in, wherever it shows."""
    case = lazy_case(**SIZES, bias=False)
    tensors = place(draw(case), (("all", "contiguous"),)).tensors
    with pytest.raises(Failure) as caught:
        read(words, shapes or expected_shapes(case), launch or (lambda: lazy_backward(tensors)))
    return caught.value


def softmax_inputs(dtype=torch.float32, length=40):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, length, 16, generator=generator).to(dtype) for _ in range(4)]


def softmax_values(q, k, v, do, causal):
    """Every intermediate in float64, as the formulas have them."""
    q, k, v, do = (tensor.double() for tensor in (q, k, v, do))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    p, dp = scores.softmax(-1), do @ v.mT
    delta = (p * dp).sum(-1)
    ds = p * (dp - delta[..., None])
    return {"P": p, "dP": dp, "delta": delta, "dS": ds, "dQ": ds @ k * q.shape[-1] ** -0.5,
            "dK": ds.mT @ q * q.shape[-1] ** -0.5, "dV": p.mT @ do}  # fmt: skip


def softmax_shapes(length=40):
    square, wide = (2, 3, length, length), (2, 3, length, 16)
    return {"P": square, "dP": square, "dS": square, "delta": (2, 3, length)} | dict.fromkeys(("dQ", "dK", "dV"), wide)


def assert_close(values, expected, bound):
    """Within a bound relative to the largest element: what is right differs by roundings, what is wrong by its size."""
    for name, value in values.items():
        distance = (value.double() - expected[name]).abs().max() / expected[name].abs().max()
        assert distance < bound, name


# float32 sums of 40 and 16 terms of size 1 keep 2^-24 * 40; operands rounded to float16 keep 2^-11 each.
FLOAT32, FLOAT16 = 1e-5, 4e-3


@sampled("layout", sorted(LAYOUTS), push=["strided-last"])
def test_taps_of_the_dq_kernel_give_the_bits_that_it_exports_itself(layout):
    words = [f"{name}=lazy_dq_kernel:{name.lower()}[b,h,offs_m,offs_n]" for name in ("P", "dP", "dS")]
    reading, results, exported = lazy_reading(words, layout, seqlens=(40, 23))
    assert list(reading.values) == ["P", "dP", "dS"]
    for name, value in reading.values.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, exported[name]), name
    assert all(torch.equal(value, exported[name]) for name, value in results.items())
    assert reading.notes == ()


def test_the_gradients_and_delta_are_seen_where_the_kernel_stores_them():
    words = ["delta=preprocess:delta[b,h,offs_m]", "dQ=lazy_dq_kernel:dq[b,h,offs_m,offs_d]*scale",
             "dK=dk[b,h,offs_n,offs_d]*scale", "dV=dv[b,h,offs_n,offs_d]"]  # fmt: skip
    reading, results, _ = lazy_reading(words)
    assert all(torch.equal(value, results[name]) for name, value in reading.values.items())
    assert set(reading.values) == {"delta", "dQ", "dK", "dV"}


@pytest.mark.parametrize("written_so", ["", ".T"])
def test_transposed_tiles_of_the_dkdv_kernel_come_out_in_rows_and_columns(written_so):
    words = [f"{name}=dkdv:{name.lower()}[b,h,offs_m,offs_n]{written_so}" for name in ("P", "dS")]
    reading, _, exported = lazy_reading(words)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    # The same products, summed in the other order of the operands: q k and k q.
    for name, value in reading.values.items():
        assert torch.allclose(value, exported[name], rtol=0, atol=1e-5), name
        assert not value[..., ~seen].any()


def test_where_the_kernel_does_not_tell_how_a_tile_lies_the_tap_does():
    x = torch.arange(256.0)
    straight, turned = (
        read([f"dS=ds[0,0,offs_m,offs_n]{written_so}"], {"dS": (1, 1, 16, 16)}, lambda: reshaped[(1,)](x))[0].values[
            "dS"
        ]
        for written_so in ("", ".T")
    )
    assert torch.equal(straight.flatten(), x)
    assert torch.equal(turned[0, 0], x.reshape(16, 16).T)


def test_a_tile_said_to_be_transposed_that_is_not_is_refused():
    failure = failure_of(["dS=lazy_dq_kernel:ds[b,h,offs_m,offs_n].T"])
    assert isinstance(failure, UsageFailure)
    assert "not transposed" in str(failure)
    assert failure.way_out == "leave out .T"


BOUNDS = {torch.float32: FLOAT32, torch.float16: FLOAT16}


@sampled("dtype, causal", product(BOUNDS, [False, True]), push=[(torch.float32, True), (torch.float16, False)])
def test_variables_of_inner_functions_are_seen_with_the_heads_of_the_kernel_that_calls_them(dtype, causal):
    bound, inputs = BOUNDS[dtype], softmax_inputs(dtype)
    expected = softmax_values(*inputs, causal)
    rows = [f"P=p[{OUTER},offs_m,offs_n]", f"dS=ds[{OUTER},offs_m,offs_n]", f"dQ=dq[{OUTER},offs_m,offs_k]"]
    columns = [f"P=pT[{OUTER},offs_m,offs_n].T", f"dS=dsT[{OUTER},offs_m,offs_n]", f"dV=dv[{OUTER},offs_n,offs_k]"]
    for words in (rows, columns):
        reading, results = read(words, softmax_shapes(), lambda: written.fused_backward(*inputs, causal=causal))
        assert_close(reading.values, expected, bound)
        assert_close(results, expected, bound)
        assert reading.notes == ()
        # Rounded for the dot that reads it, and so its dtype says.
        assert reading.values["dS"].dtype == dtype
        assert reading.values["P"].dtype == torch.float32


def test_an_index_may_be_any_expression_that_holds_at_the_place():
    inputs = softmax_inputs()
    words = ["dP=inner_dq:dp[tl.program_id(2)//H, tl.program_id(axis=2)%H, start_m + tl.arange(0, BLOCK_N), offs_n]"]
    with pytest.raises(UsageFailure, match="reads 'BLOCK_N'|is 32 long|is 16 long"):
        # In the inner function BLOCK_N is the length of the other axis: the caller passes it BLOCK_M.
        read(words, softmax_shapes(), lambda: written.fused_backward(*inputs))
    words = ["dP=inner_dq:dp[tl.program_id(2)//H, tl.program_id(axis=2)%H, offs_m, "
             "start_n + step * BLOCK_N + tl.arange(0, BLOCK_N)]"]  # fmt: skip
    reading, _ = read(words, softmax_shapes(), lambda: written.fused_backward(*inputs))
    assert_close(reading.values, softmax_values(*inputs, False), FLOAT32)


@pytest.mark.skipif(triton.__version__ >= "3.9", reason="Triton 3.9 took block pointers away")
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@sampled("causal, length", product([False, True], [40, 64]), push=[(False, 64), (True, 40)])
def test_kernels_under_heuristics_and_autotune_are_seen_too(causal, length):
    inputs = softmax_inputs(length=length)
    words = ["P=p[off_b,off_h,offs_qm,offs_n]", "dS=ds[off_b,off_h,offs_qm,offs_n]/softmax_scale",
             "delta=Di[off_b,off_h,offs_qm]", "dQ=dq[off_b,off_h,offs_qm,offs_d]"]  # fmt: skip
    reading, results = read(words, softmax_shapes(length), lambda: written.decorated_dq(*inputs, causal=causal))
    assert_close(reading.values, softmax_values(*inputs, causal), FLOAT32)
    assert torch.equal(reading.values["dQ"], results["dQ"])


def test_two_taps_may_fill_one_intermediate():
    inputs = softmax_inputs()
    words = [f"dV=dv[{OUTER},offs_n,offs_k]*0", f"dV=dv[{OUTER},offs_n,offs_k]"]
    reading, results = read(words, softmax_shapes(), lambda: written.fused_backward(*inputs))
    assert torch.equal(reading.values["dV"], results["dV"])


def state_of(file, kernel):
    source = inspect.getsource(kernel.fn)
    return file.read_bytes(), kernel.fn, kernel.fn.__code__, kernel.arg_names[:], written.inner_dq, source


def test_kernels_files_and_modules_are_left_as_they_are():
    file = Path(written.__file__)
    kernel = written.fused_backward_kernel
    before = state_of(file, kernel)
    untapped = written.fused_backward(*softmax_inputs())
    known = set(vars(written))
    runs = {kind: kind.run for kind in (triton.runtime.jit.JITFunction, triton.runtime.interpreter.InterpretedFunction)}
    words = [f"dS=ds[{OUTER},offs_m,offs_n]"]
    _, results = read(words, softmax_shapes(), lambda: written.fused_backward(*softmax_inputs()))
    assert state_of(file, kernel) == before
    assert set(vars(written)) == known
    assert all(kind.run is run for kind, run in runs.items())
    again = written.fused_backward(*softmax_inputs())
    for name, value in untapped.items():
        assert torch.equal(value, results[name])
        assert torch.equal(value, again[name])


def test_the_launches_recorded_inside_are_of_the_kernels_that_were_written():
    words = [f"dS=ds[{OUTER},offs_m,offs_n]"]
    with (
        tapped([parse_tap(word) for word in words], softmax_shapes(), "cpu"),
        recorded_launches({}) as record,
    ):
        written.fused_backward(*softmax_inputs())
    assert record.kernels == [written.fused_backward_kernel.fn]
    assert source_of(record.kernels[0]).file == written.__file__


def test_an_error_of_the_kernel_itself_keeps_its_line_and_its_words():
    q, k, v, do = softmax_inputs()
    shapes = softmax_shapes()
    with pytest.raises(Exception, match=r"power|shape|arange") as caught, tapped(
        [parse_tap(f"dV=dv[{OUTER},offs_n,offs_k]")], shapes, "cpu"
    ):  # fmt: skip
        written.fused_backward(q[..., :15], k[..., :15], v[..., :15], do[..., :15])
    assert not isinstance(caught.value, Failure)
    frames, error = [], caught.value
    while error is not None:
        frames += [(frame.path, frame.lineno) for frame in pytest.ExceptionInfo.from_exception(error).traceback]
        error = error.__cause__
    line = inspect.getsource(written).split("offs_k = tl.arange(0, HEAD_DIM)")[0].count("\n")
    assert any("fused_backward_kernel with taps" in str(path) and number == line for path, number in frames)


# What is wrong with a tap


def test_a_variable_that_does_not_exist_is_answered_with_those_that_do_the_likeliest_first():
    failure = failure_of(["dS=dsT[b,h,offs_m,offs_n]"])
    assert isinstance(failure, UsageFailure)
    assert "no launched kernel computes a variable 'dsT'" in str(failure)
    assert failure.way_out == "lazy_dq_kernel: did you mean 'ds'?; lazy_dkdv_kernel: did you mean 'ds'?"
    other = failure_of(["dS=preprocess:zzz[b,h,offs_m,offs_n]"])
    assert "lazy_preprocess_kernel has n_tiles, pid, b, h, " in other.way_out
    assert "stride" not in other.way_out


def test_a_parameter_is_no_variable_that_a_kernel_computes():
    failure = failure_of(["dS=lazy_dq_kernel:scale[b,h,offs_m,offs_n]"])
    assert "no launched kernel computes a variable 'scale'" in str(failure)


def test_a_variable_of_several_kernels_is_asked_about():
    failure = failure_of(["dS=ds[b,h,offs_m,offs_n]"])
    assert isinstance(failure, UsageFailure)
    assert "lazy_dq_kernel and lazy_dkdv_kernel each compute a variable 'ds'" in str(failure)
    assert failure.way_out == (
        "say which: dS=lazy_dq_kernel:ds[b,h,offs_m,offs_n] or dS=lazy_dkdv_kernel:ds[b,h,offs_m,offs_n]"
    )


def test_the_very_name_of_a_kernel_wins_over_a_part_of_one():
    case = lazy_case(**SIZES)
    tensors = place(draw(case), (("all", "contiguous"),)).tensors

    def both():
        lazy_backward(tensors)
        shorter[(1,)](torch.zeros(16))

    reading, _ = read(["dTau=lazy_d:marked[0]", "delta=preprocess:delta[b,h,offs_m]"], expected_shapes(case), both)
    assert reading.values["dTau"].tolist() == [7, 0, 0]
    assert reading.notes == ("tap 'dTau=lazy_d:marked[0]', dTau: nothing was stored at 2 of 3 places",)


def test_a_kernel_that_was_not_launched_is_answered_with_those_that_were():
    failure = failure_of(["dS=backward:ds[b,h,offs_m,offs_n]"])
    assert "the run launched no kernel called 'backward'" in str(failure)
    assert "lazy_dq_kernel, lazy_dkdv_kernel" in failure.way_out


def test_a_name_in_the_index_that_does_not_exist_is_answered_with_those_that_do():
    failure = failure_of(["dS=lazy_dq_kernel:ds[b,h,offs_m,offs_k]"])
    assert isinstance(failure, UsageFailure)
    assert "reads 'offs_k', which has no value in lazy_dq_kernel where 'ds' is computed" in str(failure)
    assert re.match("did you mean 'offs_[dmn]'. there are: ", failure.way_out)
    inner = failure_of(
        ["dS=ds[bid,0,offs_m,offs_n]"], lambda: written.fused_backward(*softmax_inputs()), softmax_shapes()
    )
    assert "reads 'bid'" in str(inner)


def test_a_run_without_a_kernel_is_told():
    failure = failure_of(["dS=ds[b,h,offs_m,offs_n]"], lambda: None)
    assert isinstance(failure, UsageFailure)
    assert "launched no Triton kernel" in str(failure)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("dS=lazy_dq_kernel:ds[b,h,offs_m]", "has 3 indices, but dS has 4 axes"),
        ("dBias=lazy_dq_kernel:ds[h,offs_m]", "dBias does not exist in this case"),
        ("dS=lazy_dq_kernel:ds[b,h,offs_m,start_n]", "'ds' has 2 axes, but its index has 1 blocks"),
        ("dS=lazy_dq_kernel:end_n[b,h,offs_m,0]", "'end_n' has 0 axes, but its index has 1 blocks"),
        ("dS=lazy_dq_kernel:ds[b,h,offs_m,offs_d]", "computes it anew in every turn, and nothing in the index changes"),
        ("delta=lazy_dq_kernel:ds[b,h,offs_n]", "'ds' has 2 axes, but its index has 1 blocks"),
        ("dS=lazy_dq_kernel:ds[b,h,offs_m,valid]", "the index 'valid' is a tile of several axes"),
        (
            "dS=lazy_dq_kernel:ds[b,h,offs_m,start_n+offs_d]",
            "axis 1 of 'ds' is 32 long, but the block that indexes it 16",
        ),
        ("dS=lazy_dq_kernel:ds[b+9,h,offs_m,offs_n]", "every index was outside of dS [2, 3, 40, 40]"),
        ("dS=lazy_dq_kernel:ds[b,h,offs_m,offs_n+bias]", "reads 'bias'"),
    ],
)
def test_what_does_not_fit_ends_in_a_sentence(word, sentence):
    failure = failure_of([word])
    assert isinstance(failure, UsageFailure)
    assert sentence in str(failure)
    assert failure.way_out


def test_a_name_that_has_a_value_on_some_ways_only_ends_in_a_sentence():
    x, shapes = torch.arange(16.0), {"delta": (1, 1, 16)}
    reading, _ = read(["delta=p[0,0,offs_m]"], shapes, lambda: written.half_named_kernel[(1,)](x, FLAG=True))
    assert reading.values["delta"].flatten().tolist() == list(range(16))
    failure = failure_of(["delta=p[0,0,offs_m]"], lambda: written.half_named_kernel[(1,)](x, FLAG=False), shapes)
    assert isinstance(failure, UsageFailure)
    assert "'offs_m' has no value in half_named_kernel at some place where 'p' is computed" in str(failure)


def test_code_that_never_ran_is_told():
    inputs = softmax_inputs()
    failure = failure_of(
        ["dQ=branching:dq[0,0,rows,columns]"],
        lambda: branching[(1,)](inputs[0], 0, BLOCK=16),
        softmax_shapes(),
    )
    assert isinstance(failure, TargetFailure)
    assert "branching was launched but never computed 'dq'" in str(failure)


def test_heads_and_batches_without_a_value_are_noted_and_so_are_heads_that_do_not_exist():
    case = lazy_case(**SIZES)
    tensors = place(draw(case), (("all", "contiguous"),)).tensors
    words = ["dS=lazy_dq_kernel:ds[b,h*2,offs_m,offs_n]", "dP=lazy_dq_kernel:dp[b*0,h,offs_m,offs_n]"]
    reading, _ = read(words, expected_shapes(case), lambda: lazy_backward(tensors))
    assert reading.notes == (
        f"tap {words[0]!r}, dS: a scalar index was outside of dS; the tap or the kernel is wrong",
        f"tap {words[0]!r}, dS: nothing was stored in head 1 of 3",
        f"tap {words[1]!r}, dP: nothing was stored in batch 1 of 2",
    )
    assert not reading.values["dS"][:, 1].any()


def test_a_failure_of_the_target_is_not_covered_by_one_of_a_tap():
    with pytest.raises(ZeroDivisionError), tapped([parse_tap("dS=ds[0,0,m,n]")], softmax_shapes(), "cpu"):
        _ = 1 / 0


@triton.jit
def lazy_d(x_ptr):
    marked = tl.program_id(0) + 7
    tl.store(x_ptr, marked)


shorter = lazy_d


@triton.jit
def reshaped(x_ptr):
    offs_m = tl.arange(0, 16)
    offs_n = tl.arange(0, 16)
    ds = tl.reshape(tl.load(x_ptr + tl.arange(0, 256)), (16, 16))
    tl.store(x_ptr + offs_m[:, None] * 16 + offs_n[None, :], ds)


@triton.jit
def branching(x_ptr, n, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK)
    if n > 0:
        dq = tl.load(x_ptr + rows[:, None] * 16 + columns[None, :])
        tl.store(x_ptr + rows[:, None] * 16 + columns[None, :], dq)


def closed_over(factor):
    """A kernel that reads a name of the function around it: the interpreter itself cannot run one."""
    block = tl.constexpr(16)

    @triton.jit
    def kernel(x_ptr):
        rows = tl.arange(0, block)
        doubled = tl.load(x_ptr + rows) * factor
        tl.store(x_ptr + rows, doubled)

    return kernel


def test_a_kernel_in_a_function_keeps_the_names_around_it():
    kernel, x = closed_over(tl.constexpr(2.0)), torch.arange(16.0)
    reading, _ = read(["delta=doubled[0,0,rows]"], {"delta": (1, 1, 16)}, lambda: kernel[(1,)](x))
    assert reading.values["delta"].flatten().tolist() == [2.0 * i for i in range(16)]


def test_what_a_module_changes_between_launches_is_seen():
    module = sys.modules[__name__]
    x = torch.zeros(16)

    def twice():
        for level in (3.0, 5.0):
            module.LEVEL = tl.constexpr(level)
            levelled[(1,)](x)

    reading, _ = read(["delta=found[0,0,rows]"], {"delta": (1, 1, 16)}, twice)
    assert set(reading.values["delta"].flatten().tolist()) == {5.0} == set(x.tolist())


LEVEL = tl.constexpr(0.0)


@triton.jit
def levelled(x_ptr):
    rows = tl.arange(0, 16)
    found = tl.zeros([16], tl.float32) + LEVEL
    tl.store(x_ptr + rows, found)
