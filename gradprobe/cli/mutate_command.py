"""`gradprobe mutate`: does a gate catch the faults that people make?"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..commands.configuration.settings import seconds
from ..commands.suite.batteries import refuse_unknown_battery
from ..inputs import history as last
from ..model.documents import AUTO, QUICK
from ..model.failures import UsageFailure, did_you_mean
from ..render.files import keeps_changing, unfinished
from ..render.terminal import (
    Progress,
    dump,
    interrupted,
    note,
    print_failure,
    show,
    width,
    write_stdout,
)
from ..targets.builtin import has_driver
from . import shared_options as shared
from .error_output import failures_told

if TYPE_CHECKING:
    from ..commands.mutate.campaign import Campaign, Gate

SAMPLE = 40
# How many lie between two words on stderr of how far it is, where there is no terminal.
_BETWEEN = 10


@shared.with_case_options
def mutate(
    target: shared.Target = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="The gate: a command that fails where the kernel is wrong (pytest ...)",
        ),
    ] = None,
    battery: Annotated[
        str | None,
        typer.Option(
            "--battery",
            metavar=shared.BATTERY_WORDS,
            help="The gate is gradprobe check with that battery (default: quick)",
        ),
    ] = None,
    strides: Annotated[
        bool, typer.Option("--strides", help="The gate is gradprobe strides --fast")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py", help="Where faults are planted (default: the target's own file)"
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help=f"Faults to plant (default: {SAMPLE})")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Plant every fault")] = False,
    classes: Annotated[
        str | None,
        typer.Option("--class", metavar="S1,M1,...", help="Plant faults of these classes only"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Gates that run at the same time (default: one a core, or one with a GPU)"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Time for one fault (default: 5 times what the gate takes, and 30 s)",
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the faults that would be planted, and try none")
    ] = False,
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
    words: dict[str, Any] = {
        "check": check,
        "battery": shared.battery_as_told(battery),
        "strides": strides or None,
    }
    words |= {
        "file": file,
        "sample": sample,
        "all": every or None,
        "class": classes,
        "timeout": timeout,
    }
    repro_command = replace(request, target=target or "").command("mutate", **words)
    with failures_told(json_file, repro_command, show_traceback, request.target):
        gate = _gate(request, check, battery, strides=strides)
        shared.refuse_wrong_words(request, takes_file=True)
        if every and sample is not None:
            raise UsageFailure("--sample and --all exclude each other", "give one of them")
        if sample is not None and sample < 1:
            raise UsageFailure(f"--sample must be at least 1, got {sample}")
        from ..commands.mutate.campaign import CampaignTerms, campaign
        from ..commands.mutate.mutant import sampled
        from ..commands.mutate.operators import mutants_of
        from ..commands.mutate.subject import read_file, subject_of

        at_a_time = shared.count_of_workers(workers, unless_gpu=True)
        limit = seconds(timeout, "--timeout") if timeout is not None else None
        terms, wanted = (
            CampaignTerms(at_a_time, limit, watches_lines=not has_driver()),
            _wanted(classes),
        )
        subject = subject_of(request, file)
        source = read_file(subject.file, subject.function)
        mutants = [mutant for mutant in mutants_of(source) if mutant.fault_class in wanted]
        if not mutants:
            raise UsageFailure(
                f"no fault of class {classes} can be planted in {subject.file}", "drop --class"
            )
        drawn = sampled(mutants, None if every else sample or SAMPLE, int(options.get("seed", 0)))
        if listed:
            from ..commands.mutate.campaign_screen import render_list

            show(render_list(drawn, len(mutants), width()))
            raise typer.Exit(0)
        screen = _Screen(json_file, repro_command, len(drawn))
        with screen.tick:
            screen.tick("the gate on the file as it is", None)
            try:
                found = campaign(request.target, source, gate, mutants, drawn, terms, screen)
            except KeyboardInterrupt:
                screen.stop()
                raise
        screen.show(found)
        dump(json_file, screen.document(found))
        raise typer.Exit(found.exit_code)


class _Screen:
    """What is said while it runs, and in the end."""

    def __init__(self, json_file: str | None, repro_command: str, total: int) -> None:
        self._json_file, self._repro_command, self._total = json_file, repro_command, total
        self.tick = Progress()
        self._latest: Campaign | None = None

    def __call__(self, campaign: Campaign) -> None:
        self._latest = campaign
        done = len(campaign.outcomes)
        self.tick(f"fault {done} of {self._total}", done / self._total)
        if done % _BETWEEN == 0 and not sys.stderr.isatty():
            note(f"{done} of {self._total} tried")
        if self._json_file is not None and keeps_changing(self._json_file):
            dump(self._json_file, unfinished(self.document(campaign)))

    def stop(self) -> None:
        """Shows what was known when the campaign was interrupted; the file holds it."""
        done = 0
        if (latest := self._latest) is not None:
            done = len(latest.outcomes)
            if self._json_file != "-":
                write_stdout(
                    f"INTERRUPTED  {done} of {self._total} faults were tried; of these:\n"
                )
            self.tick.over(lambda: self.show(latest))
        print_failure(interrupted(done, self._total, "faults"))

    def show(self, campaign: Campaign) -> None:
        if self._json_file != "-":
            from ..commands.mutate.campaign_screen import render_campaign

            show(render_campaign(campaign, width()))

    def document(self, campaign: Campaign) -> dict[str, Any]:
        from ..commands.mutate.campaign_screen import campaign_as_json

        return campaign_as_json(campaign, self._repro_command)


def _gate(
    request: last.CheckRequest, check: str | None, battery: str | None, *, strides: bool
) -> Gate:
    from ..commands.mutate.campaign import other_gate, own_gate

    if sum([check is not None, battery is not None, strides]) > 1:
        raise UsageFailure(
            "--check, --battery and --strides each name a gate", "give one of them"
        )
    if check is not None:
        for name in sorted(request.options.keys() - {"seed", "device"}):
            flag = f"--{name.replace('_', '-')}"
            raise UsageFailure(
                f"{flag}: a case of gradprobe check, and --check names another gate",
                f"drop {flag}",
            )
        return other_gate(check)
    if request.target.endswith(".py"):
        words = f"target {request.target!r} names no function for gradprobe to check"
        raise UsageFailure(words, "add :FUNCTION, or give --check COMMAND")
    if strides:
        return own_gate(request.command("strides", fast=True))
    # Each of many faults takes as long as the gate does.
    refuse_unknown_battery(battery)
    return own_gate(request.command(battery=QUICK if battery == AUTO else battery))


def _wanted(classes: str | None) -> set[str]:
    from ..commands.mutate.mutant import CLASSES

    if classes is None:
        return set(CLASSES)
    given = {word.strip().upper() for word in classes.split(",")}
    if unknown := sorted(given - CLASSES.keys()):
        way_out = did_you_mean(unknown[0], CLASSES, "") or "gradprobe explain S1 says what one is"
        raise UsageFailure(f"--class takes {', '.join(CLASSES)}, got {unknown[0]!r}", way_out)
    return given
