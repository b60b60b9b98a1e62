import pytest

from gradprobe.pipeline.reported import report_of
from gradprobe.render.screen import rendered
from gradprobe.render.terminal import Terminal
from tests.emulated import case_of, changed, compared, lazy, softmax, target_of
from tests.probe import probe

CASE = {"batch": 2, "heads": 3, "seqlen": 72, "head_dim": 24, "layouts": (("q", "contiguous"),)}


def first_of(fault, family="softmax", **options):
    def on_softmax(q, k, v, do, *, causal=False, scale=None):
        return softmax(q, k, v, do, causal=causal, scale=scale, fault=fault)

    def on_lazy(q, k, v, do, *, tau, bias=None, scale=None):
        return lazy(q, k, v, do, tau=tau, bias=bias, scale=scale, fault=fault)

    function = on_lazy if family == "lazy" else on_softmax
    report = probe(case_of(family, **CASE | options), target_of(function, family), why=False)
    return report.failing[1].first


ELEMENTS = (
    ("dP", (0, 1, 71, 64), (2, 4)), ("dQ", (1, 2, 64, 23), (2, None)), ("dK", (0, 2, 17, 5), (None, 1)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "at", "tile"), ELEMENTS)
def test_one_wrong_element_is_found_at_its_place(name, at, tile):
    fault, is_lazy = changed(name, lambda t: t[at].add_(1.0)), name in ("dP", "dK")
    first = first_of(fault, "lazy", tau=(0.5,)) if is_lazy else first_of(fault)
    assert (first.intermediate, first.batch, first.head, first.row, first.col) == (name, *at)
    assert first.tile == tile
    assert first.actual - first.expected == pytest.approx(1.0, abs=1e-3)


def test_delta_0_on_row_40_is_found_there_and_has_no_column():
    first = first_of(changed("delta", lambda t: t[1, 2, 40].zero_()))
    assert (first.intermediate, first.head, first.row, first.col) == ("delta", 2, 40, None)
    assert first.masked is None


def test_a_leaked_future_key_is_said_to_be_masked_amid_its_window():
    first = first_of(changed("P", lambda t: t[0, 1, 9, 10].fill_(0.5)), causal=True)
    assert (first.intermediate, first.row, first.col, first.masked) == ("P", 9, 10, True)
    window = first.window
    assert (window.rows, window.cols) == ((8, 9), (8, 9, 10, 11, 12))
    assert window.actual[1][2] == 0.5
    assert window.expected[1][2] == first.expected == 0.0


def test_of_two_faults_the_one_earlier_in_the_dataflow_comes_first():
    def both(name, tensor):
        tensor = changed("dV", lambda t: t[0, 0, 0].zero_())(name, tensor)
        return changed("dP", lambda t: t[1, 2, 70].mul_(1.5))(name, tensor)

    first = first_of(both)
    assert (first.intermediate, first.batch, first.head, first.row) == ("dP", 1, 2, 70)


@pytest.mark.parametrize(("budgets", "said"), [(2.0, True), (9.0, False)])
def test_errors_of_a_few_budgets_are_said_to_be_a_coarser_arithmetic(budgets, said):
    case = case_of("softmax", **CASE | {"batch": 1, "heads": 1})
    bounds = compared(case).bounds["dQ"].float()
    fault = changed("dQ", lambda dq: dq.add_(budgets * bounds))

    def coarse(q, k, v, do, *, scale=None):
        return softmax(q, k, v, do, scale=scale, fault=fault)

    report = report_of(probe(case, target_of(coarse), why=False))
    lines = [
        line.plain for line in rendered(report, Terminal(120, None, utf8=True, details=True))
    ]
    assert any("coarser arithmetic than float32, ieee dots" in line for line in lines) is said
