"""The options that several commands share, and the help that leaves out what is seldom typed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..inputs.options import OPTIONS
from ..model.documents import AUTO, BATTERIES
from ..render.files import FORMS

FIX_BUDGET, SHRINK_BUDGET = 40, 60
DEFAULT = "lazy"
BUILT_IN = f"the built-in {DEFAULT} kernel, since no target was given"
_ALL = "gradprobe.help_all"


def option(flags: str, help: str | None, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(flags, metavar=metavar, help=help, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def _print_all(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


Row = tuple[Any, Any]


def _row(kind: Any, default: Any, flags: str, *words: str | None, **more: Any) -> Row:
    return default, Annotated[kind, option(flags, *words, **more)]


def _of_environment(kind: Any, default: Any, flags: str, *words: str, **more: Any) -> Row:
    name = flags.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    more |= {"envvar": f"GRADPROBE_{name}", "show_envvar": False, "show_default": False}
    return _row(kind, default, flags, *words, **more)


_TARGET = f"Built-in name, FILE.py:FUNCTION or MODULE:FUNCTION (default: {DEFAULT})"
TARGET: Row = (None, Annotated[str | None, argument("TARGET", _TARGET)])
SHARED: Mapping[str, Row] = {
    "family": _row(str | None, None, "--family", "softmax or lazy (default: lazy where the target takes tau)"),
    "reference": _row(str | None, None, "--reference",
                      "FILE.py:FUNCTION, a reference of your own, which is audited first", "TARGET"),
    "isolate": _of_environment(bool, True, "--isolate/--no-isolate", "Run TARGET in a process of its own, or in this "
                               "one (default: its own)"),
    "timeout": _row(float | None, None, "--timeout", "Stop a check that takes longer", "SECONDS"),
    "fresh": _row(bool, False, "--fresh", "Run with empty caches of compiled kernels"),
    "fix_budget": _of_environment(int | None, None, "--fix-budget", "Try so many edits of a wrong kernel; 0 tries none "
                                  f"(default: {FIX_BUDGET})", "N", min=0),
    "shrink_budget": _of_environment(int, SHRINK_BUDGET, "--shrink-budget", "Try so many cases to make failing ones of "
                                     f"several checks smaller (default: {SHRINK_BUDGET})", "N", min=0),
    "traceback": _row(bool, False, "--traceback", "Show where a failure was raised"),
    "details": _of_environment(bool, False, "--details", "Show all of a report"),
}  # fmt: skip
_OF_A_CASE: Mapping[str, Row] = {
    "help_all": _row(bool, False, "--help-all", "Show every option and exit.", is_eager=True, callback=_print_all),
    "max_memory": _row(str | None, None, "--max-memory", "The most memory to take, such as 3G (default: "
                       "half of what is free)", "SIZE"),
}  # fmt: skip
TYPED = frozenset(
    (
        "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "dtype", "causal", "window",
        "bias", "tau", "device", "layout", "inputs", "details", "json", "html", "battery", "against", "baseline",
        "contract", "reference", "timeout", "fast", "at", "resume", "apply", "help", "help_all",
    )
)  # fmt: skip


def case_rows(*, several: bool) -> dict[str, Row]:
    rows = dict(_OF_A_CASE)
    for row in OPTIONS:
        flags = f"{row.flag}/--no-{row.flag[2:]}" if row.kind is bool else row.flag
        kind: Any = list[str] if row.kind is list else row.kind
        if several and row.kind is not list:
            kind = list[row.kind]  # type: ignore[name-defined]
        help = row.help.replace("[", r"\[")  # markup to rich
        more = {"rich_help_panel": "Case", "show_default": False}
        rows[row.name] = _row(kind | None, None, flags, help, row.metavar, **more)
    return rows


def form_rows(flags: Sequence[str]) -> dict[str, Row]:
    rows = {}
    for flag in flags:
        has_file = (str | None, None, flag, FORMS[flag].help, "FILE")
        own = has_file if FORMS[flag].unfinished else (bool, False, flag, FORMS[flag].help)
        rows[flag[2:]] = _row(*own)
    return rows


def with_word(words: Sequence[str]) -> list[str]:
    own = words[: words.index("--")] if "--" in words else words
    found = list(words)
    for at, word in enumerate(own):
        if word == "--battery" and not {*words[at + 1 : at + 2]} & {*BATTERIES}:
            found[at] = f"--battery={AUTO}"
    return found


class ShortHelp(TyperCommand):
    """Leaves out what is seldom typed, where there is --help-all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_word(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options: list[Any] = [row for row in self.params if row.param_type_name == "option"]
        is_short = "help_all" in [row.name for row in options] and not ctx.meta.get(_ALL)
        seldom = [row for row in options if row.name not in TYPED]
        for row in seldom:
            row.hidden = is_short
        more = f"{len(seldom)} more options: {ctx.command_path} --help-all"
        self.epilog = more if is_short else None
        self.rich_markup_mode = None if is_short else "rich"  # boxes take columns
        super().format_help(ctx, formatter)
