"""`assert_backward_matches`: the verdict and the very table of `gradprobe check`, for a function as for a word."""

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gradprobe.model.failures import Failure, TargetFailure, UsageFailure
from gradprobe.pipeline.reported import report_of
from gradprobe.testing import assert_backward_matches
from gradprobe.testing.assertion import report_on
from tests.auditing import written
from tests.cli.command import ROOT, SMALL, run
from tests.cli.written_targets import softmax_targets, write_targets
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("without_causes")

OF_SMALL = {"batch": 1, "heads": 2, "seqlen": 20, "head_dim": 8}
SOFT = "soft.py:backward"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_targets(tmp_path)
    return tmp_path


def attention(q, k, v, *, scale, is_causal=False):
    s = scale * q @ k.mT
    if is_causal:
        s = s.masked_fill(
            torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf
        )
    return s.softmax(-1) @ v


def off(change, q, k, v, *, scale):
    """Wrong in head 1 alone: of a target that is wrong throughout every other meaning would be tried."""
    o = attention(q, k, v, scale=scale)
    return torch.cat([o[:, :1], change * o[:, 1:]], 1)


def too_large(q, k, v, *, scale):
    return off(1.01, q, k, v, scale=scale)


def table_of(target, **options):
    with pytest.raises(AssertionError) as caught:
        assert_backward_matches(target, **{**OF_SMALL, **options})
    return str(caught.value)


def test_a_target_that_matches_returns_its_report():
    report = assert_backward_matches(attention, heads=4, causal=True)
    assert (report.verdict, report.case.heads, report.case.causal) == ("match", 4, True)
    assert [run.layout for run in report.runs] == ["contiguous", "distinct", "do=expanded"]
    assert report_of(report).compared.elements == sum(
        finding.total for _, measured in report.measured for finding in measured.comparison.findings.values()
    ) > 4 * 72 * 72  # fmt: skip


@pytest.mark.usefixtures("with_causes")
@sampled(
    "name", ["doubled_dq", "nan_in_dk", "infinite_dq", "leaky_p", "half_a_delta_inside"], push=2
)
def test_the_message_of_a_mismatch_is_the_table_that_the_command_prints(name):
    ran = run(f"check soft.py:{name} {SMALL}", GRADPROBE_DETAILS="0")
    table = table_of(f"soft.py:{name}")
    assert (ran.code, table.startswith("MISMATCH  ")) == (1, True)
    assert table.count("\nFIRST MISMATCH ") == 1
    assert f"again: gradprobe check soft.py:{name} {SMALL}" in table
    assert table.splitlines()[:-1] == ran.out.splitlines()[:-1]
    assert [text.splitlines()[-1] for text in (table, ran.out)] == [
        "  more: the same with --details", "  more: gradprobe show"
    ]  # fmt: skip


def test_the_table_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    table = table_of("soft.py:leaky_p")
    greppable = ("FIRST MISMATCH ", "  again: ")
    assert max(len(line) for line in table.splitlines() if not line.startswith(greppable)) <= 72
    ran = run(f"check soft.py:leaky_p {SMALL}", COLUMNS="72", GRADPROBE_DETAILS="0")
    assert table.splitlines()[:-1] == ran.out.splitlines()[:-1]


def test_a_function_is_repeated_by_the_word_of_its_file(monkeypatch):
    monkeypatch.chdir(ROOT)
    module = sys.modules[__name__]
    word = "tests.testing.test_assertion:too_large"
    table = table_of(module.too_large, causal=None, layout="do=blhd", recover=False)
    again = table.splitlines()[-2]
    assert again == f"  again: gradprobe check {word} {SMALL} --layout do=blhd --no-recover"
    first = [line for line in table.splitlines() if line.startswith("FIRST MISMATCH ")]
    assert run(again.partition("gradprobe ")[2]).first_mismatches == first


def made_inside(change):
    def backward(q, k, v, do, *, scale):
        return {"O": off(change, q, k, v, scale=scale)}

    return backward


class Scaled:
    def __init__(self, change):
        self.change = change

    def __call__(self, q, k, v, *, scale):
        return off(self.change, q, k, v, scale=scale)

    def method(self, q, k, v, *, scale):
        return self(q, k, v, scale=scale)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def made_class():
    class Large(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale):
            ctx.save_for_backward(q, k, v)
            ctx.scale = scale
            return off(1.01, q, k, v, scale=scale)

        @staticmethod
        def backward(ctx, do):
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
                return (*torch.autograd.grad(off(1.01, *leaves, scale=ctx.scale), leaves, do), None)

    return Large


def too_large_by(change, q, k, v, *, scale):
    return off(change, q, k, v, scale=scale)


FORMS = {
    "a lambda": (lambda q, k, v, scale: off(1.01, q, k, v, scale=scale), "<lambda>"),
    "a partial": (functools.partial(too_large_by, 1.01), "too_large_by"),
    "a method": (Scaled(1.01).method, "Scaled.method"),
    "an object that is called": (Scaled(1.01), "Scaled.__call__"),
    "a function of a function": (made_inside(1.01), "made_inside.<locals>.backward"),
    "a wrapped function": (decorated(too_large), "too_large"),
    "a function with a partial in it": (
        decorated(functools.partial(too_large_by, 1.01)),
        "too_large_by",
    ),
    "the apply of an autograd function": (made_class().apply, "made_class.<locals>.Large.forward"),
}


@sampled("form", FORMS, push=3)
def test_every_form_of_a_function_is_checked_under_its_name_and_its_own_source(form):
    function, name = FORMS[form]
    table = table_of(function, recover=False)
    assert f"test_assertion.py:{name}, contiguous)" in " ".join(table.split())
    checked = report_of(report_on(function, **OF_SMALL, recover=False)).target
    assert (Path(checked.file).name, checked.function) == (
        "test_assertion.py",
        name.rpartition(".")[2],
    )
    assert checked.sha256 == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert "again: " not in table
    assert table.endswith(
        "no command line repeats this: a lambda, a partial and a function inside another one have no word"
    )


WORDS = """
import functools
import hashlib
import torch
from soft import attention, doubled_dq

def plain(q, k, v, do, *, scale):
    return doubled_dq(q, k, v, do, scale=scale)

def wrapped(function):
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

@wrapped
def decorated(q, k, v, do, *, scale):
    return doubled_dq(q, k, v, do, scale=scale)

partial = functools.partial(plain)

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        ctx.scale = scale
        ctx.save_for_backward(q, k, v)
        return attention(q, k, v, scale=scale)

    @staticmethod
    def backward(ctx, do):
        found = doubled_dq(*ctx.saved_tensors, do, scale=ctx.scale)
        return found["dQ"], found["dK"], found["dV"], None

apply = Attention.apply
if True:
    inside_if = functools.partial(plain)
for of_a_loop in (functools.partial(plain),):
    pass
if __name__ == "__main__":
    script = functools.partial(plain)
kept = [functools.partial(plain)]
"""


@pytest.fixture
def words(folder, monkeypatch):
    (folder / "words.py").write_text(WORDS)
    monkeypatch.syspath_prepend(folder)
    import words

    yield words
    sys.modules.pop("words")
    sys.modules.pop("soft")


@pytest.mark.parametrize(
    "name", ["plain", "decorated", "partial", "apply", "Attention", "inside_if", "doubled_dq"]
)
def test_what_a_module_holds_has_a_word_that_finds_it(words, name):
    again = table_of(getattr(words, name), runs="contiguous", recover=False).splitlines()[-2]
    file = "soft.py" if name == "doubled_dq" else "words.py"
    assert again == f"  again: gradprobe check {file}:{name} {SMALL} --runs contiguous --no-recover"
    ran = run(again.partition("gradprobe ")[2])
    assert (ran.code, len(ran.first_mismatches)) == (1, 1)


@pytest.mark.parametrize("function", [lambda words: words.of_a_loop, lambda words: words.kept[0]])
def test_what_an_import_does_not_make_for_good_has_none(words, function):
    assert "again: " not in table_of(function(words))


def test_a_file_of_a_package_has_the_word_of_its_module(folder, monkeypatch):
    (folder / "pack" / "inner").mkdir(parents=True)
    (folder / "pack" / "__init__.py").touch()
    (folder / "pack" / "inner" / "__init__.py").write_text(
        "HALF = 0.5\nfrom .kernel import backward\n"
    )
    (folder / "pack" / "inner" / "kernel.py").write_text("from . import HALF\n" + softmax_targets())
    monkeypatch.syspath_prepend(folder)
    import pack.inner.kernel as kernel

    again = table_of(kernel.doubled_dq).splitlines()[-2]
    assert again == f"  again: gradprobe check pack.inner.kernel:doubled_dq {SMALL}"
    assert run(again.partition("gradprobe ")[2]).code == 1
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(folder)])
    monkeypatch.chdir(folder / "pack")
    assert "again: " not in table_of(kernel.doubled_dq)


@pytest.mark.parametrize(("options", "words", "resolved"), [
    ({"dtype": torch.float16}, "--dtype float16", ("dtype", "float16")),
    ({"dtype": "bfloat16"}, "--dtype bfloat16", ("dtype", "bfloat16")),
    ({"window": (16, 0)}, "--window 16,0", ("window", (16, 0))),
    ({"seqlens": [20]}, "--seqlens 20", ("seqlens", (20,))),
    ({"cu_seqlens": torch.tensor([0, 7, 20])}, "--cu-seqlens 0,7,20", ("cu_seqlens_q", (0, 7, 20))),
    ({"scale": 0.1}, "--scale 0.1", ("scale", 0.1)),
    ({"scale": 1}, "--scale 1.0", ("scale", 1.0)),
    ({"causal": True}, "--causal", ("causal", True)),
    ({"recover": False}, "--no-recover", ("recover", False)),
    ({"softcap": None}, "", ("softcap", None)),
    ({"layout": "do=blhd"}, "--layout do=blhd", ("layouts", (("do", "blhd"),))),
    ({"layout": ["do=blhd", "q=packed"]}, "--layout do=blhd --layout q=packed",
     ("layouts", (("do", "blhd"), ("q", "packed")))),
    ({"runs": ["contiguous", "q=blhd,do=blhd"]}, "--runs contiguous --runs q=blhd,do=blhd",
     ("runs", ((), (("q", "blhd"), ("do", "blhd"))))),
    ({"heads": np.int64(2)}, "", ("heads", 2)),
    ({"layout": {"all": "offset"}}, "--layout all=offset", ("layouts", (("all", "offset"),))),
    ({"device": torch.device("cpu")}, "--device cpu", ("device", "cpu")),
    ({"seed": 7}, "--seed 7", ("seed", 7)),
])  # fmt: skip
def test_options_are_python_values_and_the_line_that_repeats_them_their_words(
    options, words, resolved
):
    report = assert_backward_matches("sdpa-math", **{**OF_SMALL, **options})
    assert getattr(report.case, resolved[0]) == resolved[1]
    assert report.reproduce == f"gradprobe check sdpa-math {SMALL} {words}".strip()


def test_tau_is_one_number_or_one_a_head():
    assert assert_backward_matches("lazily.py:backward", **OF_SMALL, tau=-0.5).case.tau == (
        -0.5,
        -0.5,
    )
    report = assert_backward_matches("lazily.py:backward", **OF_SMALL, tau=(0.1, -3))
    assert report.case.tau == (0.1, -3.0)
    assert report.reproduce.endswith("--tau 0.1,-3")


def test_inputs_are_a_path(folder):
    x = {
        name: torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(1))
        for name in ("q", "k", "v", "do")
    }
    torch.save(x, folder / "real.pt")
    report = assert_backward_matches(SOFT, inputs=folder / "real.pt")
    assert report.case.inputs == str(folder / "real.pt")
    assert [run.layout for run in report.runs] == ["as-saved", "contiguous", "distinct"]


@pytest.mark.parametrize(("options", "words"), [
    ({"head": 4}, "knows no option 'head'; did you mean heads or kv_heads or head_dim?"),
    ({"num_heads": 4}, "knows no option 'num_heads'; did you mean heads"),
    ({"layouts": ["do=blhd"]}, "knows no option 'layouts'; did you mean layout"),
    ({"xyzzy": 1}, "knows no option 'xyzzy'; known: batch, heads, kv_heads"),
    ({"heads": "four"}, "heads must be a whole number, got 'four'"),
    ({"heads": 4.0}, "heads must be a whole number, got 4.0"),
    ({"heads": True}, "heads must be a whole number, got True"),
    ({"causal": 1}, "causal must be true or false, got 1"),
    ({"scale": True}, "scale must be a number, got True"),
    ({"layout": 3}, "layout must be an array of strings, got 3"),
    ({"layout": [("do", "blhd")]}, "layout must be an array of strings, got [('do', 'blhd')]"),
    ({"window": [["a"]]}, "window must be an array of numbers, got [['a']]"),
    ({"seqlens": ()}, "seqlens must be an array of numbers, got ()"),
    ({"tau": (True, 1.0)}, "tau must be an array of numbers, got (True, 1.0)"),
    ({"dtype": float}, "dtype must be a string, got <class 'float'>"),
])  # fmt: skip
def test_an_option_that_is_none_or_of_another_type_is_a_type_error(options, words):
    with pytest.raises(TypeError, match="^gradprobe") as caught:
        assert_backward_matches(SOFT, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("target", [None, 5, ["lazy"]])
def test_a_target_that_is_neither_a_function_nor_a_word_is_a_type_error(target):
    with pytest.raises(TypeError, match="gradprobe checks a function or the word of one, got"):
        assert_backward_matches(target)


@pytest.mark.parametrize(("target", "options", "kind", "pieces"), [
    (SOFT, {"heads": 0}, UsageFailure, ["--heads must be at least 1, got 0"]),
    (SOFT, {"layout": "do=diagonal"}, UsageFailure, ["no layout 'diagonal'", "\n  known: contiguous, blhd"]),
    (SOFT, {"softcap": 5.0}, UsageFailure, ["cannot take --softcap", "\n  it takes q, k, v, do, scale, causal, bias"]),
    ("lazyy", {}, UsageFailure, ["'lazyy' is neither a built-in nor", "\n  did you mean 'lazy'? built in: lazy"]),
    ("none.py:f", {}, UsageFailure, ["there is no file none.py", "\n  the path is relative to the current folder"]),
    (SOFT, {"device": "cuda:7"}, UsageFailure, ["--device must be one of auto, cpu, cuda"]),
    (lambda *args: None, {}, UsageFailure, ["test_assertion.py:<lambda>' takes *args", "\n  wrap it"]),
    (torch.nn.functional.scaled_dot_product_attention, {"heads": 0}, UsageFailure, ["--heads must be at least 1"]),
    (print, {}, UsageFailure, ["target 'print' takes *args", "\n  wrap it"]),
    (torch.nn.Identity(), {}, UsageFailure, ["needs a parameter 'input' that gradprobe has no value for"]),
    ("soft.py:nothing", {}, TargetFailure, ["must return a dict of named intermediates, got NoneType"]),
    ("soft.py:leaving", {}, TargetFailure, ["raised SystemExit (contiguous)"]),
    (lambda q, k, v: pytest.skip("not today"), {}, TargetFailure, ["raised Skipped (contiguous): not today"]),
])  # fmt: skip
def test_what_keeps_a_verdict_from_being_reached_is_no_assertion_error(
    target, options, kind, pieces
):
    with pytest.raises(kind) as caught:
        assert_backward_matches(target, **{**OF_SMALL, **options})
    assert not isinstance(caught.value, AssertionError)
    for piece in pieces:
        assert piece in str(caught.value)


def test_a_target_that_refuses_every_layout_never_passes():
    def refusing(q, k, v, do, *, scale):
        raise ValueError("not today")

    with pytest.raises(
        TargetFailure, match="refused every layout .*not today.*: nothing was compared"
    ):
        assert_backward_matches(refusing, **OF_SMALL, layout="do=blhd")


def test_what_a_target_raised_is_the_cause_and_begins_where_the_target_does():
    with pytest.raises(TargetFailure) as caught:
        assert_backward_matches("soft.py:raising", **OF_SMALL)
    cause = caught.value.__cause__
    assert (type(cause), str(cause)) == (ValueError, "the target says no")
    assert Path(cause.__traceback__.tb_frame.f_code.co_filename).name == "soft.py"
    assert "--traceback" not in str(
        caught.value
    )  # a word of the command line, of what stands here in any case


def test_an_assertion_that_fails_in_the_tool_is_no_mismatch(monkeypatch):
    def failing(*args, **kwargs):
        raise AssertionError("a wrong thought")

    monkeypatch.setattr("gradprobe.testing.assertion.run_check", failing)
    with pytest.raises(
        Failure, match="gradprobe itself failed: AssertionError: a wrong thought"
    ) as caught:
        assert_backward_matches(SOFT)
    assert not isinstance(caught.value, AssertionError)
    assert caught.value.__cause__.__traceback__ is not None


def test_a_reference_may_be_a_function_too():
    def of_my_own(q, k, v, *, scale, causal=False):
        return attention(q.double(), k.double(), v.double(), scale=scale, is_causal=causal)

    report = assert_backward_matches(attention, **OF_SMALL, reference=of_my_own)
    assert report.provenance.reference.endswith("of_my_own")
    assert report.reproduce == ""
    with pytest.raises(Failure, match="reference") as caught:
        assert_backward_matches(
            attention, **OF_SMALL, reference=lambda q, k, v: 2.0 * attention(q, k, v, scale=0.1)
        )
    assert type(caught.value).__name__ == "ReferenceFailure"


@pytest.mark.usefixtures("with_causes")
def test_a_wrong_reference_is_refused_with_what_is_wrong_and_its_line_and_nothing_is_said_of_the_kernel():
    words = r"the verdict is about the reference: .*: the causal mask is left out \(written.py:\d+: P = torch.soft"
    with pytest.raises(Failure, match=words) as caught:
        assert_backward_matches(
            attention, **OF_SMALL, causal=True, reference=written.unmasked_again
        )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("surroundings", [
    torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    lambda: torch.device("meta"),
], ids=["no_grad", "inference_mode", "autocast", "device"])  # fmt: skip
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(attention, id="forward"),
        pytest.param("lazy", id="lazy", marks=pytest.mark.nightly),
        pytest.param(SOFT, id="backward"),
    ],
)
def test_the_verdict_is_the_commands_own_whatever_torch_is_set_to(surroundings, target):
    plain = assert_backward_matches(target, **OF_SMALL)
    with surroundings():
        report = assert_backward_matches(target, **OF_SMALL)
    for (_, one), (_, other) in zip(plain.measured, report.measured, strict=True):
        assert one.comparison.findings.keys() == other.comparison.findings.keys()
        for name, finding in one.comparison.findings.items():
            assert torch.equal(finding.ratio, other.comparison.findings[name].ratio), name


def test_what_a_check_sets_of_torch_is_put_back(monkeypatch):
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        random = torch.get_rng_state()
        for call in (lambda: assert_backward_matches(SOFT, **OF_SMALL), lambda: table_of("soft.py:doubled_dq"),
                     lambda: pytest.raises(UsageFailure, assert_backward_matches, SOFT, heads=0)):  # fmt: skip
            call()
            assert (torch.get_num_threads(), torch.get_default_dtype()) == (2, torch.float64)
            assert torch.is_grad_enabled()
            assert torch.equal(torch.get_rng_state(), random)
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def test_what_the_target_prints_is_not_on_stdout(capsys):
    assert_backward_matches("soft.py:printing", **OF_SMALL)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the target speaks" in captured.err


def test_nothing_heavy_is_imported_before_the_first_check():
    script = "import sys, gradprobe.testing, gradprobe.testing.pytest_plugin\n"
    script += "print(*sorted({'torch', 'triton', 'numpy', 'rich', 'typer'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, env=environment, check=True,
        timeout=60,
    )  # fmt: skip
    assert (ran.stdout.split(), ran.stderr) == ([], "")
