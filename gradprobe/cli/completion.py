"""`gradprobe --install-completion`: says what to add to a shell's start file. No file of the user's is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..model.failures import UsageFailure
from ..render.terminal import print_failure, write_stdout

INSTALL, SHOW = "--install-completion", "--show-completion"
# What a person runs once in each shell. The script is the same until the parser is another one.
_STEPS = {
    "bash": (
        "gradprobe --show-completion > ~/.gradprobe-completion.bash",
        "echo 'source ~/.gradprobe-completion.bash' >> ~/.bashrc",
    ),
    "zsh": (
        "gradprobe --show-completion > ~/.gradprobe-completion.zsh",
        "echo 'autoload -Uz compinit && compinit; source ~/.gradprobe-completion.zsh' >> ~/.zshrc",
    ),
    "fish": ("gradprobe --show-completion > ~/.config/fish/completions/gradprobe.fish",),
}


def with_our_words(parameters: Iterable[Any]) -> list[Any]:
    """The parser's parameters, of which typer's own that installs completion says instead what to run."""
    found = list(parameters)
    for parameter in found:
        if INSTALL in parameter.opts:
            parameter.callback, parameter.help = _tell_steps, "Say what to run for completion in your shell"
        if SHOW in parameter.opts:
            parameter.help = "Print the script of that completion"
    return found


def _tell_steps(context: Any, parameter: Any, value: Any) -> Any:
    """Prints the steps for the shell that is named, or else for the one that this runs in, and ends the command."""
    if not value or context.resilient_parsing:
        return value
    shell = value if isinstance(value, str) else _shell()
    if shell not in _STEPS:
        failure = UsageFailure(f"{INSTALL}: no steps are known for {shell!r}", f"known: {', '.join(_STEPS)}")
        print_failure(failure)
        context.exit(failure.exit_code)
    steps = "".join(f"  {step}\n" for step in _STEPS[shell])
    write_stdout(f"For completion in {shell}, run this once; it works in every shell that you open then:\n\n{steps}")
    context.exit(0)
    return None


def _shell() -> str:
    try:
        import shellingham  # type: ignore[import-untyped]

        return str(shellingham.detect_shell()[0])
    except (ImportError, RuntimeError, OSError):  # what is none that it knows, or cannot be asked
        return os.path.basename(os.environ.get("SHELL", "")) or "this shell"
