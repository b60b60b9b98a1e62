"""Edits that match the check and are wrong: each is broken by a case that it may not break, or is not certain."""

from dataclasses import dataclass

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
from tests.planted.planting import file_of
from tests.sampling import sampled

FILE = file_of("grouped")


@dataclass(frozen=True)
class Kind:
    """A fault, the text that undoes it, and another one with which the same check matches."""

    name: str
    right: str
    fault: str
    wrong: str


KINDS = [
    Kind("a row's bound dropped from the mask of a helper", "(i[:, None] < n_i) &", "(i[:, None] < n_i - 1) &",
         "(i[:, None] >= 0) &"),
    Kind("a loop of a number that is right for one length", "range(0, n_k, T)", "range(T, n_k, T)",
         "range(0, 2 * T, T)"),
    Kind("right without a causal mask alone", "dq = tl.dot(ds, k", "dq = tl.dot(-ds, k",
         "dq = tl.dot((1 - 2 * CAUSAL) * ds, k"),
    Kind("right for as many key heads as heads alone", "K += b * kb + h // GROUP * kh\n", "K += b * kb\n",
         "K += b * kb + h * kh\n"),
    Kind("a stride that is the same when contiguous", "gi, gd, n_q, n_d)\n    lse",
         "gd, gi, n_q, n_d)\n    lse", "qi, gd, n_q, n_d)\n    lse"),
]  # fmt: skip


def judged(folder, kind, new):
    prepare_backend("auto")
    text = FILE.read_text().replace(kind.right, kind.fault)
    at, file = text.index(kind.fault), folder / FILE.name
    file.write_text(text)
    layouts = (("all", "contiguous"),)
    case = softmax_case(batch=1, heads=2, seqlen=32, head_dim=16, layouts=layouts)
    begun = experiment_of(case, find_target(f"{file}:grouped"))
    edit = Edit(at, at + len(kind.fault), new)
    search = Search(begun, [record.run for record in records_of(begun)], folder, Allowance(40))
    assert search.wrong
    return search._judge.judged(Candidate(KernelFile(str(file), text), (edit,), 0.0))


@sampled("kind", KINDS, push=[KINDS[0]], ids=lambda kind: kind.name)
def test_a_wrong_edit_is_broken_or_not_certain(kind, tmp_path):
    came = judged(tmp_path, kind, kind.wrong)
    assert came is None or came.doubts or came.not_run


@sampled("kind", KINDS, push=[], ids=lambda kind: kind.name)
def test_the_right_edit_is_certain(kind, tmp_path):
    came = judged(tmp_path, kind, kind.right)
    assert (came.doubts, came.not_run) == ([], [])
