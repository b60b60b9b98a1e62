"""A gate's processes load the copy, however they import the file; the file itself is never written."""

import py_compile
import subprocess
import sys

import pytest

from gradprobe.commands.mutants import Shadow

PLAIN, MUTATED = "VALUE = 1\n", "VALUE = 2\n"
BY_FILE = (
    "import importlib.util as u; s = u.spec_from_file_location('other', {path!r}); m = u.module_from_spec(s);"
    "s.loader.exec_module(m); print(m.VALUE)"
)


@pytest.fixture
def shadow(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(PLAIN)
    shadow = Shadow(package / "kernels.py", tmp_path / "copies" / "one")
    shadow.write(MUTATED)
    return shadow


def said(shadow, program, **more):
    one = shadow.program([sys.executable, "-c", program], PYTHONDONTWRITEBYTECODE="", **more)
    ran = subprocess.run(
        one.command, capture_output=True, text=True, env=one.environment,
        cwd=shadow.file.parents[1], check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.strip()


def test_every_import_of_the_file_loads_the_copy_and_another_file_of_its_name_does_not(shadow):
    folder = shadow.file.parents[1]
    (folder / "linked.py").symlink_to(shadow.file)
    (folder / "kernels.py").write_text("VALUE = 7\n")
    assert said(shadow, "import kernels; print(kernels.VALUE)") == "7"
    assert not shadow.was_loaded
    assert said(shadow, "import linked; print(linked.VALUE)") == "2"
    assert said(shadow, BY_FILE.format(path=str(shadow.file))) == "2"
    inner = "from package.kernels import VALUE; print(VALUE)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    assert said(shadow, outer) == "2"
    assert shadow.was_loaded
    assert shadow.file.read_text() == PLAIN


def test_compiled_code_of_the_file_as_it_is_neither_hides_the_copy_nor_is_replaced(shadow):
    py_compile.compile(str(shadow.file), doraise=True)
    assert said(shadow, "from package.kernels import VALUE; print(VALUE)") == "2"
    words = [sys.executable, "-c", "from package.kernels import VALUE; print(VALUE)"]
    plain = subprocess.check_output(words, text=True, cwd=shadow.file.parents[1])
    assert plain == "1\n"


def test_the_module_keeps_its_file_and_package_and_sources_are_those_of_the_copy(shadow):
    shadow.copy.write_text("from . import __name__ as package\nVALUE = 2\ndef f(): return 22\n")
    program = "import inspect, package.kernels as k; print(k.__file__, k.package, inspect.getsource(k.f).split()[-1])"
    assert said(shadow, program) == f"{shadow.file} package 22"
