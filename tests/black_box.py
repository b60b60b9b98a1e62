"""Emulated kernels as black boxes: run on one-hot problems, and looked into as a probe does."""

from collections.abc import Callable, Mapping

from torch import Tensor

from gradprobe.inputs.draw import draw
from gradprobe.model.case import Case
from gradprobe.numerics.budget import Recovery
from gradprobe.numerics.compare import attention_of, compare
from gradprobe.numerics.declared_precision import precision_of
from gradprobe.numerics.evidence import BlackBoxEvidence, MeasuredRun
from gradprobe.numerics.look import Examiner, look_inside
from gradprobe.numerics.one_hot import Answer, RecoveredValues, recover
from gradprobe.runtime.run import Trace, read_trace
from tests.emulated import Arithmetic, Fault, _no_fault, lazy, softmax

Results = Mapping[str, Tensor]
Change = Callable[[Results], Results]
GRADIENTS = ("dQ", "dK", "dV")


def answer_of(
    how: Arithmetic | None = None, fault: Fault = _no_fault, change: Change = dict,
    exposed: tuple[str, ...] = GRADIENTS,
) -> Answer:  # fmt: skip
    """An emulated kernel that exposes its gradients alone, as `change` leaves them."""

    def answer(case: Case, values: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> Trace:  # noqa: ARG001
        names = ("causal", "window", "softcap", "align", "dropout")
        options = {name: getattr(case, name) for name in names if case.family == "softmax"}
        kernel = {"softmax": softmax, "lazy": lazy}[case.family]
        results = kernel(**values, **options, how=how, scale=case.scale, fault=fault)
        return read_trace({name: change(results)[name] for name in exposed}, case, "emulated")

    return answer


def measure_of(case: Case, how: Arithmetic | None = None) -> Callable[..., MeasuredRun]:
    precision = precision_of(case.dtype, "tf32" if how is not None and how.tf32 else "ieee")

    def measure(
        values: Mapping[str, Tensor], trace: Trace, recovery: Recovery | None = None, *, coarse: bool = False
    ) -> MeasuredRun:  # fmt: skip
        x, held = attention_of(case, values), precision.coarser if coarse else precision
        return MeasuredRun(
            lambda: x, trace, compare(case, x, trace, held, recovery=recovery), None
        )

    return measure


def recovered_of(case: Case, how: Arithmetic | None = None, **options) -> RecoveredValues:
    return recover(case, draw(case), answer_of(how, **options))


def inside_of(case: Case, how: Arithmetic | None = None, **options) -> BlackBoxEvidence:
    values, answer, measure = draw(case), answer_of(how, **options), measure_of(case, how)
    own = measure(values, answer(case, values, values))
    run = lambda assigned, *request: answer(*request)  # noqa: E731
    return look_inside(Examiner(case, values, (), run, measure, own, lambda: values))
