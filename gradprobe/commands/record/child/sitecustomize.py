"""Python runs this before a program that `gradprobe run` starts. It prepares the wrapping of the watched function."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _gradprobe() -> None:
    """Imports this package as `gradprobe`, whatever the program's own search path holds."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    spec = importlib.util.spec_from_file_location(
        "gradprobe", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gradprobe"] = module
    spec.loader.exec_module(module)


def _the_next_one() -> None:
    """Runs the sitecustomize that this one hides, if there is any."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
if "GRADPROBE_WATCH" in os.environ:
    try:
        _gradprobe()
        from gradprobe.commands.record.child.entry import enter

        enter()
    except Exception as error:  # the program itself goes on
        print(f"gradprobe: cannot watch: {type(error).__name__}: {error}", file=sys.stderr)
_the_next_one()
