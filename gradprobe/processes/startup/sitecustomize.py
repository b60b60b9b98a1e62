"""Python runs this before a program that gradprobe starts, and before each Python that this one starts.

It loads one file of kernels from a copy, wherever it is imported from, or calls a function of gradprobe. The first
needs nothing but Python's own library, since the program may run under another Python than the tool.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from types import CodeType

_HERE = os.path.dirname(os.path.abspath(__file__))
# Of one copy: where it lies, and where it is told that it was loaded; and "package.module:function", called first.
_COPY, _ENTRY = "GRADPROBE_MUTANT", "GRADPROBE_ENTRY"


def load_from_copy(file: str, copy: str, loaded: str) -> None:
    """From now on Python's own loader takes the copy's text in the file's place.

    Code is compiled under the copy's name, so that all who read sources again (Triton does) read the same text; the
    module keeps the file's name, and with it its package and what lies beside it.
    """
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        try:
            is_same = os.path.samefile(self.path, file)
        except OSError:
            is_same = False
        if not is_same:
            return plain(self, fullname)
        with open(copy, "rb") as stream:
            code = compile(stream.read(), copy, "exec", dont_inherit=True)
        with open(loaded, "a") as stream_of_names:
            stream_of_names.write(f"{fullname}\n")
        return code

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]


def _enter(module: str, function: str) -> None:
    """Calls a function of this package, imported as `gradprobe` whatever the program's own search path holds."""
    package = os.path.dirname(os.path.dirname(_HERE))
    spec = importlib.util.spec_from_file_location(
        "gradprobe", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gradprobe"] = own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    getattr(importlib.import_module(module), function)()


def _the_next_one() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # else gradprobe itself imports it
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    if _COPY in os.environ:
        load_from_copy(**json.loads(os.environ[_COPY]))
    if _ENTRY in os.environ:
        try:
            _enter(*os.environ[_ENTRY].split(":"))
        except Exception as error:  # the program itself goes on
            print(f"gradprobe: cannot watch: {type(error).__name__}: {error}", file=sys.stderr)
    _the_next_one()
