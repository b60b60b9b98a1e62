"""The lazy kernels of kernels/triton against float64 autograd, in any memory layout, bit for bit."""

from itertools import product

import numpy as np
import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.inputs.tensor_layouts import place
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.runtime.trace import Trace, read_trace
from tests.cases import lazy_case
from tests.reference.independent import by_autograd
from tests.sampling import sampled

FORWARD = ("q", "k", "v")
INPUTS = (*FORWARD, "do", "bias", "tau", "seqlens", "lse")
OUTPUTS = ("dq", "dk", "dv")
DTYPES = ("float32", "float16", "bfloat16")
AXES = [
    (name, axis)
    for name in INPUTS
    for axis in range({"lse": 3, "bias": 2, "tau": 1, "seqlens": 1}.get(name, 4))
]
on_cpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not"
)


def run(case, tensors, **options):
    """Forward and backward on tensors as they lie; a given lse, dq, dk or dv is the backward's alone."""
    from gradprobe.kernels.triton.lazy import lazy_backward, lazy_forward

    options = {"scale": case.scale, "block_m": case.block_m, "block_n": case.block_n} | options
    own = {name: tensors[name] for name in ("do", *OUTPUTS) if name in tensors}
    given = {name: tensor for name, tensor in tensors.items() if name not in ("lse", *own)}
    o, lse = lazy_forward(
        **given, **{name: value for name, value in options.items() if name != "export"}
    )
    results = lazy_backward(
        **given, **own, lse=tensors.get("lse", lse), **{"export": True, **options}
    )
    for name, result in (("dq", "dQ"), ("dk", "dK"), ("dv", "dV")):
        assert results[result] is tensors.get(name, results[result])
    return {"O": o, "LSE": lse} | results


def unwritten(values):
    """Tensors for dQ, dK and dV to be written into: NaN shows what was not."""
    return {f"d{name}": torch.full_like(values[name], torch.nan) for name in FORWARD}


def values_of(case):
    return {name: value.to(case.device) for name, value in draw(case).items()}


def assert_right(**options):
    """Every element within gradprobe's budget, what float32 sums and the dtype's roundings allow, of an expected value
    that autograd finds through a forward of the tests' own."""
    case = lazy_case(**options)
    values = values_of(case)
    wide = {
        name: value.cpu() if name == "seqlens" else value.cpu().double()
        for name, value in values.items()
    }
    expected = by_autograd(**wide, family="lazy", scale=case.scale)
    expected = Trace({name: value.to(case.device) for name, value in expected.items()}, {})
    assert set(expected.values) == {
        "O",
        "LSE",
        "P",
        "dP",
        "delta",
        "dS",
        "dQ",
        "dK",
        "dV",
        "dTau",
    } | ({"dBias"} if case.bias else set())
    trace = read_trace(run(case, values), case, "the kernel")
    assert trace.values.keys() == expected.values.keys()
    comparison = compare(
        case, attention_of(case, values), trace, precision_of(case.dtype, "ieee"), reference=expected
    )  # fmt: skip
    assert {
        name: finding.first_wrong
        for name, finding in comparison.findings.items()
        if finding.mismatched
    } == {}
    return trace.values


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        integers = {2: torch.int16, 4: torch.int32}[value.element_size()]
        assert torch.equal(
            actual[name].contiguous().view(integers), value.contiguous().view(integers)
        ), name


@sampled(
    "size, dtype",
    product([(1, 8), (1, 80), (15, 1), (17, 24), (33, 80), (33, 1), (72, 8)], DTYPES),
    push=4,
)
def test_every_intermediate_is_right_in_every_dtype_at_awkward_lengths_and_dims(size, dtype):
    n_ctx, head_dim = size
    assert_right(
        batch=2, heads=2, seqlen=n_ctx, head_dim=head_dim, dtype=dtype, bias_window=n_ctx // 2 + 1
    )


@sampled("window", [None, 1, 2, 16, 32, 33, 34, 50, 100], push=[None, 1, 32, 33, 100])
def test_a_bias_window_shorter_than_33_rows_equal_longer_and_none(window):
    given = assert_right(
        batch=1, heads=2, seqlen=33, head_dim=8, bias=window is not None, bias_window=window
    )
    assert window is None or given["dBias"][:, 33:].eq(0).all()


@pytest.mark.parametrize("tau", [(0.0,), (-1.0,), (-0.4, 0.4), (-33.0, 5.0), (1e-3, -1e-3)])
def test_tau_of_either_sign_and_0(tau):
    assert_right(batch=1, heads=2, seqlen=33, head_dim=8, tau=tau)


@sampled(
    "seqlens, dtype", product([(0, 1, 33), (33, 33, 33), (16, 17, 32), (0, 0, 0)], DTYPES), push=3
)
def test_right_padding_to_0_1_and_full_length_leaves_zeros_beyond(seqlens, dtype):
    given = assert_right(batch=3, heads=2, seqlen=33, head_dim=8, seqlens=seqlens, dtype=dtype)
    for b, length in enumerate(seqlens):
        for name in ("O", "P", "dP", "delta", "dS", "dQ", "dK", "dV"):
            assert given[name][b, :, length:].eq(0).all(), name
        assert given["LSE"][b, :, length:].eq(-float("inf")).all()


@sampled("block_m, block_n", [(16, 16), (16, 64), (64, 16), (32, 128), (128, 32)], push=2)
def test_tiles_of_any_two_sizes_give_what_72_rows_need(block_m, block_n):
    assert_right(batch=2, heads=2, head_dim=8, block_m=block_m, block_n=block_n, seqlens=(72, 41))


@pytest.mark.parametrize("pattern", ["negative", "large"])
def test_scores_that_overflow_or_underflow_without_their_maximum(pattern):
    assert_right(batch=1, heads=2, seqlen=33, head_dim=8, pattern=pattern, scale=1.0)


LAYOUTS = ("blhd", "packed", "distinct", "strided-last", "offset")


@pytest.fixture(scope="module")
def small():
    """A case, its inputs with LSE among them, and the results of the contiguous run."""
    case = lazy_case(
        heads=2, seqlen=17, head_dim=8, bias_window=9, seqlens=(17, 11), block_m=16, block_n=32
    )
    values = values_of(case)
    results = run(case, values)
    values["lse"] = results["LSE"].clone()
    return case, values, results


@on_cpu
@sampled(
    "tensor, layout",
    product([*INPUTS, *OUTPUTS, "all"], LAYOUTS),
    push=[("all", "blhd"), ("all", "distinct"), ("seqlens", "offset"), ("dq", "distinct")],
)
def test_another_layout_of_any_tensor_gives_the_same_bits(small, tensor, layout):
    case, values, expected = small
    assert_same_bits(
        run(case, place(values | unwritten(values), ((tensor, layout),)).tensors), expected
    )


@on_cpu
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_gradient_is_written_where_the_caller_says_and_nowhere_beside(small, name):
    case, values, expected = small
    storage = torch.full((2, 17, 3, 2, 8), 7.0)
    given = storage[:, :, 1].transpose(1, 2)
    assert_same_bits(run(case, values | {name: given}), expected)
    assert (storage[:, :, ::2] == 7.0).all()
    assert_same_bits({name: given}, {name: expected["d" + name[1:].upper()]})


@on_cpu
@sampled("tensor, axis", AXES, push=[("k", 0), ("do", 2), ("bias", 1), ("lse", 1)])
def test_stride_0_along_any_axis_gives_the_bits_of_the_repeated_values(small, tensor, axis):
    case, values, _ = small
    if tensor == "seqlens":  # the longer length in both batches: LSE has to be of all rows then
        values = {name: value for name, value in values.items() if name != "lse"}
    repeated = values[tensor].narrow(axis, 0, 1).expand(values[tensor].shape)
    assert repeated.stride(axis) == 0
    expected = run(case, values | {tensor: repeated.contiguous()})
    assert_same_bits(run(case, values | {tensor: repeated}), expected)


@on_cpu
@sampled(
    "tensor, axis",
    AXES + [(name, axis) for name in OUTPUTS for axis in range(4)],
    push=[("q", 2), ("k", 1), ("v", 0), ("do", 2), ("bias", 1), ("dq", 2), ("dk", 1)],
)
def test_offsets_beyond_2_to_the_31_elements_give_the_same_bits(small, tensor, axis, tmp_path):
    case, values, expected = small
    value = (values | unwritten(values))[tensor]
    # One long stride over a file of holes, of which only the pages that are written exist; the tensor begins 2^31
    # elements into it, so that an offset that wraps in 32 bits reads a wrong number and not another's memory.
    strides = [stride * (place != axis) for place, stride in enumerate(value.stride())]
    strides[axis] = 2**31 // (value.shape[axis] - 1) + 1
    extent = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, strides, strict=True))
    assert extent > 2**31
    file = tmp_path / "holes"
    storage = torch.from_numpy(np.memmap(file, value.numpy().dtype, "w+", shape=(2**31 + extent,)))
    file.unlink()
    far = storage.as_strided(value.shape, strides, 2**31).copy_(value)
    assert_same_bits(run(case, values | {tensor: far}), expected)


@on_cpu
def test_nothing_that_is_returned_depends_on_what_the_allocator_left(small, monkeypatch):
    case, values, _ = small
    expected = run(case, values, block_n=16)  # tiles above the diagonal are not visited
    filled = []

    def poisoned(original):
        def allocate(*args, **options):
            made = original(*args, **options)
            filled.append(made.shape)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return allocate

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    results = run(case, values, block_n=16)
    monkeypatch.undo()
    assert (filled.count((2, 2, 17, 8)), filled.count((2, 2, 17))) == (
        4,
        2,
    )  # O, dQ, dK, dV; LSE, delta
    assert_same_bits(results, expected)


@on_cpu
def test_without_export_no_matrix_is_returned_or_allocated_and_the_rest_has_the_same_bits(
    small, monkeypatch
):
    case, values, expected = small
    zeros, shapes = torch.Tensor.new_zeros, []
    monkeypatch.setattr(
        torch.Tensor, "new_zeros", lambda *args, **kw: shapes.append(args[1]) or zeros(*args, **kw)
    )
    results = run(case, values, export=False)
    assert_same_bits(
        results, {name: value for name, value in expected.items() if name not in ("P", "dP", "dS")}
    )
    assert (2, 2, 17, 17) not in shapes


@on_cpu
def test_lse_is_computed_where_it_is_not_given_and_seqlens_may_be_of_64_bits(small):
    from gradprobe.kernels.triton.lazy import lazy_backward

    case, values, expected = small
    given = {name: value for name, value in values.items() if name != "lse"} | {
        "seqlens": values["seqlens"].long()
    }
    results = lazy_backward(**given, block_m=16, block_n=32, export=True)
    assert_same_bits({name: expected[name] for name in ("O", "LSE")} | results, expected)


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("q", torch.zeros(2, 17, 8), r"q must be \[B, H, L, D\], got shape \(2, 17, 8\)"),
        (
            "k",
            torch.zeros(2, 2, 17, 9),
            r"k must match q, \(2, 2, 17, 8\) torch.float32, got \(2, 2, 17, 9\)",
        ),
        ("v", torch.zeros(2, 2, 17, 8).half(), "v must match q, .* got .* torch.float16"),
        ("do", torch.zeros(2, 2, 16, 8), r"do must match q, .* got \(2, 2, 16, 8\)"),
        ("tau", torch.zeros(3), r"tau must be \[H\] = \(2,\), got shape \(3,\)"),
        ("bias", torch.zeros(3, 9), r"bias must be \[H, W\] with H = 2, got shape \(3, 9\)"),
        ("bias", torch.zeros(9), r"bias must be \[H, W\] with H = 2, got shape \(9,\)"),
        (
            "seqlens",
            torch.tensor([17]),
            r"seqlens must be \[B\] = \(2,\) integers, got shape \(1,\) torch.int64",
        ),
        (
            "seqlens",
            torch.tensor([17.0, 3.0]),
            r"seqlens must be \[B\] = \(2,\) integers, got .* torch.float32",
        ),
        (
            "lse",
            torch.zeros(2, 2, 16),
            r"lse must be \[B, H, L\] = \(2, 2, 17\), got shape \(2, 2, 16\)",
        ),
        (
            "dq",
            torch.zeros(2, 2, 17, 9),
            r"dq must match q, \(2, 2, 17, 8\) torch.float32, got \(2, 2, 17, 9\)",
        ),
        (
            "dk",
            torch.zeros(2, 2, 17, 8).half(),
            "dk must match k, .* torch.float32, got .* torch.float16",
        ),
        (
            "dv",
            torch.zeros(2, 2, 1, 8).expand(2, 2, 17, 8),
            r"dv must hold each .* stride 0 among \(16, 8, 0, 1\)",
        ),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused_by_name(small, name, wrong, words):
    from gradprobe.kernels.triton.lazy import lazy_backward, lazy_forward

    _, values, _ = small
    given = values | {name: wrong.to(values["q"].device)}
    with pytest.raises(ValueError, match=words):
        lazy_backward(**given)
    if name not in ("do", "lse", *OUTPUTS):
        with pytest.raises(ValueError, match=words):
            lazy_forward(**{key: value for key, value in given.items() if key not in ("do", "lse")})
