"""The options that several commands share, each in one row of a table, and what they ask for."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..commands.settings import Settings, refuse_misspelt, settings_of
from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, parse, refuse_unknown_family
from ..model.documents import AUTO
from ..model.failures import UsageFailure
from ..processes.resource_limits import bounded
from ..render.files import FORMS
from ..render.terminal import note, print_failure
from ..targets.builtin import BUILTINS, FILES, has_driver

UNTESTED = ContextVar("UNTESTED", default=False)
"""Whether the command goes on with versions that gradprobe is not tested with."""
FIX_BUDGET, SHRINK_BUDGET = 40, 60
DEFAULT = "lazy"
BUILT_IN = f"the built-in {DEFAULT} kernel, since no target was given"
"""What is checked where no target is named."""
BATTERY_WORDS, ON_RAY = "[pairs|quick]", "[ADDRESS]"
# By flag: what stands for its word, and its help.
_ROWS = {
    "--family": (None, "softmax or lazy (default: lazy where the target takes tau)"),
    "--reference": ("TARGET", "FILE.py:FUNCTION, a reference of your own, which is audited first"),
    "--json": ("FILE", FORMS["--json"].help),
    "--timeout": ("SECONDS", "Stop a check that takes longer"),
    "--fresh": (None, "Run with every cache of compiled kernels empty; yours are left as they are"),
    "--max-memory": ("SIZE", "The most memory to take in all, such as 3G or 500M (default: half of what is free)"),
    "--traceback": (None, "Show where a failure was raised"),
    "--details": (None, "Show all of a report, and not one screen of it"),
    "--battery": (BATTERY_WORDS, "Check cases that hold every pair of properties that TARGET takes, or each property "
                  "alone (default: pairs)"),
    "--against": ("OTHER", "Another target, a saved REPORT.json, or interpreted or compiled for the same one: judge it "
                  "too, and say where they differ"),
    "--baseline": ("FILE", "Keep the errors of a right kernel in FILE; once there, fail where one grows beyond its "
                   "noise"),
    "--contract": (None, "Read the kernel's arithmetic: what it rounds, and in what it adds up"),
    "--fix-budget": ("N", f"Try so many edits of a wrong kernel; 0 tries none (default: {FIX_BUDGET})"),
    "--shrink-budget": ("N", "Of several checks, try so many cases in all to make the simplest that fails of each "
                        f"cause smaller; 0 makes none smaller (default: {SHRINK_BUDGET})"),
    "--isolate/--no-isolate": (None, "Run TARGET in a process of its own, or in this one for a debugger (default: its "
                               "own)"),
    "--at": ("BATCH,HEAD", "The head to show (default: the first wrong one)"),
    "--apply": (None, "Write the edit into the file, after asking; then check again"),
    "--yes": (None, "Do not ask"),
    "--plausible": (None, "Write also an edit that matches here and is not certain"),
    "--watch": ("FUNCTION", "MODULE:FUNCTION, the attention to watch"),
    "--keep": (None, "The most sets of inputs to keep"),
    "--order": (None, "Axes of FUNCTION, bhld or blhd; another TARGET takes [B, H, L, D]"),
    "--ci": ("NAME", "Write a workflow for github, and no adapter"),
    "--list": (None, "List what can be checked here, or of the functions of FILE.py"),
}  # fmt: skip
_OF_ENVIRONMENT = {"--fix-budget", "--shrink-budget", "--isolate/--no-isolate", "--details"}


def option(flags: str, help: str = "") -> Any:
    """The row of an option; those that the environment may give too take GRADPROBE_NAME."""
    metavar, words = _ROWS.get(flags, (None, ""))
    more: dict[str, Any] = {"min": 0} if metavar == "N" else {}
    if flags in _OF_ENVIRONMENT:
        name = flags.partition("/")[0].removeprefix("--").replace("-", "_").upper()
        more |= {"envvar": f"GRADPROBE_{name}", "show_envvar": False, "show_default": False}
    return typer.Option(flags, metavar=metavar, help=help or words, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


_TARGET = "Built-in name, FILE.py:FUNCTION or MODULE:FUNCTION (default: lazy)"
_OF_EACH = (
    "Run each case in a process of its own, so that a crash counts as a failure, or all in this one (default: all in "
    "another)"
)
Target = Annotated[str | None, argument("TARGET", _TARGET)]
Family = Annotated[str | None, option("--family")]
Reference = Annotated[str | None, option("--reference")]
JsonFile = Annotated[str | None, option("--json")]
Isolate = Annotated[bool, option("--isolate/--no-isolate")]
IsolateEach = Annotated[bool | None, option("--isolate/--no-isolate", _OF_EACH)]
Timeout = Annotated[float | None, option("--timeout")]
Fresh = Annotated[bool, option("--fresh")]
FixBudget = Annotated[int, option("--fix-budget")]
ShrinkBudget = Annotated[int, option("--shrink-budget")]
Traceback = Annotated[bool, option("--traceback")]
Details = Annotated[bool, option("--details")]


def _is_battery(word: str) -> bool:
    """Whether a word behind --battery is its own, right or mistyped: then it is no target."""
    return not (word.startswith("-") or word in ("", *BUILTINS) or {":", "."} & set(word))


# What stands in the place of a word that is left out, and whether the next word is one.
_WORDED: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "--battery": (AUTO, _is_battery),
    "--ray": ("local", re.compile(r"auto|local|(ray://)?[^\s/]+:\d+").fullmatch),
}


def with_word(words: Sequence[str]) -> list[str]:
    """The words of a command line in which --battery or --ray stands without one, as the parser takes them."""
    found, following = list(words), [*words[1:], ""]
    for at in range(words.index("--") if "--" in words else len(words)):
        default, is_one = _WORDED.get(words[at], ("", bool))
        if default and not is_one(following[at]):
            found[at] = f"{words[at]}={default}"
    return found


def request_of(
    target: str | None,
    family: str | None,
    options: Mapping[str, Any],
    reference: str | None = None,
    *,
    takes_file: bool = False,
) -> CheckRequest:
    """What is asked for; FILE.py stands for its one function that can be checked, unless it is a target itself."""
    word = DEFAULT if target is None else target
    if word.endswith(FILES) and not takes_file:
        from ..targets.definitions import with_function

        word = with_function(word)
    return CheckRequest(word, family, reference, options)


def targets_of(target: str | None, settings: Settings) -> list[str]:
    """What a command tries one after another: that which is named, else those of the project, else the built-in."""
    if target is None and not settings.top.targets:
        note(BUILT_IN)
    return [target] if target is not None else list(settings.top.targets) or [DEFAULT]


def settings_here(target: str | None) -> Settings:
    """The settings of this folder. Without a target and without a table, a misspelt one is refused (UsageFailure)."""
    settings = settings_of(Path.cwd())
    if target is None and not settings.place:
        refuse_misspelt(Path.cwd())
    return settings


def note_settings(
    settings: Settings,
    given: Mapping[str, Any],
    timeout: float | None,
    counted: Sequence[str] = (),
) -> None:
    """Says on stderr what is in force besides these case options and the timeout of the command line."""
    named = {} if timeout is None else {"timeout": timeout}
    if line := settings.line({**given, **named}, counted):
        note(line)


def refuse_wrong_words(request: CheckRequest, *, takes_file: bool = False) -> None:
    """Raises UsageFailure where an option has another form, or no target or reference can be meant.

    Neither the target nor torch is imported.
    """
    parse(request.options)
    refuse_unknown_family(request.family)
    if request.target in BUILTINS and not request.reference:
        return
    from ..targets.definitions import refuse_mistyped

    refuse_mistyped(request.target, takes_file=takes_file)
    if request.reference:
        refuse_mistyped(request.reference)


def count_of_workers(given: int | None, *, unless_gpu: bool = False) -> int:
    """As many as were asked for, else one a core, or one alone where they would share a GPU. Raises UsageFailure."""
    if given is not None and given < 1:
        raise UsageFailure(f"--workers must be at least 1, got {given}")
    return given or (1 if unless_gpu and has_driver() else len(os.sched_getaffinity(0)))


def refuse_timeout_here(timeout: float | None, *, isolate: bool) -> None:
    """Raises UsageFailure for a timeout of a check that this process makes."""
    if timeout is not None and not isolate:
        words = "--timeout stops a process, and --no-isolate is in this one"
        raise UsageFailure(words, "drop one of them")


def with_case_options(
    command: Callable[..., None], *, several: bool = False
) -> Callable[..., None]:
    """Gives a command every case option; it receives those given as `options`, each a list where it may be several."""

    def run(*words: Any, options: dict[str, Any], **own: Any) -> None:
        UNTESTED.set(bool(options.get("untested")))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(bounded(options.pop("max_memory", None)))
            except UsageFailure as failure:
                print_failure(failure)
                raise typer.Exit(failure.exit_code) from failure
            command(*words, **own, options=options)

    def given(help_all: bool, **words: Any) -> dict[str, Any]:
        return {name: word for name, word in words.items() if word not in (None, [])}

    rows: dict[str, tuple[Any, Any]] = {
        "help_all": (False, HelpAll),
        "max_memory": (None, Annotated[str | None, option("--max-memory")]),
    }
    rows |= {row.name: (None, _annotation(row, several)) for row in OPTIONS}
    return with_group(command, "options", given, rows, run)


def _annotation(row: Any, several: bool) -> Any:
    flags = f"{row.flag}/--no-{row.flag[2:]}" if row.kind is bool else row.flag
    kind = list[str] if row.kind is list else list[row.kind] if several else row.kind
    described = typer.Option(
        flags,
        help=row.help.replace("[", r"\["),  # brackets in a help text are markup to rich
        metavar=row.metavar,
        rich_help_panel="Case",
        show_default=False,
    )
    return Annotated[kind | None, described]


def with_group(
    command: Callable[..., None],
    name: str,
    made: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
    called: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """What typer takes for a command that receives some of its options together, made into one parameter.

    Args:
        options: by name, the default and the annotation of each.
        called: what is called in the command's place.
    """
    by_name = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(option, by_name, default=default, annotation=annotation)
        for option, (default, annotation) in options.items()
    ]
    parameters = list[inspect.Parameter]()
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        is_group = parameter.name == name
        parameters += added if is_group else [parameter.replace(kind=by_name)]

    def run(**words: Any) -> None:
        group = made(**{option: words.pop(option) for option in options})
        (called or command)(**words, **{name: group})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def with_fields(name: str, group: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of a dataclass as options; it receives them as one value of it."""
    kinds = get_type_hints(group, include_extras=True)
    options = {field.name: (field.default, kinds[field.name]) for field in fields(group)}
    return lambda command: with_group(command, name, group, options)


TYPED = frozenset(
    (
        "batch", "heads", "kv_heads", "seqlen", "seqlen_q", "seqlen_k", "head_dim", "dtype", "causal", "window",
        "bias", "tau", "device", "layout", "inputs", "details", "json_file", "html_file", "battery", "against",
        "baseline", "contract",
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
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_print_all, help="Show every option and exit."
    ),
]


class ShortHelp(TyperCommand):
    """A command whose help leaves out what is seldom typed, where it has --help-all."""

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
        self.rich_markup_mode = None if is_short else "rich"  # boxes take a third of the columns
        super().format_help(ctx, formatter)
