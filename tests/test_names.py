"""One name has one meaning: no file and no class of the package is called like another, and few names say nothing."""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "gradprobe"
APART = {PACKAGE / "kernels", PACKAGE / "reference"}
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if APART.isdisjoint(file.parents)]
TREES = {file: ast.parse(file.read_text()) for file in FILES}
SAYING_NOTHING = {"told", "words", "made", "seen", "came", "left", "known", "held"}
NO_NOUNS = {
    *("Above", "After", "Again", "Ahead", "Before", "Beforehand", "Below", "Beside", "Beyond"),
    *("Built", "Drawn", "Found", "Given", "Heard", "Held", "Known", "Later", "Least", "Left"),
    *("Made", "Otherwise", "Ran", "Seen", "Shown", "Shrunk", "Sought", "Told", "Unfit", "Where"),
    *("Whole", "Wide", "Written", "Unwritten"),
}
SINGLE_PARTICIPLE = re.compile(r"[A-Z][a-z]+ed")
# Lines of a loop in which its variable may be called one: the head, and two more.
SHORT = 3


def test_no_file_is_called_like_another():
    names = Counter(file.name for file in FILES if not file.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_class_of_a_module_is_called_like_another():
    names = Counter[str]()
    for tree in TREES.values():
        names.update(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_class_has_a_participle_or_a_preposition_for_its_name():
    nodes = list(itertools.chain(*map(ast.walk, TREES.values())))
    names = {node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef)}
    assert sorted(names & NO_NOUNS) == []
    assert sorted(name for name in names if SINGLE_PARTICIPLE.fullmatch(name)) == []


def test_no_function_has_a_participle_for_its_name():
    found = []
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            name = node.name.removeprefix("_") if isinstance(node, ast.FunctionDef) else ""
            if name in SAYING_NOTHING:
                found.append(f"{file.name}:{node.lineno}")
    assert found == []


def test_one_is_the_variable_of_a_short_loop_alone():
    assert list(_long_uses_of_one()) == []


def _long_uses_of_one() -> Iterator[str]:
    """The parameters called one, what is assigned to it, and the longer loops over it."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            is_long = isinstance(node, ast.For) and (node.end_lineno or 0) - node.lineno >= SHORT
            targets: list[ast.AST] = []
            if isinstance(node, ast.arg):
                targets = [ast.Name(node.arg)]
            elif isinstance(node, ast.Assign):
                targets = [*node.targets]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) or is_long:
                targets = [node.target]
            names = {
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
            if "one" in names:
                yield f"{file.name}:{node.lineno}"
