"""The rounds of a battery of pairs, with targets that are told of as predicates over options."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gradprobe.commands.suite.batteries import PairRounds
from gradprobe.commands.suite.case_factors import factors_of
from gradprobe.commands.suite.takes import TargetSignature
from gradprobe.model.case import Case

TAKES = TargetSignature(
    "softmax", frozenset({"q", "k", "v", "causal", "window", "scale"}), frozenset()
)


@dataclass
class Ended:
    """What came of all rounds."""

    combining: PairRounds
    rounds: list[list[str]] = field(default_factory=list)
    """The titles of each."""
    options: dict = field(default_factory=dict)

    @property
    def coverage(self):
        return self.combining.coverage


def ended(verdict=lambda options: "match", case=None, takes=TAKES):
    """All rounds of a target of which `verdict` says match, mismatch, refused or warning, by its options."""
    combining = PairRounds(factors_of(takes, {}, on_gpu=False))
    found, items = Ended(combining), next(combining.rounds)
    while True:
        asked = [item for item in items if not item.why_not]
        found.rounds.append([item.title for item in asked])
        found.options |= {item.title: item.options for item in asked}
        ends = {item.name: came(verdict(item.options), case) for item in asked}
        try:
            items = combining.rounds.send(ends)
        except StopIteration:
            return found


def came(word, case):
    verdict = {"refused": "error", "warning": "error"}.get(word, word)
    case = case or Case("softmax")
    report = SimpleNamespace(verdict=verdict, is_warning=word == "warning", case=case)
    return SimpleNamespace(verdict=verdict, is_refused=word == "refused", report=report)


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
    assert (told.strength, told.missing, told.wrong_alone) == (2, 0, ())
    assert told.held == len(list(found.combining._space.pairs()))


@pytest.mark.parametrize("word", ["refused", "warning"])
def test_a_level_that_is_refused_stands_in_no_later_case_and_in_no_count(word):
    found = ended(lambda options: word if options.get("dtype") == "bfloat16" else "match")
    assert len(found.rounds) == 3
    assert not [title for title in found.rounds[2] if "bfloat16" in title]
    assert (found.coverage.missing, found.coverage.wrong_alone) == (0, ())
    assert found.coverage.held < ended().coverage.held


def test_a_level_that_is_wrong_alone_hides_nothing_in_later_cases_and_alone_a_wrong_plain_case_is():
    found = ended(lambda options: "mismatch" if options.get("head_dim") == 72 else "match")
    assert not [title for title in found.rounds[2] if "D=72" in title]
    assert found.coverage.wrong_alone == ("D=72",)
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
    assert sorted(found.coverage.wrong_together) == ["float16 do=blhd", "negative D=72"]
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
