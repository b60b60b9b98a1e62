import itertools

import pytest

from gradprobe.commands.suite.battery import Space
from gradprobe.commands.suite.case_factors import factors_of
from gradprobe.commands.suite.plan import TargetSignature
from gradprobe.inputs.draw import draw
from gradprobe.inputs.options import OPTIONS, parse
from gradprobe.model.case import Case
from gradprobe.model.resolution import resolve
from gradprobe.targets.bind import bind
from tests.emulated import target_of
from tests.sampling import sampled

LAZY = {"q", "k", "v", "do", "tau", "bias", "scale", "seqlens", "dots", "block_m", "block_n"}
FULL = {
    "q", "k", "v", "do", "causal", "scale", "align", "window", "softcap", "bias", "alibi", "mask", "sinks", "dropout",
    "keep", "seqlens", "cu_seqlens_q", "cu_seqlens_k", "block_m", "block_n", "dots",
}  # fmt: skip
LEAST = {"q", "k", "v"}

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


def taking(takes, family, required=("q", "k", "v")):
    def target(**_):
        return {}

    made, names = target_of(target, family), {name: name for name in takes}
    return type(made)("target", target, names, frozenset(required), family, made.source)


def factors(name, *, on_gpu=False, given=()):
    family, takes, required = SIGNATURES[name]
    takes = TargetSignature(family, frozenset(takes), frozenset(required))
    return factors_of(takes, given, on_gpu=on_gpu)


def rows_of(found):
    return Space(found.names, found.excluded).covering()


def case_of_row(found, row):
    return resolved(found, found.options(row))


def resolved(found, options):
    family, takes = found.takes.family, found.takes.names
    packs = "cu_seqlens_q" in takes and "seqlens" not in takes
    words = parse(options) | {"device": "cpu"}
    return resolve(words, family, takes_bias="bias" in takes, packs=packs)


PUSHED = [("all", False), ("packed", True)]


@sampled("name, on_gpu", itertools.product(SIGNATURES, (False, True)), push=PUSHED)
def test_every_row_is_a_case_that_the_target_takes_with_a_title_of_its_own(name, on_gpu):
    found = factors(name, on_gpu=on_gpu)
    rows = rows_of(found)
    family, takes, required = SIGNATURES[name]
    kinds = {option.name: option.kind for option in OPTIONS}
    for row in rows:
        words = found.options(row).items()
        assert all(isinstance(word, kinds[option]) for option, word in words)
        case = case_of_row(found, row)
        if not on_gpu:
            bind(taking(takes, family, required), case, draw(case))
        if case.softcap is not None:  # near the logits
            assert (case.softcap > 100) == (case.pattern in ("negative", "positive"))
        if case.window is not None and case.cu_seqlens_q is None:
            assert case.window[0] < max(case.seqlen_q, case.seqlen_k)
    assert len({found.title(row) for row in rows}) == len(rows)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_lengths_are_one_less_and_one_more_than_usual_tiles_and_multiples_of_each_alone(on_gpu):
    found, lengths = factors("all", on_gpu=on_gpu), []
    for level in found.each[2]:
        row = (*found.simplest[:2], level.name, *found.simplest[3:])
        lengths.append(case_of_row(found, row).seqlen_q)
    for tile in (32, 64, 128):
        assert {length % tile for length in lengths} >= {0, 1, tile - 1}
        assert any(length % tile == 0 and length % (2 * tile) for length in lengths)
    assert min(lengths) < 16


def test_what_a_signature_lacks_is_told_with_its_parameter():
    lacking = dict(factors("window").lacking)
    assert lacking["softcap"] == "takes no softcap"
    assert lacking["packed"] == "takes no cu_seqlens"
    assert lacking["tiles=16x32"] == "takes no block_m and no block_n"
    assert {"causal", "window", "window,causal", "scale=0.4"}.isdisjoint(lacking)
    assert factors("all").lacking == ()


def test_around_a_case_that_was_found_its_levels_are_the_simplest_and_what_is_given_stays():
    given = {"dtype": "bfloat16", "head_dim": 32, "causal": True, "shapes": "blhd"}
    found = factors("all").around(Case("softmax", seqlen_q=128, seqlen_k=128, **given))
    assert found.options(found.simplest).items() >= {**given, "seqlen": 128}.items()
    assert found.title(found.simplest) == "simplest"
    found = factors("least").around(Case("softmax", shapes="bld"))
    assert {case_of_row(found, row).heads for row in rows_of(found)} == {1}
    found = factors("least", given={"dtype"})
    assert not any("dtype" in found.options(row) for row in rows_of(found))


@pytest.mark.parametrize("name", ["all", "lazy", "packed"])
def test_what_no_pair_shows_is_a_case_that_the_target_takes(name):
    found = factors(name)
    family, takes, required = SIGNATURES[name]
    for level in found.special:
        case = resolved(found, found.options_of(level))
        if "repeat" not in level.options and "layout" not in level.options:
            bind(taking(takes, family, required), case, draw(case))
