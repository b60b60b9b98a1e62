"""The softmax kernels in any memory layout, bit for bit; what they read and leave alone, and what they refuse."""

from itertools import product

import numpy as np
import pytest
import torch

from gradprobe.frontends.triton import interpreter, interpreting
from gradprobe.inputs.tensor_layouts import place
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not"
)
if interpreting():
    interpreter.mend_interpreter()

SHAPES = {
    "q": (2, 4, 17, 8), "k": (2, 2, 17, 8), "v": (2, 2, 17, 5), "do": (2, 4, 17, 5), "o": (2, 4, 17, 5),
    "lse": (2, 4, 17), "bias": (2, 4, 17, 17), "mask": (2, 4, 17, 17), "alibi": (4,), "sinks": (4,),
}  # fmt: skip
OPTIONS = {"softcap": 2.0, "window": (9, 2), "block_m": 16, "block_n": 32}
PACKED = {"cu_seqlens_q": (0, 10, 17), "cu_seqlens_k": (0, 5, 17)}
INPUTS = (*SHAPES, "seqlens")
OUTPUTS = ("dq", "dk", "dv")
AXES = [(name, axis) for name in SHAPES for axis in range(len(SHAPES[name]))] + [("seqlens", 0)]


def drawn():
    values = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        for seed, (name, shape) in enumerate(SHAPES.items())
    }
    values["mask"] = values["mask"] > -1
    return values


def run(values, **options):
    """Forward and backward on tensors as they lie; a given o, lse, dq, dk or dv is the backward's alone."""
    from gradprobe.kernels.triton.flash import flash_backward, flash_forward

    options = OPTIONS | options
    given = {
        name: value for name, value in values.items() if name not in ("do", "o", "lse", *OUTPUTS)
    }
    o, lse = flash_forward(**given, **options)
    own = {name: values[name] for name in ("do", *OUTPUTS) if name in values}
    own |= {"o": values.get("o", o), "lse": values.get("lse", lse)}
    results = flash_backward(**given, **own, **options, export=True)
    for name, result in (("dq", "dQ"), ("dk", "dK"), ("dv", "dV")):
        assert results[result] is values.get(name, results[result])
    return {"O": o, "LSE": lse} | results


def unwritten(values):
    """Tensors for dQ, dK and dV to be written into: NaN shows what was not."""
    return {f"d{name}": torch.full_like(values[name], torch.nan) for name in ("q", "k", "v")}


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        integers = {2: torch.int16, 4: torch.int32}[value.element_size()]
        assert torch.equal(
            actual[name].contiguous().view(integers), value.contiguous().view(integers)
        ), name


@pytest.fixture(scope="module")
def padded():
    """Inputs of every kind but packed, O and LSE among them, and the results of the contiguous run."""
    values = drawn() | {"seqlens": torch.tensor([17, 11], dtype=torch.int32)}
    results = run({name: value for name, value in values.items() if name not in ("o", "lse")})
    values |= {"o": results["O"].clone(), "lse": results["LSE"].clone()}
    return values, results


@pytest.fixture(scope="module")
def packed():
    """Inputs of two packed sequences, and the results of the contiguous run."""
    values = {
        name: value[:1]
        for name, value in drawn().items()
        if value.dim() > 2 and name not in ("o", "lse")
    }
    values |= {name: torch.tensor(ends, dtype=torch.int32) for name, ends in PACKED.items()}
    return values, run(values)


ALL = [("all", layout) for layout in ("blhd", "packed", "distinct", "strided-last", "offset")]


@sampled(
    "tensor, layout",
    [*product((*INPUTS, *OUTPUTS), ("distinct", "offset")), *ALL],
    push=[("all", "blhd"), ("all", "distinct"), ("seqlens", "offset"), ("dq", "distinct")],
)
def test_another_layout_of_any_tensor_gives_the_same_bits(padded, tensor, layout):
    values, expected = padded
    assert_same_bits(run(place(values | unwritten(values), ((tensor, layout),)).tensors), expected)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_gradient_is_written_where_the_caller_says_and_nowhere_beside(padded, name):
    values, expected = padded
    batch, heads, rows, dim = SHAPES[name[1:]]
    storage = torch.full((batch, rows, 3, heads, dim), 7.0)
    given = storage[:, :, 1].transpose(1, 2)
    assert_same_bits(run(values | {name: given}), expected)
    assert (storage[:, :, ::2] == 7.0).all()
    assert_same_bits({name: given}, {name: expected["d" + name[1:].upper()]})


@sampled(
    "tensor, layout",
    product([*PACKED, *OUTPUTS, "all"], ["blhd", "distinct", "offset"]),
    push=[("cu_seqlens_q", "distinct"), ("all", "distinct")],
)
def test_another_layout_of_packed_sequences_gives_the_same_bits(packed, tensor, layout):
    values, expected = packed
    assert_same_bits(run(place(values | unwritten(values), ((tensor, layout),)).tensors), expected)


@sampled("tensor, axis", AXES, push=[("q", 0), ("do", 3), ("mask", 1)])
def test_stride_0_along_any_axis_gives_the_bits_of_the_repeated_values(padded, tensor, axis):
    values, _ = padded
    if (
        tensor == "seqlens"
    ):  # the longer length in both batches: O and LSE have to be of all rows then
        values = {name: value for name, value in values.items() if name not in ("o", "lse")}
    repeated = values[tensor].narrow(axis, 0, 1).expand(values[tensor].shape)
    assert repeated.stride(axis) == 0
    expected = run(values | {tensor: repeated.contiguous()})
    assert_same_bits(run(values | {tensor: repeated}), expected)


@sampled("dim", [0, 1, 2, 3, None], push=[1, None])
def test_an_axis_of_size_1_of_bias_and_mask_gives_the_bits_of_the_repeated_values(padded, dim):
    values, _ = padded
    small = {
        name: values[name] if dim is None else values[name].narrow(dim, 0, 1)
        for name in ("bias", "mask")
    }
    small = {name: value[0, 0] if dim is None else value for name, value in small.items()}
    expected = run(
        values | {name: value.expand(SHAPES[name]).contiguous() for name, value in small.items()}
    )
    actual = run(values | small)
    assert actual["dBias"].shape == small["bias"].shape
    # Up to 136 numbers below 2 are added up in another order.
    torch.testing.assert_close(
        actual.pop("dBias"),
        expected.pop("dBias").sum_to_size(small["bias"].shape),
        atol=136 * 2.0**-22,
        rtol=0,
    )
    assert_same_bits(actual, expected)


def far_away(value, axis, file):
    """The values with one long stride over a file of holes, of which only the pages that are written exist.

    They begin 2^31 elements into it, so that an offset that wraps in 32 bits reads a wrong number and not another's
    memory.
    """
    strides = [stride * (place != axis) for place, stride in enumerate(value.stride())]
    strides[axis] = 2**31 // (value.shape[axis] - 1) + 1
    extent = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, strides, strict=True))
    assert extent > 2**31
    storage = torch.from_numpy(np.memmap(file, value.numpy().dtype, "w+", shape=(2**31 + extent,)))
    file.unlink()
    return storage.as_strided(value.shape, strides, 2**31).copy_(value)


@sampled(
    "tensor, axis",
    AXES + [(name, axis) for name in OUTPUTS for axis in range(4)],
    push=[("q", 2), ("k", 1), ("v", 0), ("do", 2), ("bias", 3), ("dq", 2), ("dk", 1)],
)
def test_offsets_beyond_2_to_the_31_elements_give_the_same_bits(padded, tensor, axis, tmp_path):
    values, expected = padded
    value = (values | unwritten(values))[tensor]
    assert_same_bits(run(values | {tensor: far_away(value, axis, tmp_path / "holes")}), expected)


@sampled(
    "tensor, axis",
    [("q", 2), ("k", 2), ("v", 2), ("do", 2), ("bias", 2), ("bias", 3), ("mask", 2), ("mask", 3)]
    + [(name, 0) for name in PACKED] + [(name, 2) for name in OUTPUTS],
    push=[("q", 2), ("bias", 3), ("cu_seqlens_q", 0), ("dk", 2)],
)  # fmt: skip
def test_packed_offsets_beyond_2_to_the_31_elements_give_the_same_bits(
    packed, tensor, axis, tmp_path
):
    values, expected = packed
    value = (values | unwritten(values))[tensor]
    assert_same_bits(run(values | {tensor: far_away(value, axis, tmp_path / "holes")}), expected)


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_nothing_that_is_returned_depends_on_what_the_allocator_left(kind, request, monkeypatch):
    values, _ = request.getfixturevalue(kind)
    options = {"window": (2, 0), "block_m": 16, "block_n": 16}  # some tiles are not visited
    expected = run(values, **options)
    filled = []

    def poisoned(original):
        def allocate(*args, **options):
            made = original(*args, **options)
            filled.append(made.shape)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return allocate

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    results = run(values, **options)
    monkeypatch.undo()
    batch = values["q"].shape[0]
    shapes = {"O": (4, 17, 5), "dQ": (4, 17, 8), "dK": (2, 17, 8), "dV": (2, 17, 5)}
    assert all(filled.count((batch, *shape)) == 1 for shape in shapes.values())
    assert filled.count((batch, 4, 17)) == 2  # LSE, delta
    assert_same_bits(results, expected)


def test_a_nan_in_the_padding_is_never_read(padded):
    values, expected = padded
    values = {name: value.clone() for name, value in values.items()}
    for name in ("q", "k", "v", "do", "o", "lse", "bias"):
        values[name][1, :, 11:] = torch.nan
    values["bias"][1, :, :, 11:] = torch.nan
    assert_same_bits(run(values), expected)


@sampled(
    "m, n, align",
    [
        (m, n, align)
        for m, n in [(72, 72), (56, 72), (72, 56)]
        for align in ("bottom-right", "top-left")
    ],
    push=[(72, 72, "top-left"), (56, 72, "bottom-right"), (72, 56, "top-left")],
)
def test_tiles_that_a_window_of_5_and_2_hides_altogether_are_not_visited(m, n, align):
    """NaN in key 40 reaches only the tiles of rows that see its tile, and NaN in row 40 only the keys likewise."""
    inputs = {
        name: torch.ones(1, 1, rows, 8) for name, rows in (("q", m), ("k", n), ("v", n), ("do", m))
    }
    options = {"window": (5, 2), "align": align, "softcap": None, "block_n": 16}
    clean, shift = run(inputs, **options), n - m if align == "bottom-right" else 0
    # The first and last key that each tile of rows sees, and the first and last row that sees each tile of keys.
    keys = {rows: (rows + shift - 5, min(rows + 15, m - 1) + shift + 2) for rows in range(0, m, 16)}
    rows = {keys: (keys - shift - 2, min(keys + 15, n - 1) - shift + 5) for keys in range(0, n, 16)}
    for poisoned, reached, names in (("k", keys, ("O", "LSE", "dQ")), ("q", rows, ("dK", "dV"))):
        bad = inputs[poisoned].clone()
        bad[:, :, 40] = torch.nan
        found = run(inputs | {poisoned: bad}, **options)
        for start, (first, last) in reached.items():
            tile = slice(start, start + 16)
            apart = last < 32 or first > 47
            same = [torch.equal(found[name][:, :, tile], clean[name][:, :, tile]) for name in names]
            assert all(same) or not apart, start
        assert sum(last < 32 or first > 47 for first, last in reached.values()) >= 1


def test_without_export_no_matrix_is_returned_or_allocated_and_the_rest_has_the_same_bits(
    padded, monkeypatch
):
    from gradprobe.kernels.triton.flash import flash_backward, flash_black_box

    values, expected = padded
    zeros, shapes = torch.Tensor.new_zeros, []
    monkeypatch.setattr(
        torch.Tensor, "new_zeros", lambda *args, **kw: shapes.append(args[1]) or zeros(*args, **kw)
    )
    names = ("delta", "dQ", "dK", "dV", "dBias", "dSink")
    assert_same_bits(flash_backward(**values, **OPTIONS), {name: expected[name] for name in names})
    given = {name: value for name, value in values.items() if name not in ("o", "lse")}
    assert_same_bits(
        flash_black_box(**given, **OPTIONS), {name: expected[name] for name in names[1:]}
    )
    assert (2, 4, 17, 17) not in shapes


def test_o_and_lse_are_computed_where_they_are_not_given_and_seqlens_may_be_of_64_bits(padded):
    from gradprobe.kernels.triton.flash import flash_backward, flash_intermediates

    values, expected = padded
    given = {name: value for name, value in values.items() if name not in ("o", "lse")}
    given["seqlens"] = given["seqlens"].long()
    assert_same_bits(flash_intermediates(**given, **OPTIONS), expected)
    for missing in ("o", "lse"):
        own = {name: value for name, value in values.items() if name != missing}
        results = flash_backward(**own, **OPTIONS, export=True)
        assert_same_bits(
            results, {name: expected[name] for name in expected if name not in ("O", "LSE")}
        )


def test_the_gradient_of_a_float64_bias_is_float64_and_that_of_sinks_float32(padded):
    values, _ = padded
    results = run(values | {"bias": values["bias"].double(), "sinks": values["sinks"].double()})
    assert (results["dBias"].dtype, results["dSink"].dtype) == (torch.float64, torch.float32)


ENDS = torch.tensor([0, 10, 17])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"q": torch.zeros(2, 17, 8)}, r"q must be \[B, H, M, D\], got shape \(2, 17, 8\)"),
        ({"v": torch.zeros(2, 17, 8)}, r"v must be \[B, Hkv, N, Dv\], got shape \(2, 17, 8\)"),
        (
            {"k": torch.zeros(2, 2, 17, 9)},
            r"k must be \[B, Hkv, N, D\] = \(2, 2, 17, 8\) beside .* \(2, 2, 17, 9\)",
        ),
        (
            {"v": torch.zeros(2, 2, 16, 5)},
            r"v must be \[B, Hkv, N, Dv\] = \(2, 2, 17, 5\) .* got \(2, 2, 16, 5\)",
        ),
        (
            {"v": torch.zeros(2, 2, 17, 5).half()},
            "v must have q's dtype, torch.float32, got torch.float16",
        ),
        (
            {"k": torch.zeros(2, 3, 17, 8), "v": torch.zeros(2, 3, 17, 5)},
            "heads of k and v must divide .* 3 and 4",
        ),
        (
            {"do": torch.zeros(2, 4, 17, 8)},
            r"do must be \[B, H, M, Dv\] = \(2, 4, 17, 5\) .* got \(2, 4, 17, 8\)",
        ),
        (
            {"o": torch.zeros(2, 4, 17, 8)},
            r"o must be \[B, H, M, Dv\] = \(2, 4, 17, 5\) .* got \(2, 4, 17, 8\)",
        ),
        (
            {"lse": torch.zeros(2, 4, 16)},
            r"lse must be \[B, H, M\] = \(2, 4, 17\) beside .* got \(2, 4, 16\)",
        ),
        (
            {"dq": torch.zeros(2, 4, 17, 9)},
            r"dq must match q, \(2, 4, 17, 8\) torch.float32, got \(2, 4, 17, 9\)",
        ),
        (
            {"dk": torch.zeros(2, 4, 17, 8)},
            r"dk must match k, \(2, 2, 17, 8\) torch.float32, got \(2, 4, 17, 8\)",
        ),
        (
            {"dv": torch.zeros(2, 2, 17, 5).half()},
            "dv must match v, .* torch.float32, got .* torch.float16",
        ),
        (
            {"dv": torch.zeros(2, 1, 17, 5).expand(2, 2, 17, 5)},
            r"dv must hold each element apart, got stride 0 among \(85, 0, 5, 1\) of \(2, 2, 17, 5\)",
        ),
        ({"align": "top-right"}, "align must be bottom-right or top-left, got 'top-right'"),
        (
            {"window": (3, -2)},
            r"window must be \(left, right\), each -1 \(no limit\) or more, got \(3, -2\)",
        ),
        ({"softcap": 0.0}, "softcap must be above 0, got 0.0"),
        (
            {"bias": torch.zeros(2, 3, 17, 17)},
            r"bias must broadcast to \[B, H, M, N\] = \(2, 4, 17, 17\), got .* 3,",
        ),
        (
            {"bias": torch.zeros(1, 2, 4, 17, 17)},
            r"bias must broadcast to .* got shape \(1, 2, 4, 17, 17\)",
        ),
        ({"mask": torch.ones(16, 17).bool()}, r"mask must broadcast to .* got shape \(16, 17\)"),
        (
            {"mask": torch.ones(17, 17)},
            "mask must be bool, True where a key is seen, got torch.float32",
        ),
        ({"alibi": torch.zeros(2)}, r"alibi must be \[H\] = \(4,\), got shape \(2,\)"),
        ({"sinks": torch.zeros(1, 4)}, r"sinks must be \[H\] = \(4,\), got shape \(1, 4\)"),
        (
            {"seqlens": torch.tensor([17])},
            r"seqlens must be \[B\] = \(2,\) integers, got shape \(1,\) torch.int64",
        ),
        (
            {"seqlens": torch.tensor([17.0, 3.0])},
            r"seqlens must be \[B\] = \(2,\) integers, got .* torch.float32",
        ),
        ({"seqlens": torch.tensor([18, 3])}, r"seqlens must lie in 0 to 17, got \[18, 3\]"),
        ({"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}, "seqlens and cu_seqlens exclude each other"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(padded, wrong, words):
    assert_refused(padded[0] | OPTIONS | wrong, words)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cu_seqlens_q": None}, "cu_seqlens_q and cu_seqlens_k must be given together"),
        (
            {"cu_seqlens_k": torch.tensor([0, 17])},
            r"cu_seqlens_k must be \[n \+ 1\] integers .* got \(2,\)",
        ),
        (
            {"cu_seqlens_q": ENDS.float()},
            r"cu_seqlens_q must be \[n \+ 1\] integers .* got \(3,\) torch.float32",
        ),
        (
            {"cu_seqlens_q": torch.tensor([0, 18, 17])},
            r"cu_seqlens_q must ascend from 0 to 17, got \[0, 18, 17\]",
        ),
        (
            {"cu_seqlens_k": torch.tensor([0, 5, 16])},
            r"cu_seqlens_k must ascend from 0 to 17, got \[0, 5, 16\]",
        ),
        (
            {"cu_seqlens_k": torch.tensor([1, 5, 17])},
            r"cu_seqlens_k must ascend from 0 to 17, got \[1, 5, 17\]",
        ),
    ],
)
def test_ends_of_packed_sequences_that_do_not_fit_are_refused(packed, wrong, words):
    assert_refused(packed[0] | OPTIONS | wrong, words)


def test_packed_sequences_of_a_batch_of_2_and_padding_of_17_rows_beside_9_keys_are_refused(padded):
    values = {name: value for name, value in padded[0].items() if name != "seqlens"} | OPTIONS
    ends = {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}
    assert_refused(values | ends, "packed sequences need a batch of 1, got 2")
    fewer = {"bias": None, "mask": None} | {name: values[name][:, :, :9] for name in ("k", "v")}
    assert_refused(
        padded[0] | OPTIONS | fewer, "seqlens needs as many keys as query rows, got 9 and 17"
    )


def assert_refused(given, words):
    from gradprobe.kernels.triton.flash import flash_backward, flash_forward

    with pytest.raises(ValueError, match=words):
        flash_backward(**given)
    if not words.startswith(("do", "o ", "lse", *OUTPUTS)):
        with pytest.raises(ValueError, match=words):
            flash_forward(
                **{name: value for name, value in given.items() if name not in ("do", "o", "lse")}
            )


@pytest.mark.parametrize("softcap", [0.5, 2.0, 50.0])
def test_a_capped_score_and_its_derivative_err_by_no_more_than_3_roundings(softcap):
    import triton
    import triton.language as tl

    from gradprobe.kernels.triton.flash import soften

    globals().update(tl=tl, soften=soften)

    @triton.jit
    def capped(x_ptr, y_ptr, slope_ptr, softcap):
        offs = tl.arange(0, 8192)
        y, slope = soften(tl.load(x_ptr + offs), softcap)
        tl.store(y_ptr + offs, y)
        tl.store(slope_ptr + offs, slope)

    x = torch.cat(
        [torch.logspace(-30, 4, 2048), softcap * torch.linspace(0, 8, 2047), torch.zeros(1)]
    )
    x = torch.cat([x, -x])
    y, slope = torch.empty_like(x), torch.empty_like(x)
    capped[(1,)](x, y, slope, softcap)
    expected = softcap * torch.tanh(x.double() / softcap)
    assert ((y - expected).abs() <= 3 * 2.0**-24 * expected.abs()).all()
    assert ((slope - (1 - (expected / softcap) ** 2)).abs() <= 3 * 2.0**-24).all()
    assert torch.equal(y[:4096], -y[4096:])
