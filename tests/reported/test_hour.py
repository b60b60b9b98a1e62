"""A newcomer's own function: its options and results have other forms, and it asks which GPU it runs on."""

import pytest

from tests.reported.conftest import SMALL
from tests.sampling import sampled

FORMS = {
    "window_unannotated --window 6,0": "with --window-as number, found by trying",
    "window_annotated --window 6,0": "", "torch_s_parameters --kv-heads 1": "",
    "torch_s_parameters --mask random": "", "torch_s_parameters --bias": "",
    "mask_of_either_kind --mask random": "", "mask_of_either_kind --bias": "",
    "mask_that_is_added --mask random": "the mask is added to the scores, found by trying (--mask-as additive)",
    "mask_that_is_added --bias": "", "bias_and_mask --mask random --bias": "",
    "arrays_of_numpy": "", "arrays_of_numpy_backwards_and_read_only": "",
    "arrays_of_another_library": "",
}  # fmt: skip


@sampled("words", FORMS, push=[*FORMS][:2] + [*FORMS][7:12:2])
def test_what_is_right_in_another_form_matches(check, words):
    ran, report = check(f"forms_of_options.py:{words} {SMALL} --layout contiguous")
    assert (ran.code, report["verdict"]) == (0, "match"), ran.err
    assert any(FORMS[words] in note for note in report["notes"]) or not FORMS[words]


def test_a_fault_behind_another_form_is_found(check):
    words = f"window_is_one_key_short --window 6,0 {SMALL} --layout contiguous"
    _, report = check(f"forms_of_options.py:{words}")
    assert (report["verdict"], report["case"]["window"]) == ("mismatch", [6, 0])
    assert "mask/window-left" in [found["fault"] for found in report["diagnoses"]]


@pytest.mark.usefixtures("without_causes")
def test_a_wrong_array_and_a_wrong_group_are_placed(check):
    _, report = check(f"forms_of_options.py:a_wrong_array {SMALL} --layout contiguous")
    first = report["first_mismatch"]
    assert (first["intermediate"], first["head"]) == ("dK", 1)
    words = f"groups_share_the_first_key_head --kv-heads 2 {SMALL.replace('heads 2', 'heads 4')}"
    _, report = check(f"forms_of_options.py:{words} --layout contiguous")
    assert report["verdict"] == "mismatch"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("forms_of_options.py:window_annotated --window 6,2", 2, "the window as one number, got 6,2"),
        ("forms_of_options.py:lists", 3, "returned dQ as list"),
        ("forms_of_options.py:mask_of_either_kind", 2, "add --bias or --mask KIND"),
        ("asks_the_gpu.py:attend --arch gfx924", 2, "did you mean 'gfx942'?"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_in_words(check, words, code, says):
    ran, _ = check(f"{words} {SMALL}")
    assert (ran.code, says in ran.err) == (code, True)


ASKED = {
    "": "cuda 32 NVIDIA H100 9 0 False", "--arch sm_75": "cuda 32 Tesla T4 7 5 False",
    "--arch gfx942": "hip 64 gfx942 9 4 True", "--arch gfx1100": "hip 32 gfx1100 11 0 True",
}  # fmt: skip


@sampled("words", ASKED, push=["--arch gfx942"])
def test_the_gpu_that_is_not_there_is_of_the_architecture_that_is_asked_for(check, words, capfd):
    ran, report = check(f"asks_the_gpu.py:attend {words} {SMALL} --layout contiguous")
    assert ran.code == 0, ran.err
    assert ASKED[words] in ran.err
    assert words in report["reproduce"]
