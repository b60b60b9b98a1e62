"""`gradprobe audit`, `doctor`, `explain`, `lint`, `run` and `init`."""

import inspect
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ..commands import starter_files as starter
from ..inputs.history import CheckRequest
from ..inputs.options import FAMILIES
from ..model.assignment import PLAIN
from ..model.documents import Reports
from ..model.failures import UsageFailure
from ..model.layout_run import MATCH
from ..render.terminal import Progress, note, width, write_stdout
from .command import Call, Command
from .option_rows import DEFAULT, argument, option
from .own_process import apart
from .report_forms import show_document

_REFERENCE = argument("REFERENCE", "FILE.py:FUNCTION or MODULE:FUNCTION")
_CLIMBED = argument("TARGET", "As for check; without it, the machine is examined")
_READ = argument("TARGET", "FILE.py, or as for check (default: lazy)")
_PATH = f"The file to write (default: {starter.ADAPTER}, or the workflow's)"
_FAMILY = f"Family of your kernel: {' or '.join(FAMILIES)} (default: softmax)"
_TARGET = "What the workflow checks (default: pyproject.toml's, else lazy)"
_CI = "Write a workflow for github, and no adapter"
_LIST = "List the built-in targets"
_JSON = "Write that list as JSON; - for stdout"
_WORD = "A fault (stride/do-head), class (S1), rule (GP010) or budget (tf32)"
_COMMAND = "The command that runs the program"
_WATCH = "MODULE:FUNCTION, the attention to watch"
_CHECKED = "What to check with the real inputs (default: FUNCTION)"
_ORDER = "Axes of FUNCTION, bhld or blhd"


@Command("target family isolate", target=(inspect.Parameter.empty, Annotated[str, _REFERENCE]))
def audit(call: Call) -> int:
    """Judge a reference of your own, and name its first wrong formula with its line.

    It is called as its parameters' names say, in torch or numpy. A wrong one exits with 1.
    """
    from ..commands.audit_request import audited

    report = apart(call, audited, call.request)
    call.forms.show(report)
    code = 0 if report.verdict == MATCH else 1
    return call.forms.write(Reports(reports=(report,)), code)


@Command(
    "target family fresh timeout", target=(None, Annotated[str | None, _CLIMBED]), is_run=False
)
def doctor(call: Call) -> int:
    """Climb a ladder from the simplest kernels up, on this machine or with TARGET, and say what really runs.

    Look at the first rung that is not green: what it needs more than the one below it is at fault.
    """
    from ..commands.doctor.examination import as_json, examine, render_examination

    request, line = call.request, "gradprobe doctor"
    if call.target is not None:
        from ..commands.doctor.ladder import refuse_set

        refuse_set(request)
        line = request.command("doctor", fresh=call.fresh or None)
    elif request.options or request.family:
        words = "doctor takes a case with a TARGET alone"
        raise UsageFailure(words, "name what is to be climbed with")
    with Progress() as tick:
        made = examine(request if call.target else None, line, call.timeout, tick)
    show_document(call.forms.json, as_json(made), render_examination(made, width()))
    return made.exit_code


@Command(
    "target family isolate",
    target=(None, Annotated[str | None, _READ]),
    takes_file=True,
    has_case=False,
)
def lint(call: Call) -> int:
    """Read a Triton kernel's pointers, and name each that advances by another tensor's stride, without a number run.

    Which tensor a pointer is, and whose a stride is, the names of the kernel's parameters say.
    """
    return apart(call, _linted, call.request, call.forms.json)


def _linted(request: CheckRequest, json_file: str | None) -> int:
    from ..commands.kernel_reading import inquire, lint_as_json, render_lint

    inquiry = inquire(request.target, request.family)
    show_document(json_file, lint_as_json(inquiry), render_lint(inquiry, width()))
    return 1 if inquiry.findings else 0


@Command(has_case=False, is_run=False)
def explain(call: Call, word: Annotated[str | None, argument("WORD", _WORD)] = None) -> int:
    """Say what a word of a report means, how it looks, where it was seen, and what to try; without one, list all."""
    from ..commands.explain import explained

    if not sys.stdout.isatty():
        write_stdout(explained(word))
    else:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(explained(word)))
    return 0


@Command("family reference isolate")
def run(
    call: Call,
    program: Annotated[list[str] | None, argument("-- COMMAND ...", _COMMAND)] = None,
    watch: Annotated[str | None, option("--watch", _WATCH, "FUNCTION")] = None,
    target: Annotated[str | None, option("--target", _CHECKED, "TARGET")] = None,
    keep: Annotated[int, option("--keep", "The most sets of inputs to keep")] = 16,
    order: Annotated[str, option("--order", _ORDER)] = PLAIN,
) -> int:
    """Run a program with its attention function watched, and check that with the program's real inputs and dO.

    The program runs unmodified. Of each shape and layout that the function is called with, its tensors are kept once.
    """
    if watch is None:
        raise UsageFailure("run: nothing to watch", "add --watch MODULE:FUNCTION")
    from ..commands.record.replay import capture_plan, replay_plan, run_watched
    from ..commands.suite.checking import Setting
    from ..commands.suite.runner import Runner
    from .checks import check_several

    keeping = capture_plan(watch, keep, order)
    call = call.of(replace(call.request, target=target or DEFAULT))
    ended = run_watched(program or [], watch, keeping, quiet=call.forms.on_stdout)
    for line in ended.sentences(watch):
        note(line)
    # The same function takes its tensors as it did when it was watched.
    shapes = {"shapes": order} if target is None and order != PLAIN else {}
    options = {**shapes, **call.request.options}
    request = replace(call.request, target=target or watch, options=options)
    how = Setting(call.tracebacks, isolate=call.isolate)
    return check_several(Runner(replay_plan(ended, request), how), call.forms)


@Command(has_case=False, is_run=False)
def init(
    call: Call,
    path: Annotated[str | None, argument("PATH", _PATH)] = None,
    family: Annotated[str | None, option("--family", _FAMILY)] = None,
    ci: Annotated[str | None, option("--ci", _CI, "NAME")] = None,
    target: Annotated[str | None, option("--target", _TARGET, "TARGET")] = None,
    is_listed: Annotated[bool, option("--list", _LIST)] = False,
    json_file: Annotated[str | None, option("--json", _JSON)] = None,
    force: Annotated[bool, option("--force", "Write over a file that is there")] = False,
) -> int:
    """Write a commented adapter for a kernel of your own, which runs and matches as it is; or a CI workflow.

    With --list nothing is written: it says what each built-in target takes and exposes.
    """
    given = {"ci": ci, "family": family, "target": target, "json": json_file, "force": force}
    what, taken = "an adapter", "family force"
    if is_listed:
        what, taken = "--list", "json"
        if path is not None:
            way_out = f"gradprobe check {path} checks its function, or names each"
            raise UsageFailure(f"init --list lists what is built in, and not {path}", way_out)
    elif ci is not None:
        what, taken = "--ci", "ci target force"
    for name, word in given.items():
        if word and name not in taken.split():
            raise UsageFailure(f"init: --{name} says nothing of {what}", f"drop --{name}")
    if is_listed:
        listed = starter.listed_targets()
        document = {"schema": "gradprobe.targets/1", "targets": listed}
        show_document(json_file, document, starter.render_targets(listed, width()))
        return 0
    steps = []
    if ci is not None:
        path = path or starter.WORKFLOW
        starter.write_workflow(Path(path), ci, target, force=force)
        wheel = starter.wheel_command()
        added = [starter.VENDOR, path] if wheel else [path]
        steps += [wheel] if wheel else []
        steps.append(f"{shlex.join(['git', 'add', *added])}, commit and push")
    else:
        path = path or starter.ADAPTER
        starter.write_adapter(Path(path), family or FAMILIES[0], force=force)
        steps.append(shlex.join(["gradprobe", "check", f"{path}:backward"]))
    write_stdout(f"wrote {path}\n" + "".join(f"next: {step}\n" for step in steps))
    if ci is not None and not Path(".git").exists():
        note("GitHub reads workflows at the root of a repository, which this folder is not")
    return 0
