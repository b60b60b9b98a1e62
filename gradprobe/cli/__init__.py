"""The command line: options -> probe -> report -> exit code. The only folder that imports typer."""

from .app import app, main

__all__ = ["app", "main"]
