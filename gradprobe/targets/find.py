"""A word, or a function, as a Target."""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..frontends.triton import gpu_stood_in
from ..model import failures
from ..model.assignment import OUTPUTS, PLAIN
from ..model.case import NUMBER, PAIR
from ..model.failures import Failure, TargetFailure, UsageFailure, did_you_mean, refuse_if
from ..source.triton_source import kernel_below
from . import naming
from .builtin import BUILTINS, FILES, Builtin, has_driver
from .naming import LoadedSource, is_autograd_function, readable, source_of
from .surroundings import Surroundings, keeping_warnings, kept_warnings, warning_lines


@dataclass(frozen=True)
class Target:
    name: str  # as the user wrote it; of a function, its word or its file and qualified name
    function: Callable[..., Any]
    takes: Mapping[str, str]  # canonical argument name -> the parameter's own name
    required: frozenset[str]
    family: str
    source: LoadedSource
    surroundings: Surroundings = field(default_factory=Surroundings, compare=False)
    # In a rank, what of WORLD it can be passed.
    world: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # What runs it in several ranks: see `probing.observe`.
    ranks: Callable[..., Any] | None = field(default=None, compare=False)
    window_form: str = PAIR
    # Of a reference: the axes of the tensors that it takes; `implied`: what it does by itself.
    shapes: str = PLAIN
    implied: tuple[str, ...] = ()

    @property
    def is_backward(self) -> bool:
        """Else it is differentiated through autograd."""
        return "do" in self.takes

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name in OUTPUTS if self.is_backward and name in self.takes)

    @property
    def packs(self) -> bool:
        """Whether it takes sequences end to end, and not padded."""
        packed = {"cu_seqlens", "cu_seqlens_q"} & self.takes.keys()
        return bool(packed) and "seqlens" not in self.takes


def find_target(subject: str | Callable[..., Any], family: str | None = None) -> Target:
    """UsageFailure: there is none, or a parameter means nothing; TargetFailure: it cannot run."""
    changes = Surroundings()
    if isinstance(subject, str):
        word, (function, source) = subject, _found(subject, changes)
    else:
        word, function = naming.name_of(subject), readable(subject)
        source = source_of(function)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        words = f"target {word!r} has no readable signature"
        raise UsageFailure(words, "wrap it in a function with named parameters") from None
    takes, required = parameters_of(signature, word)
    form = _window_form(signature.parameters[takes["window"]]) if "window" in takes else PAIR
    family = family or ("lazy" if "tau" in takes else "softmax")
    about = word, function, takes, required, family, source, changes
    return Target(*about, window_form=form)


def _found(word: str, changes: Surroundings) -> tuple[Callable[..., Any], LoadedSource]:
    spec = word
    if builtin := BUILTINS.get(word):
        if why := missing(builtin):
            words = f"target {word!r} cannot run here: it {why}"
            raise TargetFailure(words, "gradprobe init --list says what can")
        spec = builtin.spec
    place, name = parts_of(spec)
    if place.endswith(".cu"):
        from ..frontends.cuda.host_code import host_function

        file = existing_file(place, word).resolve()
        function, line = host_function(file, name, word)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return function, LoadedSource(name, str(file), line, digest)
    load = load_file if place.endswith(".py") else _load_module
    module = load(place, word, changes)
    function = function_in(module, name, word)
    return function, source_of(function, module)


def parts_of(word: str) -> tuple[str, str]:
    place, _, name = word.rpartition(":")
    is_module = all(place.split(".")) and not set(place) & {":", "/"}
    if not name or not (is_module or place.endswith(FILES)):
        words = f"target {word!r} is neither a built-in nor FILE.py:FUNCTION nor MODULE:FUNCTION"
        raise UsageFailure(words, did_you_mean(word, BUILTINS, "built in"))
    return place, name


def missing(builtin: Builtin) -> str:
    """Why it cannot run here, or ""."""
    if not builtin.cuda:
        return ""
    if "torch" in sys.modules or has_driver():
        import torch

        if torch.cuda.is_available():
            return ""
    return "needs a CUDA device"


def load_file(name: str, word: str, changes: Surroundings) -> ModuleType:
    path = existing_file(name, word).resolve()
    packages = _packages(path.parent)
    # A name of its own, so that a file called like an installed module cannot be mistaken for it.
    name = ".".join([*(folder.name for folder in packages), f"gradprobe_target_{path.stem}"])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageFailure(f"target {word!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # The folder of a package's file behind the others: its modules may be named as the standard library's are.
    _search((packages or [path])[0].parent, 0)
    _search(path.parent, len(sys.path))
    _importing(partial(spec.loader.exec_module, module), word, changes)
    return module


def _search(folder: Path, at: int) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(at, str(folder))


def existing_file(name: str, word: str) -> Path:
    path = Path(name)
    if not path.is_file():
        meant = did_you_mean(str(path), map(str, path.parent.glob("*.py")), "")
        way_out = meant or "the path is relative to the current folder"
        raise UsageFailure(f"target {word!r}: there is no file {path}", way_out)
    return path


def _packages(folder: Path) -> list[Path]:
    return [*_packages(folder.parent), folder] if (folder / "__init__.py").is_file() else []


def _load_module(name: str, word: str, changes: Surroundings) -> ModuleType:
    _search(Path.cwd(), 0)
    try:
        module: ModuleType = _importing(partial(importlib.import_module, name), word, changes)
    except TargetFailure as failure:
        cause = failure.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            meant = did_you_mean(name, (file.stem for file in Path.cwd().glob("*.py")), "")
            way_out = meant or "is its folder the current one, or installed?"
            raise UsageFailure(f"target {word!r}: there is no module {name}", way_out) from None
        raise
    return module


def _importing(load: Callable[[], Any], word: str, changes: Surroundings) -> Any:
    try:
        with gpu_stood_in(), changes.inside(), keeping_warnings():
            return load()
    except (Failure, KeyboardInterrupt):
        raise
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        # Of an exception without a message its line: `kernels.py:12: assert torch.cuda.is_available()`.
        where = f"{Path(place.filename).name}:{place.lineno}: {place.line}"
        is_exit = isinstance(error, SystemExit) and error.code is None
        words = "it calls exit()" if is_exit else failures.text_of(error) or where
        message = f"target {word!r} fails to import: {type(error).__name__}: {words}"
        details = warning_lines(kept_warnings())
        raise TargetFailure(message, "--traceback shows where", details) from error


def function_in(module: ModuleType, name: str, word: str) -> Callable[..., Any]:
    """Or UsageFailure. The forward or backward of an autograd.Function means its `apply`."""
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            raise no_function(str(module.__file__), name, word, sorted(callables(module)))
        if not (part in ("forward", "backward") and is_autograd_function(function)):
            function = getattr(function, part)
    is_plain = inspect.isfunction(function) or "triton.runtime" not in sys.modules
    if not callable(function):
        why, way_out = f"{name} is not a function but {type(function).__name__}", ""
    elif not is_plain and kernel_below(function) is not None:
        why = f"{name} is a Triton kernel"
        way_out = "name a function that launches it; gradprobe init writes one"
    elif isinstance(function, type) and not is_autograd_function(function):
        why = f"the class {name} is no torch.autograd.Function"
        way_out = "name a function that makes and calls it"
    else:
        return readable(function)
    raise UsageFailure(f"target {word!r}: {why}", way_out)


def no_function(file: str, name: str, word: str, own: list[str]) -> UsageFailure:
    words = f"target {word!r}: {file} has no function {name}"
    return UsageFailure(words, did_you_mean(name, own, "it has"))


def callables(module: ModuleType) -> Iterator[str]:
    for key, value in vars(module).items():
        is_public = inspect.isfunction(value) and not key.startswith("_")
        if is_public or is_autograd_function(value):
            # A file may import itself, by another name.
            other = sys.modules.get(value.__module__)
            file = getattr(other, "__file__", "")
            if value.__module__ == module.__name__ or file == module.__file__:
                yield key


def _window_form(parameter: inspect.Parameter) -> str:
    words = inspect.formatannotation(parameter.annotation)
    is_int = re.search(r"\bint\b", words) and not re.search(r"(?i)tuple|list|sequence", words)
    return NUMBER if is_int or type(parameter.default) is int else PAIR


def parameters_of(
    signature: inspect.Signature, word: str
) -> tuple[dict[str, str], frozenset[str]]:
    takes, required = dict[str, str](), set[str]()
    for name, canonical in naming.meanings(signature.parameters).items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            words = f"target {word!r} takes {parameter}; arguments are passed by name"
            raise UsageFailure(words, "wrap it: def attention(q, k, v): return f(q, k, v)")
        is_needed = parameter.default is parameter.empty
        if canonical is None:
            words = f"target {word!r} needs a parameter {name!r} that gradprobe has no value for"
            way_out = (
                "wrap it in a function that passes it (gradprobe init); known, with synonyms: "
            )
            way_out += ", ".join(dict.fromkeys(naming.CANONICAL.values()))
            refuse_if(is_needed, words, way_out)
            continue
        words = f"target {word!r} takes both {takes.get(canonical)!r} and {name!r}, which mean one thing"
        refuse_if(canonical in takes, words, "keep one")
        takes[canonical] = name
        required |= {canonical} if is_needed else set()
    absent = [name for name in ("q", "k", "v") if name not in takes]
    words = f"target {word!r} does not take {', '.join(absent)}"
    refuse_if(bool(absent), words, "an attention takes q, k and v")
    return takes, frozenset(required)
