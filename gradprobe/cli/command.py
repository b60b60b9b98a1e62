"""Call: what a command line asks for. `Command` makes a command of a function that takes one."""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from ..commands.settings import Settings, refuse_misspelt, settings_of
from ..commands.suite.checking import Setting
from ..inputs import history
from ..inputs.history import CheckRequest
from ..inputs.options import parse, refuse_unknown_family
from ..inputs.versions import refuse_untested
from ..model.failures import UsageFailure, as_failure
from ..processes.resource_limits import bounded
from ..render.files import FILES, FORMS, STDERR
from ..render.terminal import note, print_failure, write_stderr
from ..targets.builtin import BUILTINS, has_driver
from ..targets.builtin import FILES as SOURCES
from . import option_rows as rows
from .report_forms import Forms, write_failure

LINE = "gradprobe.line"


@dataclass(frozen=True)
class Call:
    line: str
    target: str | None
    request: CheckRequest
    forms: Forms
    tracebacks: bool = False
    isolate: bool = True
    timeout: float | None = None
    fresh: bool = False
    fix_budget: int | None = None
    shrink_budget: int = rows.SHRINK_BUDGET

    @property
    def chosen(self) -> str:
        return rows.BUILT_IN if self.target is None else ""

    def of(self, request: CheckRequest) -> Call:
        refuse_wrong_words(request)
        return replace(self, request=request)

    def as_last(self) -> tuple[Call, bool]:
        asked = self.request
        try:
            before = history.load()
        except UsageFailure as damage:
            if self.target is None:
                raise
            note(f"{damage}: none of its options is repeated")
            before = None
        if before is None or self.target is not None and asked.target != before.target:
            return self, False
        family, reference = asked.family or before.family, asked.reference or before.reference
        options = {**before.options, **asked.options}
        return self.of(CheckRequest(before.target, family, reference, options)), True

    def settings(self) -> Settings:
        settings = settings_of(Path.cwd())
        if settings.place:
            note(f"[tool.gradprobe] of {settings.place} is in force")
        elif self.target is None:
            refuse_misspelt(Path.cwd())
        return settings

    def setting(self, settings: Settings, *, several: bool = False, **more: Any) -> Setting:
        timeout = settings.timeout(self.timeout)
        if self.timeout is not None and not self.isolate:
            words = "--timeout stops a process, and --no-isolate is in this one"
            raise UsageFailure(words, "drop one of them")
        budget = 0 if several else rows.FIX_BUDGET
        return Setting(
            self.tracebacks,
            isolate=self.isolate,
            timeout=timeout if self.isolate else None,
            fix_budget=budget if self.fix_budget is None else self.fix_budget,
            shrink_budget=self.shrink_budget,
            **more,
        )

    def targets(self, settings: Settings) -> list[str]:
        if self.target is None and settings.top.targets:
            return list(settings.top.targets)
        if self.target is None:
            note(rows.BUILT_IN)
        return [self.request.target]


def refuse_wrong_words(request: CheckRequest, *, takes_file: bool = False) -> None:
    """Raises UsageFailure of an option of another form, and where no target can be meant. Without torch."""
    parse(request.options)
    refuse_unknown_family(request.family)
    if request.target in BUILTINS and not request.reference:
        return
    from ..targets.definitions import refuse_mistyped

    refuse_mistyped(request.target, takes_file=takes_file)
    if request.reference:
        refuse_mistyped(request.reference)


def count_of_workers(given: int | None, *, unless_gpu: bool = False) -> int:
    if given is not None and given < 1:
        raise UsageFailure(f"--workers must be at least 1, got {given}")
    return given or (1 if unless_gpu and has_driver() else len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Command:
    """`@Command("target isolate")` makes a command of a function of a Call and own options.

    What it raises becomes a message, an error report in each form, and the exit code.
    """

    names: str = ""
    target: rows.Row = rows.TARGET
    takes_file: bool = False
    has_case: bool = True
    several: bool = False
    is_run: bool = True
    forms: Sequence[str] | None = None

    def __call__(self, body: Callable[..., int]) -> Callable[..., None]:
        flags = FILES.get(body.__name__, ()) if self.forms is None else self.forms
        own = dict([*inspect.signature(body, eval_str=True).parameters.items()][1:])

        def run(ctx: typer.Context, **words: Any) -> None:
            given = {name: words.pop(name) for name in own}
            max_memory = words.pop("max_memory", None)
            call = self._call(words, flags, ctx.meta[LINE])
            try:
                with self._surroundings(call, max_memory):
                    code = body(call, **given)
            except Exception as error:
                failure = as_failure(error)
                trace = traceback.format_exception(error) if call.tracebacks else ()
                write_stderr("".join(trace))
                print_failure(failure)
                name = call.request.target if "target" in self.names else ""
                code = write_failure(call.forms, failure, call.line, name)
            raise typer.Exit(code)

        shared = {**rows.SHARED, "target": self.target}
        taken = {name: shared[name] for name in (*self.names.split(), "traceback")}
        taken |= rows.form_rows(flags)
        taken |= rows.case_rows(several=self.several) if self.has_case else {}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("ctx", kind, annotation=typer.Context)]
        parameters += [parameter.replace(kind=kind) for parameter in own.values()]
        for name, (default, words) in taken.items():
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=words))
        run.__name__, run.__doc__ = body.__name__, body.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        return run

    @contextlib.contextmanager
    def _surroundings(self, call: Call, max_memory: str | None) -> Iterator[None]:
        if self.is_run and not call.request.options.get("untested"):
            refuse_untested()
        with bounded(max_memory), contextlib.ExitStack() as stack:
            if call.fresh:
                from ..processes.child import fresh_caches

                stack.enter_context(fresh_caches())
            call.forms.refuse_one_file_twice()
            single = replace(call.request, options={}) if self.several else call.request
            refuse_wrong_words(single, takes_file=self.takes_file)
            yield

    def _call(self, words: dict[str, Any], flags: Sequence[str], line: str) -> Call:
        words.pop("help_all", None)
        files = {}
        for flag in flags:
            if file := words.pop(flag[2:]):
                files[flag] = file if FORMS[flag].unfinished else STDERR
        forms, tracebacks = Forms(files, words.pop("details", True)), words.pop("traceback")
        target: str | None = words.pop("target", None)
        family, reference = words.pop("family", None), words.pop("reference", None)
        how = {name: words.pop(name) for name in self.names.split() if name in words}
        options = {name: word for name, word in words.items() if word not in (None, [])}
        word = rows.DEFAULT if target is None else target
        if word.endswith(SOURCES) and not self.takes_file:
            from ..targets.definitions import with_function

            word = with_function(word)
        request = CheckRequest(word, family, reference, options)
        return Call(line, target, request, forms, tracebacks, **how)
