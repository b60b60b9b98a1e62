"""Words of the command line that several commands share: the target, the case options, the file for JSON."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from ..commands.configuration.effective import EffectiveSettings
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
BATTERY_WORDS = "[pairs|quick]"
# By flag: what stands for its word, and its help.
_ROWS = {
    "--family": (None, "softmax or lazy (default: lazy where the target takes tau)"),
    "--reference": ("TARGET", "FILE.py:FUNCTION, a reference of your own, which is audited first"),
    "--json": ("FILE", FORMS["--json"].help),
    "--timeout": ("SECONDS", "Stop a check that takes longer"),
    "--fresh": (None, "Run with every cache of compiled kernels empty; yours are left as they are"),
    "--max-memory": ("SIZE", "The most memory to take in all, such as 3G or 500M (default: half of what is free)"),
    "--battery": (BATTERY_WORDS, "Check cases that hold every pair of properties that TARGET takes, or each property "
                  "alone (default: pairs)"),
    "--traceback": (None, "Show where a failure was raised"),
    "--fix-budget": ("N", f"Try so many edits of a wrong kernel; 0 tries none (default: {FIX_BUDGET})"),
    "--shrink-budget": ("N", "Of several checks, try so many cases in all to make the simplest that fails of each "
                        f"cause smaller; 0 makes none smaller (default: {SHRINK_BUDGET})"),
    "--isolate/--no-isolate": (None, "Run TARGET in a process of its own, or in this one for a debugger (default: its "
                               "own)"),
}  # fmt: skip
_OF_EACH = (
    "Run each case in a process of its own, so that a crash counts as a failure, or all in this one (default: all in "
    "another)"
)


def _option(flags: str, help: str = "") -> Any:
    metavar, words = _ROWS[flags]
    name = flags.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    more: dict[str, Any] = {}
    if metavar == "N" or name == "ISOLATE":  # which the environment may give too
        more = {"envvar": f"GRADPROBE_{name}", "show_envvar": False, "show_default": False}
    if metavar == "N":
        more["min"] = 0
    return typer.Option(flags, metavar=metavar, help=help or words, **more)


Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Built-in name, FILE.py:FUNCTION or MODULE:FUNCTION (default: lazy)",
    ),
]
Family = Annotated[str | None, _option("--family")]
Reference = Annotated[str | None, _option("--reference")]
JsonFile = Annotated[str | None, _option("--json")]
Isolate = Annotated[bool, _option("--isolate/--no-isolate")]
IsolateEach = Annotated[bool | None, _option("--isolate/--no-isolate", _OF_EACH)]
Timeout = Annotated[float | None, _option("--timeout")]
Fresh = Annotated[bool, _option("--fresh")]
MaxMemory = Annotated[str | None, _option("--max-memory")]
FixBudget = Annotated[int | None, _option("--fix-budget")]
ShrinkBudget = Annotated[int, _option("--shrink-budget")]
Battery = Annotated[str | None, _option("--battery")]
Traceback = Annotated[bool, _option("--traceback")]
ON_RAY = "[ADDRESS]"


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


def battery_as_told(word: str | None) -> str | bool | None:
    """--battery as a command line that repeats the check says it."""
    return True if word == AUTO else word


DEFAULT = "lazy"
BUILT_IN = f"the built-in {DEFAULT} kernel, since no target was given"
"""What is checked where no target is named."""


def request_of(
    target: str | None,
    family: str | None,
    options: Mapping[str, Any],
    reference: str | None = None,
    *,
    takes_file: bool = False,
) -> CheckRequest:
    """What the words of a command ask for.

    Args:
        takes_file: whether FILE.py is a target; else it stands for its one function that can be checked.
    """
    word = DEFAULT if target is None else target
    if word.endswith(FILES) and not takes_file:
        from ..targets.definitions import with_function

        word = with_function(word)
    return CheckRequest(word, family, reference, options)


def targets_of(target: str | None, configured: Sequence[str]) -> list[str]:
    """What a command tries one after another: the target that is named, else those of the project."""
    return [target] if target is not None else list(configured) or [DEFAULT]


def settle_default(target: str | None, effective: EffectiveSettings) -> None:
    """Says that the built-in is meant, where no target is named and none configured. Raises UsageFailure."""
    if target is None and not effective.top.targets:
        effective.refuse_misspelt()
        note(BUILT_IN)


def refuse_wrong_words(request: CheckRequest, *, takes_file: bool = False) -> None:
    """Does nothing where the options may be right and the target may be there. Neither it nor torch is imported.

    Args:
        takes_file: whether FILE.py without a function is a target.

    Raises:
        UsageFailure: an option has another form, or no target or reference can be meant; with what may be.
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
    """How many processes work at the same time: as many as were asked for, else one a core.

    Args:
        unless_gpu: whether it is one alone where they would share a GPU.

    Raises:
        UsageFailure: --workers is none.
    """
    if given is not None and given < 1:
        raise UsageFailure(f"--workers must be at least 1, got {given}")
    return given or (1 if unless_gpu and has_driver() else len(os.sched_getaffinity(0)))


def with_case_options(
    command: Callable[..., None], *, several: bool = False
) -> Callable[..., None]:
    """Gives a command every case option; it receives those given as `options`, by name.

    Args:
        several: whether each option may be given several times, and its value is the list of them.
    """

    @functools.wraps(command)
    def run(*, options: dict[str, Any], **words: Any) -> None:
        most = options.pop("max_memory", None)
        UNTESTED.set(bool(options.get("untested")))
        with _bounded(most):
            command(**words, options=options)

    rows = {option.name: (None, _annotation(option, several)) for option in OPTIONS}
    shared = {"help_all": (False, HelpAll), "max_memory": (None, MaxMemory)}
    return with_group(run, "options", _given, {**shared, **rows})


def _given(help_all: bool, **words: Any) -> dict[str, Any]:
    return {name: word for name, word in words.items() if word is not None and word != []}


def with_group(
    command: Callable[..., None],
    name: str,
    made: Callable[..., Any],
    options: Mapping[str, tuple[Any, Any]],
) -> Callable[..., None]:
    """A function that typer takes for a command which receives some of its options together, as one value.

    Args:
        name: the command's parameter, in whose place they stand.
        made: makes the value of the options by their names.
        options: by name, the default and the annotation of each.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())
    at = [parameter.name for parameter in own].index(name)
    by_name = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(option, by_name, default=default, annotation=annotation)
        for option, (default, annotation) in options.items()
    ]

    def run(**words: Any) -> None:
        group = made(**{option: words.pop(option) for option in options})
        command(**words, **{name: group})

    others = [parameter.replace(kind=by_name) for parameter in own]
    parameters = [*others[:at], *added, *others[at + 1 :]]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def with_fields(name: str, group: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the fields of a dataclass as options; it receives them as one value of it."""
    kinds = get_type_hints(group, include_extras=True)
    options = {field.name: (field.default, kinds[field.name]) for field in fields(group)}
    return lambda command: with_group(command, name, group, options)


@contextlib.contextmanager
def _bounded(word: str | None) -> Iterator[None]:
    """While open, whatever runs, in this process or another, takes no more memory than was asked for."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(bounded(word))
        except UsageFailure as failure:
            print_failure(failure)
            raise typer.Exit(failure.exit_code) from failure
        yield


def _annotation(option: Any, several: bool) -> Any:
    flags = f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag
    kind = list[str] if option.kind is list else list[option.kind] if several else option.kind
    described = typer.Option(
        flags,
        help=option.help.replace("[", r"\["),  # brackets in a help text are markup to rich
        metavar=option.metavar,
        rich_help_panel="Case",
        show_default=False,
    )
    return Annotated[kind | None, described]


def refuse_timeout_here(timeout: float | None, *, isolate: bool) -> None:
    """Raises UsageFailure for a timeout of a check that this process makes."""
    if timeout is not None and not isolate:
        words = "--timeout stops a process, and --no-isolate is in this one"
        raise UsageFailure(words, "drop one of them")


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
    """A command whose help leaves out what is seldom typed, where it has --help-all.

    --battery and --ray may stand without their word.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_word(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options: list[Any] = [one for one in self.params if one.param_type_name == "option"]
        is_short = "help_all" in [one.name for one in options] and not ctx.meta.get(_ALL)
        seldom = [one for one in options if is_short and one.name not in TYPED and not one.hidden]
        epilog, markup = self.epilog, self.rich_markup_mode
        if seldom:
            self.rich_markup_mode = None  # boxes take a third of the columns
            self.epilog = f"{len(seldom)} more options: {ctx.command_path} --help-all"
        try:
            for option in seldom:
                option.hidden = True
            super().format_help(ctx, formatter)
        finally:
            self.epilog, self.rich_markup_mode = epilog, markup
            for option in seldom:
                option.hidden = False
