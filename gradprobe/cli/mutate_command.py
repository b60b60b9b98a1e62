"""`gradprobe mutate`: does a gate catch the faults that people make?"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.configuration.settings import seconds
from ..commands.suite.batteries import refuse_unknown_battery
from ..inputs import history as last
from ..model.documents import AUTO, QUICK
from ..model.failures import UsageFailure, did_you_mean
from ..render.files import keeps_changing, unfinished
from ..render.terminal import Progress, dump, interrupted, note, print_failure, show, width, write_stdout
from ..targets.builtin import has_driver
from . import shared_options as shared
from .error_output import failures_told

if TYPE_CHECKING:
    from ..commands.mutate.campaign import Campaign, CampaignTerms, Gate

SAMPLE = 40
# How many lie between two words on stderr of how far it is, where there is no terminal.
_BETWEEN = 10


@dataclass(frozen=True)
class _Gates:
    check: str | None
    battery: str | None
    strides: bool


@shared.with_case_options
def mutate(
    target: shared.Target = None,
    check: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="The gate: a command that fails where the kernel is wrong (pytest ...)"),
    ] = None,
    battery: Annotated[
        str | None,
        typer.Option(
            "--battery",
            metavar=shared.BATTERY_WORDS,
            help="The gate is gradprobe check with that battery (default: quick)",
        ),
    ] = None,
    strides: Annotated[bool, typer.Option("--strides", help="The gate is gradprobe strides --fast")] = False,
    file: Annotated[
        str | None, typer.Option(metavar="FILE.py", help="Where faults are planted (default: the target's own file)")
    ] = None,
    sample: Annotated[int | None, typer.Option(metavar="N", help=f"Faults to plant (default: {SAMPLE})")] = None,
    every: Annotated[bool, typer.Option("--all", help="Plant every fault")] = False,
    classes: Annotated[
        str | None, typer.Option("--class", metavar="S1,M1,...", help="Plant faults of these classes only")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Gates that run at the same time (default: one a core, or one with a GPU)")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time for one fault (default: 5 times what the gate takes, and 30 s)"),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults that would be planted, and try none")] = False,
    family: shared.Family = None,
    json_file: shared.JsonFile = None,
    show_traceback: shared.Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Plant faults that people make in a kernel, one at a time, and say which of them its gate lets pass.

    The gate is gradprobe check with the case options given, or any command with --check. The kernel's own file is
    never written: the gate's processes load a copy in its place.
    """
    request = shared.request_of(target, family, options, takes_file=True)
    gates = _Gates(check, battery, strides)
    words: dict[str, Any] = {
        "check": check,
        "battery": shared.battery_as_told(battery),
        "strides": strides or None,
        "file": file,
        "sample": sample,
    }
    words |= {"all": every or None, "class": classes, "timeout": timeout}
    repro_command = replace(request, target=target or "").command("mutate", **words)
    with failures_told(json_file, repro_command, show_traceback, request.target):
        gate = _gate(request, gates)
        shared.refuse_wrong_words(request, takes_file=True)
        if every and sample is not None:
            raise UsageFailure("--sample and --all exclude each other", "give one of them")
        if sample is not None and sample < 1:
            raise UsageFailure(f"--sample must be at least 1, got {sample}")
        most = None if every else sample or SAMPLE
        terms, wanted = _terms(workers, timeout), _wanted(classes)
        from ..commands.mutate.mutant import sampled
        from ..commands.mutate.operators import mutants_of
        from ..commands.mutate.subject import read_file, subject_of

        subject = subject_of(request, file)
        source = read_file(subject.file, subject.function)
        mutants = [mutant for mutant in mutants_of(source) if mutant.fault_class in wanted]
        if not mutants:
            raise UsageFailure(f"no fault of class {classes} can be planted in {subject.file}", "drop --class")
        drawn = sampled(mutants, most, int(options.get("seed", 0)))
        if listed:
            from ..commands.mutate.campaign_screen import render_list

            show(render_list(drawn, len(mutants), width()))
            raise typer.Exit(0)
        from ..commands.mutate.campaign import campaign

        told = _Progress(json_file, repro_command)
        with told.tick:
            told.tick("the gate on the file as it is", None)
            try:
                found = campaign(request.target, source, gate, mutants, drawn, terms, told)
            except KeyboardInterrupt:
                told.stop(len(drawn))
                raise
        told.finish(found)
        raise typer.Exit(found.exit_code)


class _Progress:
    """What is said while it runs, and in the end."""

    def __init__(self, json_file: str | None, repro_command: str) -> None:
        self.json_file, self.repro_command = json_file, repro_command
        self.tick = Progress()
        self._latest: Campaign | None = None

    def __call__(self, campaign: Campaign) -> None:
        self._latest = campaign
        done = len(campaign.outcomes)
        self.tick(f"fault {done} of {campaign.tried}", done / campaign.tried)
        if done % _BETWEEN == 0 and not sys.stderr.isatty():
            note(f"{done} of {campaign.tried} tried")
        if self.json_file is not None and keeps_changing(self.json_file):
            dump(self.json_file, unfinished(self._document(campaign)))

    def finish(self, campaign: Campaign) -> None:
        self._show(campaign)
        dump(self.json_file, self._document(campaign))

    def stop(self, total: int) -> None:
        """Shows what was known when the campaign was interrupted; the file holds it."""
        if self._latest is not None:
            if self.json_file != "-":
                write_stdout(f"INTERRUPTED  {len(self._latest.outcomes)} of {total} faults were tried; of these:\n")
            self.tick.over(functools.partial(self._show, self._latest))
        print_failure(interrupted(len(self._latest.outcomes) if self._latest else 0, total, "faults"))

    def _show(self, campaign: Campaign) -> None:
        if self.json_file != "-":
            from ..commands.mutate.campaign_screen import render_campaign

            show(render_campaign(campaign, width()))

    def _document(self, campaign: Campaign) -> dict[str, Any]:
        from ..commands.mutate.campaign_screen import campaign_as_json

        return campaign_as_json(campaign, self.repro_command)


def _gate(request: last.CheckRequest, gates: _Gates) -> Gate:
    from ..commands.mutate.campaign import other_gate, own_gate

    if sum([gates.check is not None, gates.battery is not None, gates.strides]) > 1:
        raise UsageFailure("--check, --battery and --strides each name a gate", "give one of them")
    if gates.check is not None:
        given = sorted(request.options.keys() - {"seed", "device"})
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise UsageFailure(f"{flag}: a case of gradprobe check, and --check names another gate", f"drop {flag}")
        return other_gate(gates.check)
    if request.target.endswith(".py"):
        raise UsageFailure(
            f"target {request.target!r} names no function for gradprobe to check",
            "add :FUNCTION, or give --check COMMAND",
        )
    if gates.strides:
        return own_gate(request.command("strides", fast=True))
    # Each of many faults takes as long as the gate does.
    refuse_unknown_battery(gates.battery)
    return own_gate(request.command(battery=QUICK if gates.battery == AUTO else gates.battery))


def _terms(workers: int | None, timeout: float | None) -> CampaignTerms:
    from ..commands.mutate.campaign import CampaignTerms

    at_a_time = shared.count_of_workers(workers, unless_gpu=True)
    limit = seconds(timeout, "--timeout") if timeout is not None else None
    return CampaignTerms(at_a_time, limit, watches_lines=not has_driver())


def _wanted(classes: str | None) -> set[str]:
    from ..commands.mutate.mutant import CLASSES

    if classes is None:
        return set(CLASSES)
    given = {word.strip().upper() for word in classes.split(",")}
    unknown = sorted(given - CLASSES.keys())
    if unknown:
        way_out = did_you_mean(unknown[0], CLASSES, "") or "gradprobe explain S1 says what one is"
        raise UsageFailure(f"--class takes {', '.join(CLASSES)}, got {unknown[0]!r}", way_out)
    return given
