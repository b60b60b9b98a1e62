"""`gradprobe run --watch FUNCTION -- COMMAND`: a program's real inputs, checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from ..model.assignment import PLAIN
from ..model.failures import UsageFailure
from ..render.terminal import note
from .command import Call, Command
from .option_rows import DEFAULT, argument, option

_COMMAND = "The command that runs the program"
_WATCH = "MODULE:FUNCTION, the attention to watch"
_TARGET = "What to check with the real inputs (default: FUNCTION)"
_ORDER = "Axes of FUNCTION, bhld or blhd; another TARGET takes [B, H, L, D]"


@Command("family reference isolate")
def run(
    call: Call,
    program: Annotated[list[str] | None, argument("-- COMMAND ...", _COMMAND)] = None,
    watch: Annotated[str | None, option("--watch", _WATCH, "FUNCTION")] = None,
    target: Annotated[str | None, option("--target", _TARGET, "TARGET")] = None,
    keep: Annotated[int, option("--keep", "The most sets of inputs to keep")] = 16,
    order: Annotated[str, option("--order", _ORDER)] = PLAIN,
) -> int:
    """Run a program with its attention function watched, and check that with the program's real inputs and dO.

    The program runs unmodified. Of each shape and layout that the function is called with, its tensors are kept once
    and checked as they lay in memory.
    """
    if watch is None:
        raise UsageFailure("run: nothing to watch", "add --watch MODULE:FUNCTION")
    from ..commands.record.capture import FOLDER, CapturePlan
    from ..commands.record.replay import replay_plan, run_watched
    from ..commands.suite.checking import Setting
    from ..commands.suite.runner import Runner
    from .checks import check_several

    keeping = CapturePlan(FOLDER / watch.replace(":", "."), keep, order)
    call = call.of(replace(call.request, target=target or DEFAULT))
    ended = run_watched(program or [], watch, keeping, quiet=call.forms.on_stdout)
    for line in ended.sentences(watch):
        note(line)
    # The same function takes its tensors as it did when it was watched.
    shapes = {"shapes": order} if target is None and order != PLAIN else {}
    options = {**shapes, **call.request.options}
    request = replace(call.request, target=target or watch, options=options)
    how = Setting(call.tracebacks, isolate=call.isolate)
    return check_several(Runner(replay_plan(ended, request), how), call.forms)
