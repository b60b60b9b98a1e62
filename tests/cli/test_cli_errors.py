"""Bad input gets contract's exit code and a message: subject, rule, what came instead, and the way out."""

import json

import pytest

from tests.cli.command import SMALL, run, run_process

pytestmark = pytest.mark.usefixtures("without_causes")

# The command after `gradprobe`, then pieces that its message must hold.
WRONG_COMMANDS = [
    ("check --heads 0", ("--heads must be at least 1, got 0",)),
    ("check --batch -1", ("--batch must be at least 1, got -1",)),
    ("check --repeat 0", ("--repeat must be at least 1, got 0",)),
    ("check --seqlen 0", ("--seqlen", "must be at least 1, got 0")),
    ("check --dtype float64", ("--dtype must be one of float32, float16, bfloat16, got 'float64'",)),
    ("check --device tpu", ("--device must be one of auto, cpu, cuda, got 'tpu'",)),
    ("check --pattern odd", ("--pattern must be one of normal,", "got 'odd'")),
    ("check --dots fp8", ("--dots must be one of ieee,", "got 'fp8'")),
    ("check --block-m 24", ("--block-m must be a power of two of at least 16, got 24",)),
    ("check --family flash", ("--family must be softmax or lazy, got 'flash'",)),
    ("check --no-causal", ("--no-causal: lazy attention is always causal", "drop --no-causal")),
    ("check --softcap 5", ("--softcap: the lazy family has no such option", "softmax")),
    ("check --kv-heads 1", ("--kv-heads: the lazy family has no such option",)),
    ("check --seqlen-q 20 --seqlen-k 30", ("as many keys as rows, got 20 and 30",)),
    ("check --heads 2 --tau 1,2,3", ("--tau takes one number, or one a head: 2 heads, got 3 numbers",)),
    ("check --tau 1,high", ("--tau takes numbers separated by commas, got '1,high'",)),
    ("check --tau nan", ("--scale and --tau must be finite",)),
    ("check --seqlens 3,4,5", ("--seqlens takes one length a batch: 2 batches, got 3",)),
    ("check --seqlens 3;4", ("--seqlens takes whole numbers separated by commas, got '3;4'",)),
    ("check --seqlen 20 --seqlens 3,21", ("--seqlens must lie in 0 to 20, got 3, 21",)),
    ("check --layout spread", ("--layout takes TENSOR=NAME or NAME, got 'spread'", "for example --layout do=expanded")),
    ("check --layout qq=blhd", ("--layout: no tensor 'qq'", "known: all, q, k, v, do")),
    ("check --layout q=diagonal", ("--layout: no layout 'diagonal'", "known: contiguous, blhd")),
    ("check soft.py:backward --tau 1", ("--tau: the softmax family has no such option", "a target that takes tau")),
    ("check soft.py:backward --window 3", ("--window takes two whole numbers, LEFT,RIGHT, got '3'",)),
    ("check soft.py:backward --window 3,x", ("--window takes two whole numbers, LEFT,RIGHT, got '3,x'",)),
    ("check soft.py:backward --heads 4 --kv-heads 3", ("--kv-heads must divide --heads, got 3 and 4",)),
    ("check soft.py:backward --softcap 0", ("--softcap must be above 0, got 0",)),
    ("check soft.py:backward --scale inf", ("--scale and --tau must be finite",)),
    ("check soft.py:backward --scale 1e300", ("--scale must be at most 6.55e+04 in magnitude, got 1e+300",)),
    ("check soft.py:backward --scale -5e-324", ("--scale must be at least 1.18e-38 in magnitude", "for 0")),
    ("check soft.py:backward --softcap 1e300", ("--softcap must be at most 3.4e+38 in magnitude, got 1e+300",)),
    ("check --tau 1,1,1e300", ("--tau must be at most 6.55e+04 in magnitude, got 1e+300",)),
    ("check lazyy", ("target 'lazyy' is neither a built-in nor FILE.py:FUNCTION nor MODULE:FUNCTION", "lazy")),
    ("check none.py:backward", ("target 'none.py:backward': there is no file none.py", "the current folder")),
    ("check no.such:backward", ("target 'no.such:backward': there is no module no.such", "installed?")),
    ("check soft.py:forward", ("soft.py has no function forward", "it has: ", "attention, backward")),
    ("check soft.py:torch", ("torch is not a function but module",)),
    ("check soft.py:", ("'soft.py:' names no function", "it has soft.py:attention, soft.py:backward")),
    ("check soft.py:backward:x", ("'soft.py:backward:x' is neither a built-in nor FILE.py:FUNCTION nor",)),
    ("check soft.py::backward", ("'soft.py::backward' is neither a built-in nor",)),
    ("check .soft:backward", ("'.soft:backward' is neither a built-in nor",)),
    ("diff dZ", ("no intermediate 'dZ'", "known: LSE, P, O, dP, delta, dS, dQ, dK, dV, dBias, dSink, dAlibi, dTau")),
    ("diff dQ soft.py:backward --at 1", ("--at takes BATCH,HEAD, two whole numbers, got '1'",)),
    ("diff dQ soft.py:backward --at 0,first", ("--at takes BATCH,HEAD, two whole numbers, got '0,first'",)),
    (f"diff dQ soft.py:backward --at 0,2 {SMALL}", ("--at 0,2: dQ has batches 0 to 0 and heads 0 to 1",)),
    (f"diff LSE soft.py:backward {SMALL}", ("the target does not expose LSE", "it exposes P, dP, delta, dS, dQ")),
    (f"check soft.py:attention --softcap 5 {SMALL}", ("cannot take --softcap: it has no such parameter",
                                                      "it takes q, k, v, scale, is_causal")),
    (f"check soft.py:backward --window 2,0 {SMALL}", ("cannot take --window", "it takes q, k, v, do, scale, causal")),
    (f"check soft.py:backward --seqlens 9 {SMALL}", ("cannot take --seqlens",)),
    (f"check soft.py:doubled_dq --bias {SMALL}", ("cannot take --bias", "it takes q, k, v, do, scale, causal")),
]  # fmt: skip


def assert_message(ran, *pieces):
    """A sentence on stderr that begins with the tool's name, nothing on stdout, no traceback."""
    assert ran.err.startswith("gradprobe: ")
    assert "Traceback" not in ran.err
    assert "gradprobe itself failed" not in ran.err
    assert ran.out == ""
    for piece in pieces:
        assert piece in ran.err


@pytest.mark.parametrize(
    ("words", "pieces"), WRONG_COMMANDS, ids=[words for words, _ in WRONG_COMMANDS]
)
def test_a_wrong_command_exits_2_with_its_subject_and_the_way_out(words, pieces):
    ran = run(words)
    assert ran.code == 2
    assert_message(ran, *pieces)


@pytest.mark.parametrize("words", ["check --heads four", "check --head 4", "diff", "chek"])
def test_a_word_that_the_parser_refuses_exits_2_on_stderr(words):
    ran = run(words)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: gradprobe" in ran.err


def test_a_word_that_was_a_command_says_where_it_went():
    for words, instead in (
        ("compare a.json b.json", "gradprobe show OLD"),
        ("targets a.py", "gradprobe init --list"),
    ):
        ran = run(words)
        assert (ran.code, ran.out) == (2, "")
        assert f"{words.split()[0]} is no command any more" in ran.err
        assert instead in ran.err


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--tap dS=ds[b,h,m,n]", "one-hot inputs"),
        ("--oracle identities", "a reference judges"),
        ("--sanitize racecheck", "compute-sanitizer runs around"),
        ("--configs all", "pin one configuration"),
    ],
)
def test_an_option_that_is_gone_says_where_it_went(words, instead):
    ran = run(f"check {words}")
    assert ran.code == 2
    assert f"{words.split()[0]} is gone" in ran.err
    assert instead in ran.err


def test_cuda_without_a_cuda_device_exits_2(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ran = run("check --device cuda")
    assert ran.code == 2
    assert_message(ran, "--device cuda: torch sees no CUDA device", "use --device cpu")


def test_a_target_that_takes_one_number_as_its_window_is_passed_its_left_side(folder):
    (folder / "narrow.py").write_text(
        "def f(q, k, v, do, window_size=-1):\n    raise ValueError(repr(window_size))\n"
    )
    ran = run(f"check narrow.py:f --window 4,0 {SMALL}")
    assert ran.code == 3
    assert "raised ValueError (contiguous): 4" in ran.err


def test_of_a_long_message_of_a_target_the_first_paragraph_is_told(folder):
    listed = "".join(f"backend {number}\n" for number in range(40))
    (folder / "long.py").write_text(
        f"def f(q, k, v, do):\n    raise OSError({'no kernel' + chr(10) * 2 + listed!r})\n"
    )
    ran = run(f"check long.py:f {SMALL}")
    assert "raised OSError (contiguous): no kernel\n" in ran.err
    assert "backend 9" not in ran.err


# The text after `def f`, then pieces of the message.
UNUSABLE_SIGNATURES = [
    ("(*args): pass", ("takes *args; arguments are passed by name", "wrap it in a function that names them")),
    ("(q, k, v, /, do): pass", ("arguments are passed by name",)),
    ("(q, k, v, do, temperature): pass", ("needs a parameter 'temperature' that gradprobe has no value for",
                                          "wrap it in a function")),
    ("(q, k, do): pass", ("does not take v", "an attention takes q, k and v")),
    ("(q, k, v, do, tau, window): pass", ("needs 'window', which this case does not have",)),
    ("(q, k, v, do, bias): pass", ("needs 'bias', which this case does not have", "add --bias")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "pieces"), UNUSABLE_SIGNATURES, ids=[text for text, _ in UNUSABLE_SIGNATURES]
)
def test_a_signature_that_nothing_can_be_passed_to_exits_2(text, pieces, folder):
    (folder / "odd.py").write_text(f"def f{text}\n")
    ran = run(f"check odd.py:f {SMALL}")
    assert ran.code == 2
    assert_message(ran, "target 'odd.py:f'", *pieces)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("import no_such_package", ("ModuleNotFoundError", "no_such_package")),
        ("raise SystemExit(0)", ("SystemExit: 0",)),
        ("exit()", ("SystemExit: it calls exit()", "--traceback shows where")),
        ("import sys; sys.exit('gone')", ("SystemExit: gone",)),
        ("def f(:", ("SyntaxError",)),
        ("1 / 0", ("ZeroDivisionError: division by zero",)),
        ("\nassert not __name__", ("AssertionError: broken.py:2: assert not __name__",)),
    ],
)
def test_a_file_that_fails_to_import_exits_3(text, pieces, folder):
    (folder / "broken.py").write_text(text + "\n")
    ran = run("check broken.py:f")
    assert ran.code == 3
    assert_message(ran, "target 'broken.py:f' fails to import", *pieces)


def test_a_module_that_fails_to_import_exits_3(folder):
    (folder / "broken_module.py").write_text("import no_such_package\n")
    ran = run("check broken_module:f")
    assert ran.code == 3
    assert_message(ran, "target 'broken_module:f' fails to import: ModuleNotFoundError")


UNUSABLE_RESULTS = [
    (
        "wrong_shape",
        (
            "returned dK of the wrong shape",
            "expected [b, g, n, d] = [1, 2, 20, 8], got [1, 2, 19, 8]",
        ),
    ),
    ("unknown_name", ("returned an unknown intermediate 'dW'", "known: LSE, P, O, dP")),
    ("dq_twice", ("returned dQ twice, once as 'dq'", "keep one of them")),
    ("whole_numbers", ("returned dQ as torch.int64; it must be a floating-point tensor",)),
    ("not_a_tensor", ("returned dQ as list; it must be a floating-point tensor",)),
    ("tau_of_softmax", ("returned dTau, which does not exist in this case", "leave it out")),
    ("a_tuple", ("must return a dict of named intermediates, got tuple", "'dQ': dq")),
    ("a_tensor", ("must return a dict of named intermediates, got Tensor",)),
    ("nothing", ("must return a dict of named intermediates, got NoneType",)),
    ("an_empty_dict", ("returned nothing to compare", "return any of LSE, P, O")),
    ("values_of_none", ("returned nothing to compare",)),
    ("raising", ("raised ValueError (contiguous): the target says no", "--traceback shows where")),
    ("raising_an_index_error", ("raised IndexError (contiguous): list index out of range",)),
    ("leaving", ("raised SystemExit (contiguous)",)),
    ("failing_as_a_test_does", ("raised BaseException (contiguous): not today",)),
    ("sparse", ("returned dQ as torch.sparse_coo", "it must be dense")),
    ("without_values", ("returned dQ as", "on meta", "with values")),
    ("eight_bits", ("returned dQ as", "torch.float8_e4m3fn", "of 16 bits or more")),
]


@pytest.mark.parametrize(
    ("name", "pieces"), UNUSABLE_RESULTS, ids=[name for name, _ in UNUSABLE_RESULTS]
)
def test_a_target_that_cannot_be_compared_exits_3_and_never_1(name, pieces):
    ran = run(f"check soft.py:{name} {SMALL}")
    assert ran.code == 3
    assert_message(ran, f"target 'soft.py:{name}'", *pieces)


@pytest.mark.parametrize(
    ("body", "piece"),
    [
        (
            "return (q @ k.mT @ v).detach()",
            "is not differentiable: its output does not require grad",
        ),
        (
            "return {'LSE': v}",
            "it is a forward and must return its output tensor, got a dict of LSE",
        ),
        (
            "return {'O': v, 'out': v}",
            "it is a forward and must return its output tensor, got a dict of O, out",
        ),
        (
            "return (q @ k.mT @ v).transpose(1, 2)",
            "that looks like [B, L, H, D]: return O transposed",
        ),
        (
            "return (q @ k.mT @ v)[:, :, :-1]",
            "returned O of the wrong shape: expected [b, h, m, e] = [1, 2, 20, 8], got ",
        ),
        ("return ()", "must return its output tensor, got tuple"),
    ],
)
def test_a_forward_that_autograd_cannot_differentiate_exits_3(body, piece, folder):
    (folder / "forward.py").write_text(f"def f(q, k, v, scale):\n    {body}\n")
    ran = run(f"check forward.py:f {SMALL}")
    assert ran.code == 3
    assert_message(ran, "target 'forward.py:f'", piece)
    assert "raised" not in ran.err


AUTOGRAD = """
import torch

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        return (scale * q @ k.mT).softmax(-1) @ v
{backward}
def f(q, k, v, scale):
    return Attention.apply(q, k, v, scale)
"""
BACKWARD = "    @staticmethod\n    def backward(ctx, do):\n        "


@pytest.mark.parametrize(
    ("backward", "pieces"),
    [
        (
            "",
            (
                "raised NotImplementedError (contiguous)",
                "You must implement either the backward or vjp method",
            ),
        ),
        (
            BACKWARD + "raise ValueError('only for training')",
            ("raised ValueError (contiguous): only for training",),
        ),
        (
            BACKWARD + "return do, do",
            ("raised RuntimeError (contiguous)", "incorrect number of gradients"),
        ),
        (
            BACKWARD + "return do.mT, do, do, None",
            ("raised RuntimeError (contiguous)", "returned an invalid gradient"),
        ),
    ],
    ids=["none", "raises", "too few", "wrong shape"],
)
def test_an_autograd_function_whose_backward_fails_exits_3(backward, pieces, folder):
    (folder / "forward.py").write_text(AUTOGRAD.format(backward=backward))
    ran = run(f"check forward.py:f {SMALL}")
    assert ran.code == 3
    assert_message(ran, "target 'forward.py:f'", *pieces)


def test_a_gradient_that_never_comes_is_0_and_wrong(folder):
    (folder / "forward.py").write_text(
        AUTOGRAD.format(backward=BACKWARD + "return do, None, do, None")
    )
    ran = run(f"check forward.py:f {SMALL}")
    assert ran.code == 1
    assert "dK" in ran.out.partition("wrong by itself too: ")[2].partition(";")[0]


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("builtins:print", ("takes *args", "wrap it in a function that names them")),
        (
            "torch.nn:Linear",
            ("the class Linear is no torch.autograd.Function",),
        ),
        ("torch:bmm", ("has no readable signature", "wrap it in a Python function")),
        ("math:sin", ("takes x", "arguments are passed by name")),
    ],
)
def test_what_is_no_function_with_named_parameters_exits_2(word, pieces):
    ran = run(f"check {word}")
    assert ran.code == 2
    assert_message(ran, f"target '{word}'", *pieces)


def test_a_kernel_without_grouped_heads_that_is_given_some_exits_3_in_its_own_words():
    ran = run("check soft.py:backward --batch 1 --heads 4 --kv-heads 2 --seqlen 20 --head-dim 8")
    assert ran.code == 3
    assert_message(
        ran,
        "target 'soft.py:backward' raised RuntimeError (contiguous): The size of tensor a (4) must match",
    )


@pytest.mark.parametrize("name", ["O", "dQ"])
def test_b_l_h_d_is_recognized_and_told_apart_from_another_wrong_shape(name, folder):
    body = "from soft import attention, backward\n"
    body += (
        "def f(q, k, v, do, scale):\n    found = {'O': do, **backward(q, k, v, do, scale=scale)}\n"
    )
    body += f"    return found | {{'{name}': found['{name}'].transpose(1, 2)}}\n"
    (folder / "odd.py").write_text(body)
    ran = run(f"check odd.py:f {SMALL}")
    assert ran.code == 3
    assert_message(
        ran,
        f"returned {name} of the wrong shape",
        f"that looks like [B, L, H, D]: return {name} transposed",
    )
    (folder / "odd.py").write_text(body.replace(".transpose(1, 2)", "[:, :, 1:]"))
    ran = run(f"check odd.py:f {SMALL}")
    assert ran.code == 3
    assert "looks like" not in ran.err


def test_a_refusal_of_two_layouts_is_skipped_and_the_rest_matches():
    ran = run(f"check soft.py:contiguous_only {SMALL} --json report.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(
        "MATCH  soft.py:contiguous_only: 7 intermediates within budget in 1 layout "
    )
    words = "AssertionError: q and do must be contiguous"
    assert f"  distinct       skipped: {words}\n" in ran.out
    assert f"  do=expanded    skipped: {words}\n" in ran.out
    with open("report.json", encoding="utf-8") as file:
        report = json.load(file)
    assert report["verdict"] == "match"
    assert [(run["layout"], run["verdict"]) for run in report["runs"]] == [
        ("contiguous", "match"), ("distinct", "skipped"), ("distinct-unit", "skipped"), ("do=expanded", "skipped"),
    ]  # fmt: skip
    assert [run["skipped"] for run in report["runs"]] == [None, words, words, words]


def test_a_target_that_takes_no_last_stride_but_1_is_still_shown_distinct_strides(folder):
    text = "from soft import backward\ndef f(q, k, v, do, scale):\n    assert q.stride(-1) == 1\n"
    text += "    q = q.as_strided(q.shape, k.stride(), q.storage_offset())\n"
    (folder / "picky.py").write_text(text + "    return backward(q, k, v, do, scale=scale)\n")
    ran = run(f"check picky.py:f {SMALL}")
    assert ran.code == 1
    assert (
        "  distinct       skipped: AssertionError: picky.py:3: assert q.stride(-1) == 1\n"
        in ran.out
    )
    assert "  distinct-unit  mismatch" in ran.out


def test_a_refusal_of_every_layout_compares_nothing_and_exits_3():
    ran = run(f"check soft.py:contiguous_only --layout all=distinct {SMALL}")
    assert ran.code == 3
    assert_message(
        ran,
        "nothing was compared",
        "refused every layout (distinct: AssertionError: q and do must be",
    )


def test_a_reference_that_is_wrong_exits_3_and_is_named():
    ran = run(f"check soft.py:backward --reference soft.py:dv_without_a_head {SMALL}")
    assert ran.code == 3
    assert_message(
        ran, "the verdict is about the reference: soft.py:dv_without_a_head departs from dV"
    )


def test_traceback_is_shown_only_when_asked_for():
    ran = run(f"check soft.py:raising --traceback {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    assert "Traceback (most recent call last)" in ran.err
    assert "soft.py" in ran.err
    assert (
        "gradprobe: target 'soft.py:raising' raised ValueError (contiguous): the target says no\n"
        in ran.err
    )


@pytest.mark.parametrize(
    ("words", "code", "kind", "message"),
    [
        ("check --heads 0", 2, "UsageFailure", "--heads must be at least 1, got 0"),
        ("check soft.py:forward", 2, "UsageFailure", "has no function forward"),
        ("diff dZ", 2, "UsageFailure", "no intermediate 'dZ'"),
        (f"check soft.py:nothing {SMALL}", 3, "TargetFailure", "must return a dict"),
        (f"diff dQ soft.py:raising {SMALL}", 3, "Refusal", "the target says no"),
        (
            f"check soft.py:backward --reference soft.py:dv_without_a_head {SMALL}",
            3,
            "ReferenceFailure",
            "departs from dV",
        ),
    ],
)
def test_a_failure_with_json_on_stdout_is_a_report_whose_verdict_is_error(
    words, code, kind, message
):
    ran = run(f"{words} --json -")
    report = json.loads(ran.out)
    assert ran.code == code
    assert (report["schema"], report["verdict"]) == ("gradprobe.report/2", "error")
    assert report["error"]["kind"] == kind
    assert message in report["error"]["message"]
    assert (report["runs"], report["first_mismatch"], report["diagnoses"]) == ([], None, [])
    assert report["reproduce"].startswith(f"gradprobe {words.split()[0]} ")
    assert message in ran.err


def test_a_failure_with_a_json_file_writes_the_error_report_there(folder):
    ran = run(f"check soft.py:raising --json report.json {SMALL}")
    assert ran.code == 3
    assert_message(ran, "the target says no")
    assert json.loads((folder / "report.json").read_text())["verdict"] == "error"


def test_an_error_of_the_tool_itself_exits_3_and_never_1(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("gradprobe.probing.measure.compare", broken)
    ran = run(f"check soft.py:backward {SMALL}")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == (
        "gradprobe: gradprobe itself failed: ZeroDivisionError: planted\n  run again with --traceback and report it\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--heads 0", 2, "gradprobe: --heads must be at least 1, got 0"),
        ("soft.py:doubled_dq --runs contiguous", 1, ""),
        pytest.param(
            "soft.py:raising",
            3,
            "gradprobe: target 'soft.py:raising' raised",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_exit_codes_and_streams_are_the_same_in_a_process_of_its_own(words, code, said):
    ran = run_process(f"check {SMALL} {words}")
    assert (ran.code, ran.err.startswith(said), bool(ran.err), bool(ran.out)) == (
        code,
        True,
        bool(said),
        not said,
    )
    assert len(ran.first_mismatches) == (code == 1)


def test_a_required_parameter_called_d_is_not_taken_for_delta(folder):
    (folder / "dims.py").write_text("def f(q, k, v, do, scale, d):\n    return {}\n")
    ran = run(f"check dims.py:f {SMALL}")
    assert ran.code == 2
    assert_message(ran, "needs a parameter 'd' that gradprobe has no value for")


OTHER_NAMES = """
import triton

@triton.jit
def flash_kernel(q, k, v):
    pass

def flash_attention_triton(q, k, v):
    return q

flash_attention = flash_attention_triton
if __name__ == "__main__":
    def flash_attentoin_test(q, k, v):
        return q
"""


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        (
            "flash_atention",
            ("did you mean 'flash_attention'? it has: flash_attention, flash_attention_triton",),
        ),
        ("flash_kernel", ("flash_kernel is a Triton kernel", "name a function that launches it")),
    ],
)
def test_what_is_no_target_names_what_may_be_meant(name, pieces, folder):
    (folder / "named.py").write_text(OTHER_NAMES)
    ran = run_process(f"check named.py:{name} --device cpu")
    assert ran.code == 2
    assert_message(ran, f"target 'named.py:{name}'", *pieces)


def test_a_layout_of_what_the_target_is_not_given_is_refused():
    ran = run(f"check soft.py:backward --layout dq=distinct {SMALL}")
    assert ran.code == 2
    assert_message(
        ran, "dq=distinct: target 'soft.py:backward' is not given dq", "it takes q, k, v, do"
    )
