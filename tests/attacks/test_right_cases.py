"""Nothing right is accused: whole checks of every built-in target that runs here, on drawn cases and layouts."""

from hypothesis import given, reject

from gradprobe.inputs.history import CheckRequest
from gradprobe.model.failures import Refusal, UsageFailure
from gradprobe.pipeline.run_check import run_check
from gradprobe.targets.builtin import BUILTINS
from gradprobe.targets.find import missing
from tests.sampling import DRAWS, tries

TARGETS = [name for name, row in BUILTINS.items() if not missing(row)]
DRAWN_DTYPES = ("float32", "float32", "float16", "bfloat16")
PATTERNS = ("normal", "wide", "small", "large", "negative", "offset", "lowrank")
RUNS = (
    "contiguous", "distinct", "do=expanded", "blhd", "packed", "offset", "do=blhd",
    "strided-last",
)  # fmt: skip


def drawn(draws):
    pick, whole = draws.choice, draws.randint
    target = pick(TARGETS)
    options = {
        "batch": whole(1, 2), "heads": pick([1, 2]), "seqlen": whole(1, 40), "head_dim": pick([3, 8, 16, 17]),
        "dtype": pick(DRAWN_DTYPES), "seed": whole(0, 2**31), "recover": pick([True, False]),
        "pattern": pick(PATTERNS), "runs": [pick(RUNS)],
    }  # fmt: skip
    if target.startswith("lazy"):
        return target, options
    options |= {"causal": pick([True, False])}
    grouped = {"heads": 4, "kv_heads": 2}
    options |= pick([{}, grouped, {"scale": 0.05}, {"window": "7,3"}, {"softcap": 5.0}])
    lengths = [str(whole(0, options["seqlen"])) for _ in range(options["batch"])]
    return target, options | pick([{}, {}, {"seqlens": ",".join(lengths)}])


@tries(3, night=2000)
@given(DRAWS)
def test_a_right_target_matches_or_refuses_the_case_in_words(draws):
    target, options = drawn(draws)
    try:
        report = run_check(CheckRequest(target, None, None, options), "")
    except (UsageFailure, Refusal):
        reject()
    assert report.verdict == "match", (target, options, report.failing)
