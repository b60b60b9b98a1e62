"""The rounds of a battery of pairs, with targets that are told of as predicates over options."""

import pytest

from gradprobe.model.case import Case
from tests.commands.suite.plans import ended


def test_of_a_right_target_each_level_stands_alone_first_and_then_every_pair():
    found = ended()
    plain, alone, array = found.rounds
    assert plain == ["as it is"]
    words = "simplest,bfloat16,causal,L=129,M=96 N=131,negative,do=blhd,grouped,D=72"
    # And what no combination shows.
    further = {"four calls, memory full of NaN or 7.0", "strides beyond 2^31"}
    assert {*words.split(",")} | further <= {*alone}
    assert 20 <= len(array) <= 60
    told = found.coverage
    assert (told.strength, told.missing) == (2, 0)
    assert told.held == len(list(found.battery.space.pairs()))


def test_a_quick_one_ends_with_each_level_alone_and_a_few_pairs():
    plain, alone = ended(is_quick=True).rounds
    assert plain == ["as it is"]
    assert {"causal", "causal M=96 N=131", "window L=129", "logits to 100"} <= {*alone}
    assert len(alone) == len(ended().rounds[1]) + 6
    assert ended(is_quick=True).coverage is None


@pytest.mark.parametrize("word", ["refused", "warning"])
def test_a_level_that_is_refused_stands_in_no_later_case_and_in_no_count(word):
    found = ended(lambda options: word if options.get("dtype") == "bfloat16" else "match")
    assert len(found.rounds) == 3
    assert not [title for title in found.rounds[2] if "bfloat16" in title]
    assert found.coverage.missing == 0
    assert found.coverage.held < ended().coverage.held


def test_a_level_that_is_wrong_alone_hides_nothing_in_later_cases_and_alone_a_wrong_plain_case_is():
    found = ended(lambda options: "mismatch" if options.get("head_dim") == 72 else "match")
    assert not [title for title in found.rounds[2] if "D=72" in title]
    found = ended(lambda options: "mismatch")
    assert found.rounds == [["as it is"]]
    assert (found.coverage.properties, found.coverage.held) == (0, 0)


def test_a_pair_that_is_refused_is_found_and_all_else_stands_in_a_case_that_is_taken():
    is_both = lambda one: bool(one.get("causal")) and one.get("dtype") == "float16"  # noqa: E731
    found = ended(lambda options: "refused" if is_both(options) else "match")
    # The simplest case of the pair shows that it is refused itself.
    assert "float16 causal" in found.rounds[3]
    # Float16 with causal, and with causal and a window.
    assert (found.coverage.missing, ended().coverage.held - found.coverage.held) == (0, 2)
    right = [options for options in found.options.values() if not is_both(options)]
    dims = {one.get("head_dim") for one in right if one.get("dtype") == "float16"}
    assert dims >= {72, 128}


def test_pairs_that_are_wrong_are_found_in_their_simplest_cases_and_hide_no_other():
    def verdict(options):
        is_first = options.get("pattern") == "negative" and options.get("head_dim") == 72
        is_second = options.get("dtype") == "float16" and "do=blhd" in options["layout"]
        return "mismatch" if is_first or is_second else "match"

    found = ended(verdict)
    assert {"float16 do=blhd", "negative D=72"} <= {*found.rounds[3]}
    assert found.coverage.missing == 0
    right = [one for one in found.options.values() if verdict(one) == "match"]
    assert {(one.get("dtype"), one["head_dim"]) for one in right if "head_dim" in one} >= {
        (dtype, dim) for dtype in ("float32", "float16", "bfloat16") for dim in (16, 64, 128, 72)
    }


def test_what_was_found_by_trying_goes_with_every_case_of_its_level():
    case = Case("softmax", dtype="float16", head_dim=64, seqlen_q=128, seqlen_k=128, as_cuda=True)
    found = ended(case=case)
    expected = {"dtype": "float16", "head_dim": 64, "seqlen": 128}
    assert found.options["simplest"].items() >= expected.items()
    assert all(one["as_cuda"] for title, one in found.options.items() if title != "as it is")
