"""Small inputs of which the tool once said something false, or nothing: what must come of each, and what must not."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SMALL = "--batch 1 --heads 2 --seqlen 20 --head-dim 16"
_TWO = SMALL.replace("--batch 1", "--batch 2")
_OF_16_BITS = "--batch 1 --heads 2 --seqlen 150 --head-dim 32 --causal"


@dataclass(frozen=True)
class Record:
    """One check.

    Args:
        code: what it ends with.
        case: options behind its words.
        cause: the fault of the first diagnosis, and `at`, a part of the line that it tells first.
        first: the first mismatched intermediate.
        says: parts, between bars, of what is printed or in the report as JSON; `unsaid`: what is in neither.
        layouts: verdicts of runs.
        night: whether it is checked at night alone.
    """

    words: str
    code: int = 0
    case: str = SMALL
    cause: str = ""
    at: str = ""
    first: str = ""
    says: str = ""
    unsaid: str = ""
    layouts: Mapping[str, str] = field(default_factory=dict)
    night: bool = False


def _at_night(records: Iterable[Record], push: int) -> list[Record]:
    """Of similar ones the first on every push."""
    return [Record(**{**vars(one), "night": at >= push}) for at, one in enumerate(records)]


# Right kernels of other arithmetics than the contract's, and what is exported in other conventions.
_CONVENTIONS = {
    "negative_delta": "delta = -delta", "scaled_ds": "dS = scale * dS", "transposed_p": "P = P^T",
    "scaled_delta": "delta = scale * delta", "base_2": "LSE = LSE * log2(e)",
}  # fmt: skip
_EXPORTED = "exported in another convention: {}; what is made of it is right"
_ARITHMETIC = [
    Record("products.py:tf32 --dots tf32", says="dots are judged as tf32, as --dots says"),
    Record("torch_16.py:all_in_16_bits --dtype float16 --dots tf32",
        says="--dots tf32 is for float32: products of float16 are exact in float32"),
    *_at_night([Record(f"torch_16.py:{name} --dtype {dtype} --seed {seed}", case=_OF_16_BITS, says="rounds S to")
        for seed in range(3) for name in ("all_in_16_bits", "softmax_in_32_bits")
        for dtype in ("bfloat16", "float16")], 1),
    *_at_night([Record(f"conventions.py:{name}", says=_EXPORTED.format(words), unsaid='"fault":')
        for name, words in _CONVENTIONS.items()], 1),
    Record("conventions.py:negative_delta_and_doubled_dv --strict", 1, cause="convention/delta", first="delta",
        says='exports -delta as delta, another convention; the gradients made of it are right | "factor/dV"'
        " | return delta, or leave out --strict"),
    *_at_night([Record(f"conventions.py:{name}", 1, first=first)
        for name, first in (("misused_ds", "dS"), ("squared_delta", "delta"), ("misused_delta", "delta"))], 1),
]  # fmt: skip

# What is wrong is said, and nothing else.
_DP_OR_DELTA = (
    "dP or delta is the first wrong intermediate | dP or delta is wrong: P and dS show their difference alone"
    ' | "inseparable": ["delta"] | colsum(P * dP) stands for delta'
)  # fmt: skip
_CAUSES = [
    Record("keys_kernels.py:shifted --fix-budget 0", 1, SMALL.replace("20", "40"), "value/S", "0.25", "P",
        "keys_kernel computes S wrongly at line | S is off by a number in all of a row", '"value/dV" | "value/dS"',
        night=True),
    *_at_night([Record(f"torch_backwards.py:delta_of_keys {sees}", 1, cause="delta/formula", at="(p * dp).sum(dim=2",
        first="dP", says=_DP_OR_DELTA, unsaid="wrong by itself too")
        for sees in ("--causal", "--causal --window 5,0")], 1),
    # No line of Python of what comes to something else in each call.
    Record("torch_backwards.py:twice", 1, unsaid='"where": [{'),
    # No LSE is blamed that nothing reads, nor a line of Python that does not give all that is wrong.
    Record("torch_backwards.py:every_third_key --runs contiguous", 1, first="P",
        says="P is off by 0.2 % from key to key: each key has one factor in all rows",
        unsaid='LSE is | "where": [{', night=True),
    Record("torch_backwards.py:noisy_p --runs contiguous", 1, first="P", unsaid="P is off by", night=True),
    Record("torch_backwards.py:mask_forgotten --mask padding --fix-budget 0", 1, cause="mask/mask",
        at="ds, forgotten = p * (dp - delta), torch.exp(s - lse) * (dp - delta)", unsaid="by a fault of gradprobe"),
]  # fmt: skip

# Kernels of .cu files, alone or with host code: what is told of lanes, of shared memory and of strides, and where.
_CUDA = [
    Record("cuda_parts.py:equal_values"),
    Record("cuda_parts.py:key_of_the_thread --runs contiguous", 1, cause="operand/dQ-row", at="[KEY]",
        says="what is stored for row 0 reads k at keys 0, 8, 16", night=True),
    Record("cuda_parts.py:factor --runs contiguous", 1, unsaid='"pairs/ | "load/', night=True),
    Record("cuda_parts.py:lanes_missing --runs contiguous", 1, cause="shuffle", at="__shfl_down_sync(mask",
        says="lanes 8-23 read lanes outside the mask 0x00ffffff", unsaid="no result shows it"),
    Record("cuda_parts.py:lanes_right --runs contiguous", says="lanes 8-15 read | no result shows it"),
    Record("params_by_value.cu", 1, cause="stride/do-row", first="delta", says="params_by_value.cu:18",
        layouts={"contiguous": "match", "distinct-unit": "mismatch"}),
]  # fmt: skip

# A newcomer's own function: its options and results have other forms, and it asks which GPU it runs on.
_FORMS = {
    "window_unannotated --window 6,0": "with --window-as number, found by trying", "window_annotated --window 6,0": "",
    "mask_that_is_added --mask random": "the mask is added to the scores, found by trying (--mask-as additive)",
    "arrays_of_numpy": "", "mask_of_either_kind --mask random": "", "torch_s_parameters --kv-heads 1": "",
    "torch_s_parameters --mask random": "", "torch_s_parameters --bias": "", "mask_of_either_kind --bias": "",
    "mask_that_is_added --bias": "", "arrays_of_another_library": "",
}  # fmt: skip
_ASKED = {
    "--arch gfx942": "hip 64 gfx942 9 4 True", "": "cuda 32 NVIDIA H100 9 0 False",
    "--arch sm_75": "cuda 32 Tesla T4 7 5 False", "--arch gfx1100": "hip 32 gfx1100 11 0 True",
}  # fmt: skip
_HOUR = [
    *_at_night([Record(f"forms_of_options.py:{words} --layout contiguous", says=said)
        for words, said in _FORMS.items()], 2),
    Record("forms_of_options.py:window_is_one_key_short --window 6,0 --layout contiguous", 1, says="mask/window-left",
        night=True),
    Record("forms_of_options.py:window_annotated --window 6,2", 2, says="the window as one number, got 6,2"),
    Record("forms_of_options.py:lists", 3, says="returned dQ as list"),
    Record("forms_of_options.py:mask_of_either_kind", 2, says="add --bias or --mask KIND"),
    Record("asks_the_gpu.py:attend --arch gfx924", 2, says="did you mean 'gfx942'?"),
    *_at_night([Record(f"asks_the_gpu.py:attend {words} --layout contiguous", says=said)
        for words, said in _ASKED.items()], 1),
]  # fmt: skip

# A gradient that is stored by another's strides shows by default, though a wrapper makes both by `empty_like`.
_OUTPUTS = [
    Record("outputs.py:right --no-recover", case=_TWO,
        layouts=dict.fromkeys(("contiguous", "distinct", "distinct-unit", "do=expanded"), "match")),
    Record("outputs.py:dv_by_dk --fix-budget 0", 1, _TWO, "store/dV", "tl.store(dv_ptr", "dV",
        layouts={"contiguous": "match", "distinct-unit": "mismatch"}),
]  # fmt: skip

# What a target may take and its case does not use is tried in a small second case, or listed as not checked.
_WRONG_BESIDE = {
    "of_two_batches": "a third batch", "first_of_a_group": "grouped heads", "no_row_alone": "a single row and key",
    "causal_alone": "a causal mask", "deaf_to_scale": "another scale",
}  # fmt: skip
_GROUPED = ["grouped heads (--kv-heads)"]
_LISTED = [
    ("attention", [], []), ("with_softcap", ["--softcap", "--bias"], []), ("one_key_head_each", [], _GROUPED),
    ("without_maximum", [], ["logits near -120 (--pattern negative)"]), ("ends_its_process", _GROUPED, []),
]  # fmt: skip
_SILENCE = [
    *_at_night([Record(f"unused.py:{name} --fix-budget 0 --no-recover", 1, "",
        says=f'"beyond": "{words}: -- | right as it was asked for, wrong with {words}')
        for name, words in _WRONG_BESIDE.items()], 1),
    *_at_night([Record(f"unused.py:{words}", case="", says=f'"beyond": "" | "not_checked": {json.dumps(listed)}'
        f' | "undeclared": {json.dumps(undeclared)}') for words, listed, undeclared in _LISTED], 3),
    Record("unused.py:of_two_batches --batch 2 --heads 4", case="",
        says='"not_checked": ["a third batch (--batch)", "a tenth head (--heads)"'),
]  # fmt: skip

# What Triton's compiler refuses and its interpreter runs, and what the interpreter alone refuses.
_REFUSED = {
    "plain_global": ("total = total * WEIGHT", "Cannot access global variable WEIGHT"),
    "loop": ("for _ in range(head + 1):", "Loop-carried variable mean has initial type int32"),
}  # fmt: skip
_TRITON = [
    *[Record(f"uncompiled.py:{name}", 3, says="matches in the interpreter, but rows_kernel does not compile: "
        f'| "kind": "CompileError" | "code": "{line}" | {words}', unsaid="right as it was asked for")
        for name, (line, words) in _REFUSED.items()],
    Record("uncompiled.py:eight_bits --arch sm_90"),
    Record("uncompiled.py:eight_bits --arch sm_75", 3,
        says='"arch": "sm_75" | float8e4nv | rows_kernel does not compile for sm_75: uncompiled.py:'),
    Record("uncompiled.py:causal_alone", 3, "--batch 1 --heads 2",
        says='"code": "total = total * WEIGHT" | right as it was asked for, wrong with a causal mask: --'),
    Record("uncompiled.py:wrong --fix-budget 0", 1,
        says='"code": "total = total * (2.0 * WEIGHT)" | rows_kernel does not compile: uncompiled.py:'),
    *_at_night([Record(f"uncompiled.py:{name}", says='"compile_errors": []')
        for name in ("constant", "alias")], 1),
    Record("uncompiled.py:assembly", 3, says="inline_asm | that is a limit of Triton's interpreter"),
]  # fmt: skip

RECORDS = [*_ARITHMETIC, *_CAUSES, *_CUDA, *_HOUR, *_OUTPUTS, *_SILENCE, *_TRITON]
