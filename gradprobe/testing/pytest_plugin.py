"""The pytest plugin: the fixture `check_backward`, and the marker `gradprobe`.

    def test_my_backward(check_backward):
        check_backward(my_backward, heads=4, causal=True)

    @pytest.mark.gradprobe("lazy", layout="do=blhd")
    def test_do_as_a_transposed_view(): ...

The fixture takes the arguments of `assert_backward_matches`; markers of the test, its class and its module give those
that the call leaves out. A marked test without the fixture is checked before its body runs; one that has the fixture
and never calls it fails.

Neither gradprobe's other modules nor torch are imported before a check.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..api.shown_report import ShownReport

MARKER, FIXTURE = "gradprobe", "check_backward"
_CHECKED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    words = f"{MARKER}(target, **options): check an attention backward with gradprobe, as the fixture {FIXTURE} does"
    config.addinivalue_line("markers", words)


@pytest.fixture
def check_backward(request: pytest.FixtureRequest) -> Callable[..., ShownReport]:
    """`gradprobe.testing.assert_backward_matches`, with the test's gradprobe markers as defaults."""

    def check(target: Any = None, **options: Any) -> ShownReport:
        __tracebackhide__ = True
        report = _report(request.node, target, options)
        if report.failing:
            raise AssertionError(report.text(rest=""))
        return report

    return check


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Checks a marked test without the fixture. At setup, a mismatch would be an error and no failure."""
    __tracebackhide__ = True
    marked = item.get_closest_marker(MARKER) is not None
    if marked and FIXTURE not in getattr(item, "fixturenames", ()):
        report = _report(item, None, {})
        if report.failing:
            _fail(report.text(rest=""))
    outcome = yield
    if marked and outcome.excinfo is None and not item.stash.get(_CHECKED, False):
        words = f"nothing was compared: a test marked {MARKER} asks for {FIXTURE} and does not call it"
        outcome.force_exception(pytest.fail.Exception(words, pytrace=False))


def _fail(words: str) -> None:
    """Fails without a traceback, from a frame that is not hidden: pytest says where all are."""
    raise pytest.fail.Exception(words, pytrace=False)


def _report(item: pytest.Item, target: Any, options: dict[str, Any]) -> ShownReport:
    """A check of the call's target and options, completed by the nearest markers."""
    __tracebackhide__ = True
    from . import report_on

    item.stash[_CHECKED] = True
    for marker in item.iter_markers(MARKER):
        if len(marker.args) > 1:
            words = f"takes one target, and options by name, got {marker.args!r}"
            raise TypeError(f"the marker {MARKER} {words}")
        options = {**marker.kwargs, **options}
        of_marker = options.pop("target", None)
        target = target if target is not None else next(iter(marker.args), of_marker)
    if target is None:
        words = f"neither a call of {FIXTURE} nor a marker {MARKER} names a target"
        raise TypeError(f"nothing to check: {words}")
    return report_on(target, **options)
