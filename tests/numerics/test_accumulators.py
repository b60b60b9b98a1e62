"""Sums kept in 16 bits: proven by their bits and told in words; never an excuse for anything else."""

import pytest
import torch

from gradprobe.inputs.draw import draw
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.sums import Accumulation, best_model, coarse_sums
from gradprobe.runtime.run import read_trace
from tests.emulated import case_of, softmax, target_of
from tests.probe import probe


def kept(actual_sums, tile, *, backwards=False, dtype=torch.bfloat16):
    """[B, H, n_tiles, N, D] shares of each tile -> their sum, rounded after each."""
    total = torch.zeros_like(actual_sums[:, :, 0])
    for part in range(actual_sums.shape[2])[:: -1 if backwards else 1]:
        total = (total + actual_sums[:, :, part]).to(dtype).float()
    return total


def coarse(q, k, v, do, *, scale=None, tile=32, backwards=False, causal=False, fault=None):
    """Softmax attention whose dK and dV are kept in the inputs' dtype, rounded after every `tile` query rows."""
    exact = softmax(q, k, v, do, scale=scale, causal=causal)
    p, ds = (exact[name].to(q.dtype).float() for name in ("P", "dS"))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    parts = range(0, q.shape[2], tile)

    def summed(matrix, b):
        shares = [matrix[:, :, m : m + tile].mT @ b[:, :, m : m + tile].float() for m in parts]
        return kept(torch.stack(shares, 2), tile, backwards=backwards, dtype=q.dtype)

    found = {name: exact[name] for name in ("O", "dQ")}
    found |= {"dK": summed(ds, q) * scale, "dV": summed(p, do)}
    results = {name: value.to(q.dtype) for name, value in found.items()}
    return fault(results) if fault else results


def judged(case, results):
    values = draw(case)
    x, trace = attention_of(case, values), read_trace(results, case, "emulated")
    comparison = compare(case, x, trace, precision_of(case.dtype, "ieee"))
    return comparison, *coarse_sums(case, x, trace, comparison)


CASE = {"seqlen": 480, "heads": 2, "batch": 1, "head_dim": 16, "dtype": "bfloat16"}


def test_dk_and_dv_kept_in_bfloat16_are_proven_with_the_tile_and_the_order():
    tile, backwards = 16, True
    case = case_of("softmax", **CASE)
    results = coarse(**draw(case), tile=tile, backwards=backwards)
    comparison, lenient, coarser = judged(case, results)
    wrong = [name for name, finding in comparison.findings.items() if finding.mismatched]
    assert wrong
    assert [one.name for one in coarser] == ["dK", "dV"]
    assert lenient.matches
    for one in coarser:
        assert (one.dtype, one.by.tile, one.by.backwards) == ("bfloat16", tile, backwards)
        words = f"accumulates {one.name} in bfloat16, rounding every {tile} query rows"
        assert words in one.sentence


FAR = CASE | {"dtype": "float16", "pattern": "negative", "seqlen": 160}


@pytest.mark.parametrize("is_kept", [True, False])
def test_sums_are_proven_where_float32_rounds_scores_so_that_p_rounds_otherwise(is_kept):
    """Scores near -120 of 256 dims turn a fifth of the bits of dV, whatever keeps its sum."""
    case = case_of("softmax", **FAR | {"head_dim": 256})
    values = draw(case)
    results = coarse(**values, tile=64)
    if not is_kept:
        results["dV"] = softmax(**values)["dV"].half()
    x, trace = attention_of(case, values), read_trace(results, case, "emulated")
    comparison = compare(case, x, trace, precision_of(case.dtype, "ieee"))
    model = best_model(Accumulation(case, x, trace, "dV"), comparison)
    assert (model.tile if model else None) == (64 if is_kept else None)


@pytest.mark.nightly
def test_one_head_of_six_off_by_a_rounding_is_not_excused_by_the_coarse_sums_of_the_others():
    case = case_of("softmax", **CASE | {"heads": 6, "seqlen": 640})

    def fault(results):
        results["dK"][:, 1] *= 0.99
        return results

    _, lenient, coarser = judged(case, coarse(**draw(case), tile=16, fault=fault))
    assert [one.name for one in coarser] == ["dK", "dV"]
    assert (lenient.findings["dK"].ratio[0] > 1).nonzero().flatten().tolist() == [1]


def test_noise_of_the_size_of_coarse_sums_is_not_taken_for_them():
    case = case_of("softmax", **CASE)
    results = coarse(**draw(case), tile=16)
    exact = softmax(**draw(case))["dK"].float()
    error = (results["dK"].float() - exact).flatten()
    order = torch.randperm(error.numel(), generator=torch.Generator().manual_seed(0))
    mixed = error[order].view_as(exact)
    comparison, lenient, _ = judged(
        case, results | {"dK": (exact + mixed).to(results["dK"].dtype)}
    )
    assert comparison.findings["dK"].mismatched
    assert lenient.findings["dK"].mismatched


def test_a_report_tells_coarse_sums_and_a_strict_one_fails_for_them():
    options = {**CASE, "layouts": (("q", "contiguous"),), "recover": False}
    report = probe(case_of("softmax", **options), target_of(coarse), why=False)
    assert report.verdict == "match"
    assert [one.name for one in report.measured[0][1].coarser] == ["dK", "dV"]
    strict = probe(case_of("softmax", **options, strict=True), target_of(coarse), why=False)
    assert strict.verdict == "mismatch"
    assert [one.name for one in strict.measured[0][1].coarser] == ["dK", "dV"]


def flash(q, k, v, *, causal=False, scale=None):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=True
        )


@pytest.mark.nightly
@pytest.mark.parametrize("pattern", ["negative", "normal"])
def test_pytorchs_flash_attention_matches_where_heads_of_a_group_share_a_sum_in_float16(pattern):
    """dV of normal values reaches 1.06 times its budget: each of two heads rounds the sum six times."""
    for seed in range(6):
        case = case_of(
            "softmax", batch=1, seqlen=190, heads=2, kv_heads=1, head_dim=128, dtype="float16", pattern=pattern,
            seed=seed, layouts=(("q", "contiguous"),), recover=False,
        )  # fmt: skip
        assert probe(case, target_of(flash)).verdict == "match"
