"""`gradprobe mutate`: does a gate catch the faults that people make?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from ..commands.settings import seconds
from ..inputs.history import CheckRequest
from ..model.case import flag_of
from ..model.failures import UsageFailure
from ..render.files import keeps_changing, unfinished
from ..render.terminal import Progress, dump, show, width
from .checks import tell_interrupted
from .command import Call, Command, count_of_workers
from .option_rows import option
from .report_forms import show_document

if TYPE_CHECKING:
    from ..commands.campaign import Campaign

_CHECK = "The gate: a command that fails where the kernel is wrong, such as 'pytest -q' (default: gradprobe check)"
_FILE = "Where faults are planted (default: the target's own file)"
_WORKERS = "Gates that run at the same time (default: one a core, or one with a GPU)"
_TIMEOUT = "Time for one fault (default: 5 times what the gate takes, and 30 s)"


@Command("target family", takes_file=True)
def mutate(
    call: Call,
    check: Annotated[str | None, option("--check", _CHECK, "COMMAND")] = None,
    file: Annotated[str | None, option("--file", _FILE, "FILE.py")] = None,
    sample: Annotated[int, option("--sample", "Faults to plant", "N", min=1)] = 40,
    workers: Annotated[int | None, option("--workers", _WORKERS)] = None,
    timeout: Annotated[float | None, option("--timeout", _TIMEOUT, "SECONDS")] = None,
) -> int:
    """Plant faults that people make in a kernel, one at a time, and say which of them its gate lets pass.

    The gate is gradprobe check with the case options given, or any command with --check. The kernel's own file is
    never written: the gate's processes load a copy in its place.
    """
    from ..commands.campaign import Campaign, Gate
    from ..commands.mutants import file_of, mutants_of, read_file, sampled

    request = call.request
    gate = Gate.of(_gate(request, check))
    at_a_time = count_of_workers(workers, unless_gpu=True)
    limit = None if timeout is None else seconds(timeout)
    source = read_file(*file_of(request, file))
    mutants = mutants_of(source)
    if not mutants:
        raise UsageFailure(f"no fault can be planted in {source.path}")
    chosen = tuple(sampled(mutants, sample, int(request.options.get("seed", 0))))
    how = (gate, source, len(mutants), chosen, at_a_time, limit)
    return _run(Campaign(request.target, *how), call)


def _run(campaign: Campaign, call: Call) -> int:
    """Runs a campaign, says how far it is, and shows what came of it, also of one that was interrupted."""
    from ..commands.campaign import campaign_as_json, render_campaign

    done, total, json_file = 0, len(campaign.chosen), call.forms.json
    with Progress() as tick:
        tick("the gate on the file as it is", None)
        try:
            for done in campaign.run():
                tick(f"fault {done} of {total}", done / total)
                if json_file is not None and keeps_changing(json_file):
                    dump(json_file, unfinished(campaign_as_json(campaign, call.line)))
        except KeyboardInterrupt:
            found = partial(show, list(render_campaign(campaign, width())))
            tell_interrupted(tick, done, total, "faults", None if json_file == "-" else found)
            raise
    lines = list(render_campaign(campaign, width()))
    show_document(json_file, campaign_as_json(campaign, call.line), lines)
    return campaign.exit_code


def _gate(request: CheckRequest, check: str | None) -> str:
    """The command of the gate, as a person types it."""
    if check is None and request.target.endswith(".py"):
        words = f"target {request.target!r} names no function for gradprobe to check"
        raise UsageFailure(words, "add :FUNCTION, or give --check COMMAND")
    for name in sorted(request.options.keys() - {"seed", "device"}) if check is not None else ():
        words = f"{flag_of(name)}: a case of gradprobe check, and --check names another gate"
        raise UsageFailure(words, f"drop {flag_of(name)}")
    return request.command() if check is None else check
