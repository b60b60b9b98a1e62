"""What a check that cost the GPU its process shows small in the interpreter, where every access is watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..isolation import run_each
from ..smaller import for_the_interpreter
from .checked import Checked, Planned
from .worker import FACTORY, Setting


def findings_of(planned: Planned, layout: str, setting: Setting) -> tuple[Mapping[str, Any], ...]:
    """The findings about memory, as in a report; none where it cannot be run there, or is right.

    Args:
        layout: the one that was run when the device was lost; "" where that is not known.
    """
    small = for_the_interpreter(planned.asked)
    layouts = {"runs": [layout]} if layout else {}
    kept = {name: word for name, word in small.options.items() if not (layout and name in ("layout", "runs"))}
    again = Planned(planned.title, replace(small, options=kept | layouts | {"recover": False}))
    (ended,) = run_each(FACTORY, setting, [again], timeout=setting.timeout)
    document = ended.result.document if isinstance(ended.result, Checked) else {}
    return tuple(finding for run in document.get("runs", ()) for finding in run["memory"])
