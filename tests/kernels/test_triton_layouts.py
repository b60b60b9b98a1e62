"""The Triton kernels in any memory layout, bit for bit; what they read and leave alone, and what they refuse."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gradprobe.frontends.triton import interpreter, interpreting
from gradprobe.inputs.tensor_layouts import place
from gradprobe.kernels.triton.flash import flash_backward, flash_forward
from gradprobe.kernels.triton.lazy import lazy_backward, lazy_forward

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter adds in one order, atomics do not"
)
if interpreting():
    interpreter.mend_interpreter()

OUTPUTS = ("dq", "dk", "dv")
SHAPES = {
    "q": (2, 4, 17, 8), "k": (2, 2, 17, 8), "v": (2, 2, 17, 5), "do": (2, 4, 17, 5), "bias": (2, 4, 17, 17),
    "mask": (2, 4, 17, 17), "alibi": (4,), "sinks": (4,),
}  # fmt: skip
OF_LAZY = dict.fromkeys(("q", "k", "v", "do"), (2, 2, 17, 8)) | {"bias": (2, 9), "tau": (2,)}


def drawn(shapes):
    values = {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        for seed, (name, shape) in enumerate(shapes.items())
    }
    return values | ({"mask": values["mask"] > -1} if "mask" in values else {})


@dataclass
class Kernel:
    """A kernel, its inputs, O and LSE among them, and the results of the contiguous run."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., dict[str, Tensor]]
    options: dict
    values: dict[str, Tensor]

    def __post_init__(self):
        self.expected = self.run(self.values)
        own = ("lse",) if self.is_lazy else ("o", "lse")
        self.values |= {name: self.expected[name.upper()].clone() for name in own}

    @property
    def is_lazy(self):
        return "tau" in self.values

    def run(self, values, export=True, **options):
        """Forward and backward on tensors as they lie; a given o, lse, dq, dk or dv is the backward's alone."""
        options = self.options | options
        of_backward = {
            name: values[name] for name in ("do", "o", "lse", *OUTPUTS) if name in values
        }
        given = {name: value for name, value in values.items() if name not in of_backward}
        o, lse = self.forward(**given, **options)
        made = {"lse": lse} if self.is_lazy else {"o": o, "lse": lse}
        results = self.backward(**given, **made | of_backward, export=export, **options)
        for name, result in (("dq", "dQ"), ("dk", "dK"), ("dv", "dV")):
            assert results[result] is values.get(name, results[result])
        return {"O": o, "LSE": lse} | results

    def unwritten(self):
        """Tensors for dQ, dK and dV to be written into: NaN shows what was not."""
        return {
            f"d{name}": torch.full_like(self.values[name], torch.nan) for name in ("q", "k", "v")
        }


@pytest.fixture(scope="module", params=["flash", "packed", "lazy"])
def kernel(request):
    return made(request.param)


def made(name):
    if name == "lazy":
        lengths = torch.tensor([17, 11], dtype=torch.int32)
        values = drawn(OF_LAZY) | {"seqlens": lengths}
        return Kernel(lazy_forward, lazy_backward, {"block_m": 16, "block_n": 32}, values)
    options = {"softcap": 2.0, "window": (9, 2), "block_m": 16, "block_n": 32}
    values = drawn(SHAPES) | {"seqlens": torch.tensor([17, 11], dtype=torch.int32)}
    if name == "packed":
        values = {name: value[:1] for name, value in values.items() if value.dim() > 2}
        ends = {"cu_seqlens_q": (0, 10, 17), "cu_seqlens_k": (0, 5, 17)}
        values |= {name: torch.tensor(each, dtype=torch.int32) for name, each in ends.items()}
    return Kernel(flash_forward, flash_backward, options, values)


def assert_same_bits(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        integers = {2: torch.int16, 4: torch.int32}[value.element_size()]
        one, other = (of.contiguous().view(integers) for of in (actual[name], value))
        assert torch.equal(one, other), name


@pytest.mark.parametrize("layout", ["distinct", "offset"])
def test_another_layout_of_all_tensors_gives_the_same_bits(kernel, layout):
    placed = place(kernel.values | kernel.unwritten(), (("all", layout),))
    assert_same_bits(kernel.run(placed.tensors), kernel.expected)


def test_a_nan_in_the_padding_is_never_read():
    kernel = made("flash")
    values = {name: value.clone() for name, value in kernel.values.items()}
    for name in ("q", "k", "v", "do", "o", "lse", "bias"):
        values[name][1, :, 11:] = torch.nan
    values["bias"][1, :, :, 11:] = torch.nan
    assert_same_bits(kernel.run(values), kernel.expected)


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


ENDS = torch.tensor([0, 10, 17])
REFUSED = {
    "flash": [
        ({"q": zeros(2, 17, 8)}, r"q must be \[B, H, M, D\], got shape \(2, 17, 8\)"),
        ({"k": zeros(2, 2, 17, 9)}, r"k must be \[B, Hkv, N, D\] = \(2, 2, 17, 8\) beside .* \(2, 2, 17, 9\)"),
        ({"v": zeros(2, 2, 17, 5).half()}, "v must have q's dtype, torch.float32, got torch.float16"),
        ({"k": zeros(2, 3, 17, 8), "v": zeros(2, 3, 17, 5)}, "heads of k and v must divide .* 3 and 4"),
        ({"lse": zeros(2, 4, 16)}, r"lse must be \[B, H, M\] = \(2, 4, 17\) beside .* got \(2, 4, 16\)"),
        ({"dv": zeros(2, 1, 17, 5).expand(2, 2, 17, 5)}, r"dv must hold each element apart, got stride 0 among"),
        ({"window": (3, -2)}, r"window must be \(left, right\), each -1 \(no limit\) or more, got \(3, -2\)"),
        ({"bias": zeros(2, 3, 17, 17)}, r"bias must broadcast to \[B, H, M, N\] = \(2, 4, 17, 17\), got .* 3,"),
        ({"mask": zeros(17, 17)}, "mask must be bool, True where a key is seen, got torch.float32"),
        ({"seqlens": torch.tensor([18, 3])}, r"seqlens must lie in 0 to 17, got \[18, 3\]"),
        ({"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}, "seqlens and cu_seqlens exclude each other"),
        (
            {"bias": None, "mask": None, "k": zeros(2, 2, 9, 8), "v": zeros(2, 2, 9, 5)},
            "seqlens needs as many keys as query rows, got 9 and 17",
        ),
    ],
    "packed": [
        ({"cu_seqlens_q": None}, "cu_seqlens_q and cu_seqlens_k must be given together"),
        ({"cu_seqlens_k": torch.tensor([0, 5, 16])}, r"cu_seqlens_k must ascend from 0 to 17, got \[0, 5, 16\]"),
    ],
    "lazy": [
        ({"tau": zeros(3)}, r"tau must be \[H\] = \(2,\), got shape \(3,\)"),
        ({"dv": zeros(2, 2, 1, 8).expand(2, 2, 17, 8)}, r"dv must hold each .* stride 0 among \(16, 8, 0, 1\)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_together_is_refused_by_name(name):
    kernel = made(name)
    for wrong, words in REFUSED[name]:
        given = kernel.values | kernel.options | wrong
        with pytest.raises(ValueError, match=words):
            kernel.backward(**given)
        if not wrong.keys() & {"do", "lse", *OUTPUTS}:
            own = {
                name: value for name, value in given.items() if name not in ("do", "o", "lse")
            }
            with pytest.raises(ValueError, match=words):
                kernel.forward(**own)
