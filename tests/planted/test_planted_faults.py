"""Every planted fault gets the verdict and the place that its record says, and nothing else is blamed."""

from gradprobe.commands.suite.battery import battery
from gradprobe.diagnosis import smaller
from gradprobe.inputs.history import CheckRequest
from gradprobe.pipeline.resolve import resolve_problem
from gradprobe.targets.find import find_target
from tests.cases import lazy_case, softmax_case
from tests.planted.battery_faults import HIDDEN
from tests.planted.flash_faults import EXPORTED, INSIDE
from tests.planted.lazy_faults import FAULTS, HISTORICAL
from tests.planted.planting import KERNELS, assert_as_recorded, edited, probe_planted
from tests.probe import probe
from tests.sampling import sampled

BOX = [(fault, "flash_black_box") for fault in INSIDE]
FLASH = BOX + [(fault, "flash_intermediates") for fault in EXPORTED]
# What is tried on every push: an address, a formula and all exposed; the others at night, and by the score.
OFTEN = [
    one
    for one in BOX
    if one[0].name in ("do_read_with_q_head_stride_in_dq", "delta_dropped_in_dkdv")
]


def title(value):
    return getattr(value, "name", value)


# On every push the historical one has a test of its own, below, and the score tries one of each class.
@sampled("fault", FAULTS, push=[], ids=title)
def test_a_planted_fault_is_found_and_placed(fault, tmp_path):
    case = lazy_case(**fault.options)
    assert_as_recorded(
        fault, probe_planted(fault, tmp_path, "lazy.py", "lazy_intermediates", case)
    )


def test_do_read_with_q_head_stride_never_blames_head_0(tmp_path):
    case = lazy_case(**HISTORICAL.options, batch=1, seqlen=40, head_dim=8)
    report = probe_planted(HISTORICAL, tmp_path, "lazy.py", "lazy_intermediates", case)
    assert_as_recorded(HISTORICAL, report)
    for run, measured in report.measured:
        for name, finding in measured.comparison.findings.items():
            assert int(finding.wrong[:, 0].sum()) == 0, (run.layout, name)
        assert measured.comparison.findings["P"].status == "match"


@sampled("fault, function", FLASH, push=[*OFTEN, FLASH[len(BOX)]], ids=title)
def test_a_fault_in_flash_is_placed_and_told_of_a_black_box_that_cannot_be_watched(
    fault, function, tmp_path, monkeypatch, on_push
):
    if function == "flash_black_box":
        monkeypatch.setattr(smaller, "INTERPRETED", "nowhere")
    # At night 36 rows and keys: a full and a partial tile along both axes.
    sizes = {"batch": 1, "heads": 2, "seqlen": 20 if on_push else 36, "head_dim": 16}
    case = softmax_case(**sizes | fault.options)
    report = probe_planted(fault, tmp_path, "flash.py", function, case)
    assert_as_recorded(fault, report)
    inside = report.failing[0].inside
    said = "" if inside is None else "\n".join(inside.sentences)
    assert all(words in said for words in fault.says)
    assert bool(said) == bool(fault.says)


# Each takes some ten seconds; the score tries one on every push.
@sampled("fault", HIDDEN, push=[], ids=lambda fault: f"{fault.of[0][:-3]}-{fault.name}")
def test_the_default_check_passes_and_of_the_battery_the_items_that_are_recorded_do_not(
    fault, tmp_path
):
    def verdict(options):
        problem = resolve_problem(CheckRequest(word, None, None, options))
        return probe(problem.case, problem.target, why=False).verdict

    file, function = fault.of
    (tmp_path / file).write_text(edited((KERNELS / file).read_text(), fault.edits))
    word = f"{tmp_path / file}:{function}"
    target = find_target(word)
    assert verdict({}) == "match"
    shown_by = set()
    for entry in battery(target.family, target.takes, target.required):
        # An item of several cases shows a fault where one of them does.
        is_asked = not entry.why_not and entry.number in fault.shown_by - shown_by
        if is_asked and verdict(entry.options) == "mismatch":
            shown_by.add(entry.number)
    assert shown_by == fault.shown_by


def test_ten_items_show_a_fault_that_no_other_item_shows_and_five_classes_are_planted():
    alone = {number for fault in HIDDEN if len(fault.shown_by) == 1 for number in fault.shown_by}
    assert alone >= {3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17}
    for faults, least in ((FAULTS, 12), (INSIDE, 20)):
        assert len(faults) >= least
        assert len({fault.fault_class for fault in faults}) >= 5
