"""RACE, ATUNE, N2: results that differ from call to call, or with what memory held before."""

from __future__ import annotations

from ...diagnosis import Diagnosis
from .again import Again, first_moved

# Orders of threads that are tried where kernels run on the CPU.
_SCHEDULES = (1, 2)


def wrong_in_the_first_call_alone(again: Again) -> Diagnosis | None:
    """The first call is wrong; a second and a third are right."""
    second, third = again.run(), again.run()
    if second is None or third is None or not again.is_right(second) or not again.is_right(third):
        return None
    name = first_moved(again.moved(again.came, second))
    ratio = _ratio(again, name)
    times = f" ({ratio:.4g} times what is right)" if ratio else ""
    return Diagnosis(
        f"autotune/{name}",
        "ATUNE",
        f"{name} is wrong in the first call{times} and right in later ones",
        again.right(second),
        ("two further calls with the same values gave right results",),
        fix="what a kernel adds to must be zeroed before each config that is tried: triton.autotune(reset_to_zero=...)",
    )


def later_call_differs(again: Again) -> Diagnosis | None:
    """The first call was right; another with the same values gives other results."""
    results = again.run()
    moved = {} if results is None else again.moved(again.came, results)
    name = first_moved(moved)
    if not name:
        return None
    count = int(moved[name].sum())
    return Diagnosis(
        f"race/{name}",
        "RACE",
        f"{name} is right in the first call, and with the same values wrong in a later one",
        1.0,
        (f"{count:,} elements of {name} differ between the two calls",),
        fix="what one call leaves (buffers, caches, counters) must not reach the next",
    )


def _ratio(again: Again, name: str) -> float:
    """The one factor by which the first call was wrong; 0 where there is none."""
    actual, expected = again.came[name], again.seen.expected[name]
    squares = float((expected**2).sum())
    factor = float((actual * expected).sum()) / squares if squares else 0.0
    return factor if bool(((actual - factor * expected).abs() <= 1e-4 * expected.abs().max()).all()) else 0.0


def differs_from_run_to_run(again: Again) -> Diagnosis | None:
    """Repeated calls differ; where kernels run on the CPU, calls with other orders of threads."""
    on_cpu = again.experiment.cuda == "cuda-on-cpu"
    runs = [again.run(schedule=number) for number in (_SCHEDULES if on_cpu else (0, 0, 0))]
    results = [again.came, *(run for run in runs if run is not None)]
    moved = {name: again.seen.right[name] & False for name in again.came}
    for run in results[1:]:
        moved = {name: moved[name] | where for name, where in again.moved(results[0], run).items()}
    name = first_moved(moved)
    if not name:
        return None
    how = "in another order of threads and blocks" if on_cpu else "from call to call"
    others = [each for each, where in moved.items() if not bool(where.any())]
    steady = f"; {', '.join(others)} stay as they are" if others else ""
    count = int(moved[name].sum())
    where = ", ".join(map(str, moved[name].nonzero()[0].tolist()))
    return Diagnosis(
        f"race/{name}",
        "RACE",
        f"{name} differs {how}, by more than the order of atomic additions allows",
        again.share(moved),
        (f"{count:,} elements of {name} differ between {len(results)} runs, the first at [{where}]{steady}",),
    )


def reads_what_was_never_written(again: Again) -> Diagnosis | None:
    """Two runs differ whose memory held NaN and 7.0 before them."""
    with_nan, with_seven = again.run(unwritten=float("nan")), again.run(unwritten=7.0)
    if with_nan is None or with_seven is None:
        return None
    moved = again.moved(with_nan, with_seven)
    name = first_moved(moved)
    if not name:
        return None
    wrong = {each: where | ~again.seen.right[each] & ~again.came[each].isfinite() for each, where in moved.items()}
    count = int(moved[name].sum())
    return Diagnosis(
        f"unwritten/{name}",
        "N2",
        f"{name} depends on what memory held before the run: it, or scratch that it is made from, is read unwritten",
        again.share(wrong),
        (f"{count:,} elements of {name} differ between memory full of NaN and full of 7.0",),
        fix="allocate with torch.zeros what is added to, and store every element of what torch.empty gave",
    )
