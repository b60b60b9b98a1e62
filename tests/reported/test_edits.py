"""Edits that match the check and are wrong: each is broken by a case that it may not break, or is not certain."""

import re
from dataclasses import dataclass
from pathlib import Path

from gradprobe.diagnosis.edits.candidates_search import Search
from gradprobe.model.allowance import Allowance
from gradprobe.probing.experiment import experiment_of
from gradprobe.probing.runs import records_of
from gradprobe.runtime.backend import prepare_backend
from gradprobe.source.kernel_file import KernelFile
from gradprobe.source.rewrites.candidate import Candidate
from gradprobe.source.syntax import Edit
from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.sampling import sampled

FILE = Path(__file__).parent / "inputs" / "two_loops.py"


@dataclass(frozen=True)
class Kind:
    """A fault, the text that undoes it, and another one with which the same check matches."""

    name: str
    right: str
    fault: str
    wrong: str
    only_first: bool = False
    """Whether the wrong edit is made in the first of several places alone."""


LSE_OF_KEYS = (
    "rows, keys, LSE + h * l_h, E + h * e_h, scale, n_q, n_k, CAUSAL\n        )\n        dv"
)
WHOLE_TILES = (
    "scale, n_q, n_k, CAUSAL)\n        peak, total, acc = fold(s, peak, total, acc, v)\n    for"
)
KINDS = [
    Kind("lse read by delta's strides, whose buffer is padded", LSE_OF_KEYS, LSE_OF_KEYS.replace("l_h", "q_h"),
         LSE_OF_KEYS.replace("l_h", "e_h")),
    Kind("a pointer mended in one of two loops", "tile_of(V + h * v_h, keys, dims, v_n, n_k)\n        s",
         "tile_of(V, keys, dims, v_n, n_k)\n        s", "tile_of(V + h * v_h, keys, dims, v_n, n_k)\n        s", True),
    Kind("a row's bound dropped from the mask of a helper", ", mask=rows[:, None] < count, other=0.0)",
         ", mask=rows[:, None] < count - 1, other=0.0)", ")"),
    Kind("a loop of a number that is right for one length", "range(0, tiles)", "range(0, tiles - 1)", "range(0, 2)"),
    Kind("the last factor changed for that of the loop over whole tiles", WHOLE_TILES,
         WHOLE_TILES.replace("scale", "2 * scale"), WHOLE_TILES.replace("scale", "(1 if whole == n_k else 2) * scale")),
    Kind("a cast dropped that float16 needs", "tl.dot(p.to(v.dtype), v)", "tl.dot(p.to(v.dtype), v + 1)",
         "tl.dot(p, v)"),
    Kind("0 for -inf in the LSE of dead rows", 'peak + tl.log(total), float("-inf"))\n    tl.store(OUT',
         'peak + 2 * tl.log(total), float("-inf"))\n    tl.store(OUT', "peak + tl.log(total), 0.0)\n    tl.store(OUT"),
    Kind("a result stored by another's strides", "DV + h * dv_h + keys[:, None] * dv_n",
         "DV + h * dv_h + keys[:, None]", "DV + h * dk_h + keys[:, None] * dk_n"),
    Kind("right without a causal mask alone", "dk += tl.dot(tl.trans(ds)", "dk -= tl.dot(tl.trans(ds)",
         "dk += (1 - 2 * CAUSAL) * tl.dot(tl.trans(ds)"),
]  # fmt: skip


def judged(folder, kind, new, only_first=False):
    prepare_backend("auto")
    text = FILE.read_text().replace(kind.right, kind.fault)
    assert text != FILE.read_text()
    (folder / FILE.name).write_text(text)
    case = softmax_case(
        batch=1, heads=2, seqlen=32, head_dim=16, layouts=(("all", "contiguous"),)
    )
    begun = experiment_of(case, find_target(f"{folder / FILE.name}:attention"))
    places = [found.start() for found in re.finditer(re.escape(kind.fault), text)]
    size = len(kind.fault)
    edits = tuple(Edit(at, at + size, new) for at in places[: 1 if only_first else None])
    candidate = Candidate(KernelFile(str(folder / FILE.name), text), edits, 0.0)
    search = Search(begun, [record.run for record in records_of(begun)], folder, Allowance(40))
    assert search.wrong
    return search._judge.judged(candidate)


@sampled("kind", KINDS, push=[KINDS[2]], ids=lambda kind: kind.name)
def test_a_wrong_edit_is_broken_or_not_certain(kind, tmp_path):
    came = judged(tmp_path, kind, kind.wrong, only_first=kind.only_first)
    assert came is None or came.doubts or came.not_run


@sampled("kind", KINDS, push=[], ids=lambda kind: kind.name)
def test_the_right_edit_is_certain(kind, tmp_path):
    came = judged(tmp_path, kind, kind.right)
    assert (came.doubts, came.not_run) == ([], [])
