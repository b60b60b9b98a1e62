"""The help of a command with many options: those that are typed, and all of them with --help-all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

TYPED = frozenset(
    (
        "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "dtype", "causal", "window",
        "bias", "tau", "device", "layout", "inputs", "details", "json_file", "html_file", "battery", "against",
        "reference", "timeout", "fast", "at", "draw", "resume", "apply", "help", "help_all",
    )
)  # fmt: skip
"""The options that people type: the sizes of a case, what it is made of, and what becomes of its report."""
_ALL = "gradprobe.help_all"


def _print_all(ctx: typer.Context, value: bool) -> None:
    """Prints the help with every option, and ends the command."""
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_print_all, help="Show every option and exit.")
]


class ShortHelp(TyperCommand):
    """A command whose help leaves out what is seldom typed, where it has --help-all."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._typed_alone(ctx):
            super().format_help(ctx, formatter)

    @contextlib.contextmanager
    def _typed_alone(self, ctx: Any) -> Iterator[None]:
        """While open, other options are hidden."""
        options = [one for one in self.params if one.param_type_name == "option" and not getattr(one, "hidden", False)]
        seldom = [one for one in options if one.name not in TYPED]
        if ctx.meta.get(_ALL) or all(one.name != "help_all" for one in options):
            seldom = []
        epilog, markup = self.epilog, self.rich_markup_mode
        for option in seldom:
            option.hidden = True  # type: ignore[attr-defined]
        if seldom:
            self.rich_markup_mode = None  # boxes take a third of the columns
            self.epilog = f"{len(seldom)} more options: {ctx.command_path} --help-all"
        try:
            yield
        finally:
            self.epilog, self.rich_markup_mode = epilog, markup
            for option in seldom:
                option.hidden = False  # type: ignore[attr-defined]
