"""Words of the command line that several commands share: the target, the case options, the file for JSON."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..commands.configuration.effective import EffectiveSettings
from ..inputs.history import CheckRequest
from ..inputs.options import OPTIONS, parse, refuse_unknown_family
from ..model.documents import AUTO, BATTERIES
from ..model.failures import UsageFailure
from ..processes.resource_limits import bounded
from ..render.files import FORMS
from ..render.terminal import note, print_failure
from ..targets.builtin import BUILTINS, FILES, has_driver

UNTESTED = ContextVar("UNTESTED", default=False)
"""Whether the command goes on with versions that gradprobe is not tested with."""
FIX_BUDGET, SHRINK_BUDGET = 40, 60
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="Built-in name, FILE.py:FUNCTION or MODULE:FUNCTION (default: lazy)",
    ),
]
Family = Annotated[
    str | None, typer.Option(help="softmax or lazy (default: lazy where the target takes tau)")
]
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET", help="FILE.py:FUNCTION, a reference of your own, which is audited first"
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help=FORMS["--json"].help)
]
Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate/--no-isolate",
        envvar="GRADPROBE_ISOLATE",
        show_envvar=False,
        show_default=False,
        help="Run TARGET in a process of its own, or in this one for a debugger (default: its own)",
    ),
]
IsolateEach = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate",
        envvar="GRADPROBE_ISOLATE",
        show_envvar=False,
        show_default=False,
        help="Run each case in a process of its own, so that a crash counts as a failure, or all in this one (default: "
        "all in another)",
    ),
]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Stop a check that takes longer")
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Run with every cache of compiled kernels empty; yours are left as they are",
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="The most memory to take in all, such as 3G or 500M (default: half of what is free)",
    ),
]
FixBudget = Annotated[
    int | None,
    typer.Option(
        "--fix-budget",
        metavar="N",
        envvar="GRADPROBE_FIX_BUDGET",
        show_envvar=False,
        min=0,
        help=f"Try so many edits of a wrong kernel; 0 tries none (default: {FIX_BUDGET})",
    ),
]
ShrinkBudget = Annotated[
    int,
    typer.Option(
        "--shrink-budget",
        metavar="N",
        envvar="GRADPROBE_SHRINK_BUDGET",
        show_envvar=False,
        show_default=False,
        min=0,
        help="Of several checks, try so many cases in all to make the simplest that fails of each cause smaller; 0 "
        f"makes none smaller (default: {SHRINK_BUDGET})",
    ),
]
BATTERY_WORDS = "[pairs|quick]"
Battery = Annotated[
    str | None,
    typer.Option(
        "--battery",
        metavar=BATTERY_WORDS,
        help="Check cases that hold every pair of properties that TARGET takes, or some thirty that each expose what "
        "others hide (default: pairs)",
    ),
]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where a failure was raised")]


ON_RAY = "[ADDRESS]"


def _is_battery(word: str) -> bool:
    """Whether a word behind --battery is its own, or nearly: then it is no target."""
    import difflib

    near = difflib.get_close_matches(word, BATTERIES, 1)
    return word in BATTERIES or (
        bool(near) and word not in BUILTINS and not {":", "."} & set(word)
    )


# What stands in the place of a word that is left out, and whether the next word is one.
_WORDED: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "--battery": (AUTO, _is_battery),
    "--ray": ("local", re.compile(r"auto|local|(ray://)?[^\s/]+:\d+").fullmatch),
}


def with_word(words: Sequence[str]) -> list[str]:
    """The words of a command line in which --battery or --ray stands without one, as the parser takes them."""
    told = [*words, ""]
    end = told.index("--") if "--" in told else len(words)
    found = list(words)
    for at in (at for at in range(end) if told[at] in _WORDED):
        word, is_one = _WORDED[told[at]]
        found[at] = told[at] if is_one(told[at + 1]) else f"{told[at]}={word}"
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
    """Says that the built-in is meant, where no target is named and none configured.

    Raises:
        UsageFailure: a table may be meant that is not read.
    """
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
    from ..targets.mistyped import refuse_mistyped

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
    own = list(inspect.signature(command, eval_str=True).parameters.values())

    def run(**words: Any) -> None:
        word, _ = words.pop("max_memory"), words.pop("help_all")
        options = {option.name: words.pop(option.name) for option in OPTIONS}
        given = {name: word for name, word in options.items() if word is not None and word != []}
        UNTESTED.set(bool(given.get("untested")))
        with _bounded(word):
            command(**words, options=given)

    added = [
        ("help_all", HelpAll),
        ("max_memory", MaxMemory),
        *((option.name, _annotation(option, several)) for option in OPTIONS),
    ]
    parameters = [parameter for parameter in own if parameter.name != "options"]
    defaults = {"help_all": False}
    more = [parameter_of(name, defaults.get(name), kind) for name, kind in added]
    return written_as(run, command, [*parameters, *more])


def with_group(
    name: str, made: Callable[..., Any], options: Mapping[str, tuple[Any, Any]]
) -> Callable[..., Any]:
    """Gives a command options that it receives together, as one value made of them by their names.

    Args:
        options: by name, the default and the annotation of each.
    """

    def given(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()

        def run(**words: Any) -> None:
            group = made(**{option: words.pop(option) for option in options})
            command(**words, **{name: group})

        added = [parameter_of(option, *told) for option, told in options.items()]
        return written_as(
            run, command, [*(parameter for parameter in own if parameter.name != name), *added]
        )

    return given


def parameter_of(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """An option of a command, as its signature tells it to typer."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def written_as(
    run: Callable[..., None],
    command: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
) -> Callable[..., None]:
    """A function that typer takes for the command, with other parameters, all by name."""
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters
    ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


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
    # Square brackets in a help text are markup to rich.
    described = typer.Option(
        flags,
        help=option.help.replace("[", r"\["),
        metavar=option.metavar,
        rich_help_panel="Case",
        show_default=False,
    )
    return Annotated[kind | None, described]


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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._typed_alone(ctx):
            super().format_help(ctx, formatter)

    @contextlib.contextmanager
    def _typed_alone(self, ctx: Any) -> Iterator[None]:
        """While open, other options are hidden."""
        options = [
            one
            for one in self.params
            if one.param_type_name == "option" and not getattr(one, "hidden", False)
        ]
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
