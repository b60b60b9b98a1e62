"""P, dP and dS judged in one pass by a compiled kernel: element by element, and in a whole sieve."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics import fused, least, sieve, walks
from gradprobe.numerics.compare import attention_of
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.reference import Tile, evaluate
from gradprobe.reference.attention import MATRICES
from gradprobe.runtime.trace import Trace
from tests.emulated import Arithmetic, case_of, ran
from tests.numerics.test_fused import hold_alike

pytestmark = pytest.mark.gpu
PRECISION = precision_of("bfloat16", "ieee")
DTYPES = [torch.float, torch.half, torch.bfloat16]


def there(case):
    return {name: value.to("cuda") for name, value in draw(case).items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("options", [{"causal": True}, {"mask": "dead-rows"}, {"softcap": 1.5, "window": (40, 3)}])
def test_each_element_and_row_is_judged_as_by_the_plain_way(name, dtype, options):
    assert fused.works(torch.device("cuda", 0))
    case = case_of("softmax", batch=1, heads=2, seqlen=1100, head_dim=64, dtype="bfloat16", **options)
    x = attention_of(case, there(case))
    tile = Tile(0, slice(0, 2), slice(100, 300))
    values = evaluate(x, tile)
    rounding = torch.finfo(dtype).eps / 2
    with least.tf32():
        bound = least.Least(x, tile, values, PRECISION).of_matrix(name, values[name], rounding)
        terms = least.Least(x, tile, values, PRECISION).terms(name, rounding)
    came = (values[name] + 2 * bound * torch.randn_like(values[name])).to(dtype)
    hold_alike(fused.rows_of(name, came, terms), came, terms.expected, bound)

    def elements(of):
        return of.expand(bound.shape).reshape(1, -1, 1)

    of_row = elements(terms.of_row[..., None])[..., 0].contiguous()
    alone = least.Terms(
        *(elements(of) for of in (terms.expected, terms.p, terms.valid, terms.dot)), of_row, terms.weight,
        terms.relative, terms.floor,
    )  # fmt: skip
    of_elements = elements(came), elements(terms.expected), elements(bound)
    hold_alike(fused.rows_of(name, of_elements[0], alone), *of_elements)


@pytest.mark.parametrize("options", [{}, {"kv_heads": 1}, {"seqlen_q": 700, "seqlen_k": 1333}])
def test_a_sieve_by_it_is_that_by_the_plain_way(options, monkeypatch):
    monkeypatch.setattr(sieve, "LEAST_SCORES", 0)
    lengths = {} if "seqlen_q" in options else {"seqlen": 1100}
    case = case_of("softmax", batch=2, heads=4, head_dim=64, dtype="bfloat16", causal=True, **lengths, **options)
    values = draw(case)
    came = ran(case, Arithmetic(tensor_core=True, delta_from_o=True), values=values)
    on_gpu = {name: value.to("cuda") for name, value in values.items()}
    trace = Trace({name: value.to("cuda") for name, value in came.values.items()}, came.sources)
    found = []
    for scores in (1 << 60, 0):
        monkeypatch.setattr(walks, "FUSED_SCORES", scores)
        found.append(sieve.Sieve().sift(case, on_gpu, trace, PRECISION))
    plain, in_one_pass = found
    for name in trace.values:
        for of in ("ratios", "rows", "squares", "largest"):
            torch.testing.assert_close(getattr(in_one_pass, of)[name], getattr(plain, of)[name], rtol=1e-4, atol=0.0)
    assert [(one.key, one.of, one.holds) for one in plain.invariants] == [
        (one.key, one.of, one.holds) for one in in_one_pass.invariants
    ]
    for name in MATRICES:
        for spoilt in (0.5, float("nan"), float("inf")):
            wrong = trace.values[name].clone()
            wrong[1, 2, 400, 30] += spoilt
            assert (
                sieve.Sieve().sift(case, on_gpu, Trace({**trace.values, name: wrong}, trace.sources), PRECISION) is None
            )
