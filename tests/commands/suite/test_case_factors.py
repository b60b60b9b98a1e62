"""The cases of a battery of combinations: what they combine, for targets of several signatures."""

import itertools

import pytest

from gradprobe.commands.suite.case_factors import factors_of, set_by_factors
from gradprobe.commands.suite.covering import covering
from gradprobe.commands.suite.takes import TargetSignature
from gradprobe.inputs.draw import draw
from gradprobe.inputs.options import OPTIONS, parse
from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.targets.bind import bind
from tests.commands.suite.test_battery import FULL, LAZY, LEAST, taking
from tests.sampling import sampled

PACKS_ALIKE = (FULL - {"cu_seqlens_q", "cu_seqlens_k"}) | {"cu_seqlens"}
PACKED = {"cu_seqlens_q", "cu_seqlens_k"}
SIGNATURES = {
    "all": ("softmax", FULL, ()),
    "least": ("softmax", LEAST, ()),
    "lazy": ("lazy", LAZY, ()),
    "one packing": ("softmax", PACKS_ALIKE, ()),
    "window": ("softmax", LEAST | {"causal", "scale", "window"}, ()),
    "packed": ("softmax", LEAST | PACKED | {"causal"}, tuple(PACKED)),
}


def factors(name, *, on_gpu=False, given=()):
    family, takes, required = SIGNATURES[name]
    takes = TargetSignature(family, frozenset(takes), frozenset(required))
    return factors_of(takes, dict(given), on_gpu=on_gpu)


def excluded(one, other, two_lengths):
    """Whether two levels, by their names, stand together in no case. Told here once more, in other words."""
    both, unequal = {one, other}, {"M<N", "M>N", "N<M", "N>M", "M=1"}
    seen_from_a_corner = {"causal", "window", "window,causal"}
    if both & unequal and (both & {"padded"} or (both & {"packed"} and not two_lengths)):
        return True
    masks = {"no-mask", "mask", "dead-rows", "padded", "mask=padding", "packed"}
    return "top-left" in both and bool(both & (masks - seen_from_a_corner) or "M=N" in both)


def allowed(found, two_lengths):
    """Every two levels, by their names, that are not excluded."""
    named = [[(factor.name, level.name) for level in factor.levels] for factor in found.each]
    for each in itertools.combinations(named, 2):
        for levels in itertools.product(*each):
            if not excluded(*(name for _, name in levels), two_lengths):
                yield levels


def named(found, row):
    return [
        (factor.name, factor.levels[level].name)
        for factor, level in zip(found.each, row, strict=True)
    ]


def case_of(found, row):
    family, takes = found.takes.family, found.takes.names
    packs = "cu_seqlens_q" in takes and "seqlens" not in takes
    words = parse(found.options(row)) | {"device": "cpu"}
    return resolve(words, family, takes_bias="bias" in takes, packs=packs)


@sampled("name", list(SIGNATURES), push=["lazy", "one packing"])
def test_every_pair_that_is_allowed_stands_in_a_case(name):
    found = factors(name)
    rows = [named(found, row) for row in covering(found.space)]
    held = {one for row in rows for one in itertools.combinations(row, 2)}
    assert held == set(allowed(found, name != "one packing"))


@sampled(
    "name, on_gpu",
    itertools.product(SIGNATURES, (False, True)),
    push=[("all", False), ("packed", True)],
)
def test_every_row_is_a_case_that_the_target_takes_with_a_title_of_its_own(name, on_gpu):
    found = factors(name, on_gpu=on_gpu)
    rows = covering(found.space)
    family, takes, required = SIGNATURES[name]
    kinds = {option.name: option.kind for option in OPTIONS}
    for row in rows:
        assert all(isinstance(word, kinds[option]) for option, word in found.options(row).items())
        case = case_of(found, row)
        if not on_gpu:
            bind(taking(takes, family, required), case, draw(case))
        if case.softcap is not None:  # near the logits
            assert (case.softcap > 100) == (case.pattern in ("negative", "positive"))
        if case.window is not None and case.cu_seqlens_q is None:
            assert case.window[0] < max(case.seqlen_q, case.seqlen_k)
    assert len({found.title(row) for row in rows}) == len(rows)


def levels_of(found, name):
    """The cases of one property's levels, the others at their first."""
    at = [factor.name for factor in found.each].index(name)
    rest = (0,) * (len(found.each) - at - 1)
    return [case_of(found, (0,) * at + (level, *rest)) for level in range(6)]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_lengths_are_one_less_and_one_more_than_tiles_of_32_64_and_128_and_multiples_of_each_alone(
    on_gpu,
):
    lengths = [case.seqlen_q for case in levels_of(factors("all", on_gpu=on_gpu), "length")]
    for tile in (32, 64, 128):
        assert {length % tile for length in lengths} >= {0, 1, tile - 1}
        assert any(length % tile == 0 and length % (2 * tile) for length in lengths)
    assert min(lengths) < 16


def test_of_lengths_that_differ_either_side_has_the_class_and_is_the_longer_one():
    cases = levels_of(factors("least"), "M and N")
    sizes = [(case.seqlen_q, case.seqlen_k) for case in cases]
    assert sizes == [(96, 96), (96, 131), (96, 61), (131, 96), (61, 96), (1, 96)]


def test_what_a_signature_lacks_is_told_with_its_parameter():
    lacking = dict(factors("window").lacking)
    assert lacking["softcap"] == "takes no softcap"
    assert lacking["packed"] == "takes no cu_seqlens"
    assert lacking["tiles=16x32"] == "takes no block_m and no block_n"
    assert {"causal", "window", "window,causal", "scale=0.4"}.isdisjoint(lacking)
    assert factors("all").lacking == ()


def test_around_a_case_that_was_found_its_levels_are_the_simplest_and_what_is_given_stays():
    lengths = {"seqlen_q": 128, "seqlen_k": 128}
    case = Case("softmax", dtype="bfloat16", head_dim=32, causal=True, shapes="blhd", **lengths)
    found = factors("all").around(case)
    simplest = (0,) * len(found.each)
    expected = {
        "dtype": "bfloat16",
        "head_dim": 32,
        "seqlen": 128,
        "causal": True,
        "shapes": "blhd",
    }
    assert found.options(simplest).items() >= expected.items()
    assert found.title(simplest) == "simplest"
    found = factors("least").around(Case("softmax", shapes="bld"))
    assert {case_of(found, row).heads for row in covering(found.space)} == {1}
    found = factors("least", given={"dtype": "float16"})
    assert not any("dtype" in found.options(row) for row in covering(found.space))


def test_an_option_that_a_property_sets_says_which():
    assert set_by_factors("window") == "the property mask"
    assert set_by_factors("pattern") == "the property logits"
    assert set_by_factors("seqlen") == "every item"
    assert set_by_factors("repeat") == "item 11 (four calls, memory full of NaN or 7.0)"
    assert set_by_factors("dtype") == set_by_factors("seed") == set_by_factors("recover") == ""
