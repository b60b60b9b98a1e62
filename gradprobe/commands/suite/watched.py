"""What a check that cost the GPU its process shows small in the interpreter, where every access is watched."""

from __future__ import annotations

from dataclasses import replace

from ...model.memory import MemoryFinding
from ...processes import run_each
from ..smaller import for_the_interpreter
from .checked import Checked, Planned
from .worker import FACTORY, Setting


def findings_of(planned: Planned, layout: str, setting: Setting) -> tuple[MemoryFinding, ...]:
    """The findings about memory; none where it cannot be run there, or is right.

    Args:
        layout: the one that was run when the device was lost; "" where that is not known.
    """
    small = for_the_interpreter(planned.request)
    layouts = {"runs": [layout]} if layout else {}
    kept = {name: word for name, word in small.options.items() if not (layout and name in ("layout", "runs"))}
    again = Planned(planned.title, replace(small, options=kept | layouts | {"recover": False}))
    (ended,) = run_each(FACTORY, setting, [again], timeout=setting.timeout)
    runs = ended.result.report.runs if isinstance(ended.result, Checked) else ()
    return tuple(finding for run in runs for finding in run.memory)
