"""`gradprobe diff NAME`: one intermediate close up."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import last
from ..failures import UsageFailure, did_you_mean
from ..intermediates import lookup, names
from ..options import command_line
from ..screen import put
from ..suite.checked import Planned
from ..suite.worker import Setting
from .alone import check_one
from .failing import failures_told
from .forms import Forms
from .words import (
    FamilyWord,
    Isolate,
    JsonFile,
    ReferenceWord,
    TargetWord,
    Traceback,
    chosen,
    refuse_wrong_words,
    with_case_options,
)


@with_case_options
def diff(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(names())}")],
    target: TargetWord = None,
    at: Annotated[
        str | None, typer.Option(metavar="BATCH,HEAD", help="The head to show (default: the first wrong one)")
    ] = None,
    family: FamilyWord = None,
    reference: ReferenceWord = None,
    json_file: JsonFile = None,
    isolate: Isolate = True,
    show_traceback: Traceback = False,
    *,
    options: dict[str, Any],
) -> None:
    """Show one intermediate close up: its error map over tiles and its wrong rows, actual beside expected."""
    asked, repeated = like_the_last(target, family, reference, options)
    again = command_line(f"diff {name}", asked.target, asked.options, chosen(asked) | {"at": at})
    with failures_told(json_file, again, show_traceback):
        row = lookup(name)
        if row is None:
            raise UsageFailure(f"diff: no intermediate {name!r}", did_you_mean(name, names()))
        refuse_wrong_words(asked)
        place = _parse_at(at)
        if repeated:
            line = f"as in the last check here: {command_line('check', asked.target, asked.options, chosen(asked))}"
            if json_file == "-":
                typer.echo(line, err=True)
            else:
                put(line + "\n")
        planned = Planned("", asked, close_up=(row.name, place))
        raise typer.Exit(check_one(planned, Forms(json_file), Setting(show_traceback, isolate=isolate)))


def like_the_last(
    target: str | None, family: str | None, reference: str | None, options: dict[str, Any]
) -> tuple[last.Asked, bool]:
    """What to run: the last check of this folder where its target is meant, under the options given now."""
    before = last.load()
    if before is None or (target is not None and target != before.target):
        return last.Asked("lazy" if target is None else target, family, reference, options), False
    merged = {**before.options, **options}
    return last.Asked(before.target, family or before.family, reference or before.reference, merged), True


def _parse_at(word: str | None) -> tuple[int, int] | None:
    if word is None:
        return None
    parts = word.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise UsageFailure(f"--at takes BATCH,HEAD, two whole numbers, got {word!r}")
    return int(parts[0]), int(parts[1])
