"""Writes the files of `gradprobe init`: a first adapter for a user's kernel."""

from __future__ import annotations

from pathlib import Path

from ..failures import UsageFailure

DEFAULT = "gradprobe_adapter.py"
FAMILIES = ("softmax", "lazy")


def write_adapter(path: Path, family: str, *, force: bool = False) -> None:
    """Writes an adapter that runs as it is, with functions `backward` and `forward`.

    Raises:
        UsageFailure: there is no such family; the path is no Python file, cannot be written, or exists without `force`.
    """
    if family not in FAMILIES:
        raise UsageFailure(f"--family must be {' or '.join(FAMILIES)}, got {family!r}")
    if path.suffix != ".py":
        raise UsageFailure(f"init writes a Python file, got {path}", f"for example {path / DEFAULT}")
    text = (Path(__file__).parent / "templates" / f"{family}.py").read_text(encoding="utf-8")
    write_new(path, text, force=force)


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Writes a new file; with `force`, also over one that exists.

    Raises:
        UsageFailure: it exists without `force`, or cannot be written.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageFailure(f"{path} is there already", "name another file, or write over it with --force") from None
    except OSError as error:
        raise UsageFailure(f"{path}: cannot be written, {error.strerror}") from error
