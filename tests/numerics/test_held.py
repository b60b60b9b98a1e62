"""What a target does to the tensors that it was given, and in which memory and dtype it returns its results."""

import pytest
import torch

from gradprobe.inputs.history import CheckRequest
from gradprobe.inputs.tensor_layouts import place
from gradprobe.model.documents import document_of
from gradprobe.model.failures import UsageFailure
from gradprobe.model.memory_finding import CHANGED, DTYPE, SHARED
from gradprobe.pipeline.reported import report_of
from gradprobe.pipeline.run_check import run_check
from gradprobe.render.console import first_line
from gradprobe.runtime.target_memory import InputsBefore
from tests.cuda.written import loaded
from tests.emulated import case_of, lazy, softmax, target_of
from tests.planted.planting import KERNELS
from tests.probe import probe

SMALL = {"batch": 2, "heads": 2, "seqlen": 20, "head_dim": 8, "recover": False}
ENDS = ("dQ", "dK", "dV")
LAYOUTS = ("contiguous", "distinct", "do=expanded")


def wrapped(change, takes="q, k, v, do"):
    """A right backward of softmax, after which something is done to what it was given or returns."""

    def body(q, k, v, do, scale, **others):
        results = {
            name: value.to(q.dtype)
            for name, value in softmax(q, k, v, do, scale=scale).items()
            if name in ENDS
        }
        return change(dict(q=q, k=k, v=v, do=do, **others), results) or results

    names = {"body": body}
    given = ", ".join(f"{name}={name}" for name in takes.split(", "))
    exec(f"def backward({takes}, *, scale): return body({given}, scale=scale)", names)
    return target_of(names["backward"])


def probed(change, takes="q, k, v, do", **options):
    return probe(case_of("softmax", **SMALL | options), wrapped(change, takes))


def memory(report, kind):
    return {
        run.layout: [stray for stray in run.memory if stray.kind == kind] for run in report.runs
    }


def overwritten(report):
    found = memory(report, CHANGED).items()
    return {layout: [stray.tensor for stray in strays] for layout, strays in found}


def zero_do_and_spoil_k(given, results):
    given["do"].zero_()
    given["k"][1, 0, 3, 2] = torch.nan


def test_inputs_written_over_after_their_last_read_are_a_mismatch_that_names_tensor_element_and_line():
    report = probed(zero_do_and_spoil_k)
    assert report.verdict == "mismatch"
    assert overwritten(report) == dict.fromkeys(LAYOUTS, ["do", "k"])
    do, k = report.runs[0].memory
    assert k.sentence.startswith("k, an input, is overwritten by test_held.py:")
    assert k.sentence.endswith(" and is nan; 1 of 640 elements differ")
    assert k.place == (1, 0, 3, 2)
    assert (k.file, k.code) == (__file__, 'given["k"][1, 0, 3, 2] = torch.nan')
    assert do.lanes == 640
    assert [one.fault for one in report.diagnoses] == ["overwritten/do", "overwritten/k"]
    assert first_line(report_of(report)).startswith(
        "FIRST MISMATCH do batch=0 head=0 row=0 col=0 tile=-,- actual=0 "
    )
    document = document_of(report_of(report))
    assert document["runs"][0]["memory"][1]["place"] == [1, 0, 3, 2]


def test_an_input_that_may_be_written_over_is_no_finding_and_the_others_are():
    report = probed(zero_do_and_spoil_k, inplace=("do",))
    assert overwritten(report) == dict.fromkeys(LAYOUTS, ["k"])
    report = probed(zero_do_and_spoil_k, inplace=("do", "k"))
    assert (report.verdict, report.diagnoses) == ("match", ())


@pytest.mark.parametrize(
    ("change", "value", "told"),
    [
        (lambda q: None, 2.0, None),
        (lambda q: q.mul_(1.0), torch.nan, None),
        (lambda q: q[0, 1].fill_(-0.0), 0.0, ("q[0, 1]", "0", "-0")),
        (lambda q: q[1, 0].fill_(7.0), 2.0, ("q[1, 0]", "nan", "7")),
    ],
)
def test_bits_are_compared_so_that_a_nan_is_itself_and_a_zero_of_another_sign_is_a_change(
    change, value, told
):
    inputs = place({"q": torch.tensor([[1.0, value], [torch.nan, 0.0]])}, (("all", "distinct"),))
    given = InputsBefore(inputs, ())
    change(inputs.tensors["q"])
    found = [
        (one.sentence.partition(": ")[2], one.expected, one.actual, one.lanes)
        for one in given.changes(lambda name: "")
    ]
    words = "{} was {} and is {}; 1 of 4 elements differ"
    assert found == ([(words.format(*told), *told[1:], 1)] if told else [])


def test_gradients_written_where_they_are_to_be_written_and_a_scratch_delta_are_no_change():
    def fill(given, results):
        given["dq"].copy_(results.pop("dQ"))
        given["delta"].zero_()

    report = probed(fill, "q, k, v, do, delta, dq")
    assert (report.verdict, [run.memory for run in report.runs]) == ("match", [()] * 3)


def test_a_change_that_only_a_repeat_makes_is_told():
    calls = []

    def in_the_second_call(given, results):
        calls.append(given)
        if len(calls) == 2:
            given["q"][0, 0, 0, 0] += 1.0

    assert overwritten(probed(in_the_second_call, runs=((),), repeat=2)) == {"contiguous": ["q"]}


def test_a_kernel_that_stores_into_an_input_is_named_with_its_line(tmp_path):
    source = (KERNELS / "flash.py").read_text()
    find = "    store_tile(dv_ptr, dv, offs_n, offs_dv, stride_dvn, stride_dvd, n_keys, head_dim_v)\n"
    assert source.count(find) == 1
    more = (
        "    store_tile(v_ptr, dv, offs_n, offs_dv, stride_vn, stride_vd, n_keys, head_dim_v)\n"
    )
    path = tmp_path / "spoils_v.py"
    path.write_text(source.replace(find, find + more))
    options = {
        "batch": 1, "heads": 1, "kv_heads": 1, "seqlen": 20, "head_dim": 8, "recover": False,
        "device": "cpu",
    }  # fmt: skip
    options |= {"runs": ["contiguous"]}
    report = run_check(CheckRequest(f"{path}:flash_black_box", None, None, options), "")
    (stray,) = report.runs[0].memory
    line = source[: source.index(find)].count("\n") + 2
    told = (stray.kind, stray.tensor, stray.kernel, stray.line)
    assert told == (CHANGED, "v", "flash_dkdv_kernel", line)
    assert stray.code == more.strip()
    assert report.runs[0].measured.matches


SPOILS = """
extern "C" __global__ void leaves(const float* k, float* scratch) { scratch[threadIdx.x] = k[0]; }
extern "C" __global__ void spoils(float* k) { k[threadIdx.x] += 1.0f; }
"""


def test_a_cuda_kernel_that_stores_into_an_input_is_named(tmp_path):
    module = loaded(tmp_path, SPOILS)

    def spoil(given, results):
        scratch = torch.zeros(4)
        module["leaves"](1, 4, 0, given["k"], scratch)
        module["spoils"](1, 4, 0, given["k"])
        module["leaves"](1, 4, 0, given["k"], scratch)

    report = probed(spoil, runs=((),))
    (stray,) = report.runs[0].memory
    assert (stray.kind, stray.tensor, stray.kernel, stray.lanes) == (CHANGED, "k", "spoils", 4)
    assert "k, an input, is overwritten by spoils: k[0, 0, 0, 0] was " in stray.sentence


def as_(dtype, *names):
    def change(given, results):
        return results | {name: results[name].to(dtype) for name in names}

    return change


@pytest.mark.parametrize(
    ("own", "came"), [("float32", torch.float16), ("float16", torch.bfloat16)]
)  # fmt: skip
def test_a_gradient_in_a_coarser_or_the_other_16_bit_dtype_is_a_mismatch_that_names_both(
    own, came
):
    report = probed(as_(came, "dK"), dtype=own, pattern="small")
    words = str(came).removeprefix("torch.")
    found = memory(report, DTYPE).values()
    assert [stray.tensor for strays in found for stray in strays] == ["dK"] * 3
    assert report.runs[0].memory[0].sentence == (
        f"dK came as {words}, which does not hold the numbers of {own}, the dtype of k"
    )
    assert first_line(report_of(report)) == (
        f"FIRST MISMATCH dK batch=- head=- row=- col=- tile=-,- actual={words} expected={own} ratio=-"
    )
    made = document_of(report_of(report))["runs"][0]["intermediates"]
    (entry,) = (entry for entry in made if entry["name"] == "dK")
    assert entry["dtype"] == words


def test_a_wider_dtype_is_right():
    report = probed(as_(torch.float32, *ENDS), dtype="float16", runs=((),))
    assert report.verdict == "match"
    assert "float32" in {one.dtype for one in report_of(report).shown.compares}


def every(family, **narrow):
    def narrowed(results):
        return {name: value.to(narrow.get(name, value.dtype)) for name, value in results.items()}

    def of_softmax(q, k, v, do, *, scale, bias, sinks):
        return narrowed(softmax(q, k, v, do, scale=scale, bias=bias, sinks=sinks))

    def of_lazy(q, k, v, do, *, scale, tau, bias):
        return narrowed(lazy(q, k, v, do, scale=scale, tau=tau, bias=bias))

    case = {"softmax": {"bias": True, "sinks": True}, "lazy": {}}[family]
    target = target_of(of_softmax if family == "softmax" else of_lazy, family)
    report = probe(case_of(family, **SMALL | case, dtype="float16", runs=((),)), target)
    found = [stray for run in report.runs for stray in run.memory]
    return [(stray.tensor, (stray.actual, stray.expected)) for stray in found]


@pytest.mark.parametrize("family", ["softmax", "lazy"])
def test_lse_delta_and_sums_in_float32_beside_16_bit_inputs_are_right(family):
    assert every(family) == []


@pytest.mark.parametrize("name", ["dSink", "dTau", "LSE"])
def test_what_belongs_to_a_float32_input_or_is_read_by_the_backward_may_not_be_coarser(name):
    family = "lazy" if name == "dTau" else "softmax"
    narrow = torch.bfloat16 if name == "LSE" else torch.float16
    due = "float16" if name == "LSE" else "float32"
    assert every(family, **{name: narrow}) == [(name, (str(narrow).removeprefix("torch."), due))]


def test_what_is_exposed_for_looking_at_may_have_any_dtype():
    assert every("softmax", **dict.fromkeys(("P", "dP", "dS", "delta"), torch.float16)) == []


def packed(given, results):
    """dQ, dK and dV as slices of one buffer, as a packed projection takes them."""
    buffer = torch.empty(*given["q"].shape[:3], 3, 8, dtype=given["q"].dtype)
    for at, name in enumerate(ENDS):
        buffer[..., at, :] = results[name]
    return {name: buffer[..., at, :] for at, name in enumerate(ENDS)}


def zeros(given, results):
    """Of one key: dQ and dK are 0, and are one tensor."""
    return results | {"dK": results["dQ"].zero_()}


def over_q(given, results):
    given["q"].copy_(results["dQ"])
    return results | {"dQ": given["q"]}


def overlapping(given, results):
    buffer = torch.zeros(2 * 2 * 2 * 8)
    dq, dk = (part.view(2, 2, 1, 8) for part in (buffer[:32], buffer[24:56]))
    return {"dQ": dq, "dK": dk, "dV": results["dV"]}


@pytest.mark.parametrize(
    ("change", "options", "found"),
    [
        (packed, {}, []),
        (zeros, {"seqlen": 1}, [("dQ", "dK: 32 of its elements")]),
        (overlapping, {"seqlen": 1}, [("dQ", "dK: 8 of its elements")]),
        (over_q, {}, [("dQ", "q: 640 of its elements")]),
        (over_q, {"inplace": ("q",)}, []),
        (lambda given, results: results | {"dV": given["do"]}, {"seqlen": 1}, [("dV", "do: 32 of its elements")]),
    ],
)  # fmt: skip
def test_a_gradient_in_the_memory_of_an_input_or_of_another_is_a_mismatch_and_parts_of_one_buffer_are_not(
    change, options, found
):
    report = probed(change, runs=((),), **options)
    assert report.runs[0].measured.matches
    shared = memory(report, SHARED)["contiguous"]
    told = [
        (one.tensor, one.sentence.partition("of ")[2].partition(" are")[0]) for one in shared
    ]
    assert told == found
    assert (report.verdict == "match") == (not found)


def test_what_autograd_shares_is_no_finding_and_a_gradient_that_a_function_lays_over_its_input_is():
    def attention(q, k, v, *, scale):
        return (scale * (q @ k.mT)).softmax(-1) @ v

    case = case_of("softmax", **SMALL | {"seqlen": 1})
    # Of one key P is 1: dV is dO, handed on, and dQ and dK are one tensor of zeros.
    assert probe(case, target_of(lambda q, k, v, *, scale: 0.0 * (q + k) + v)).verdict == "match"

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, scale):
            ctx.save_for_backward(q, k, v)
            ctx.scale = scale
            return attention(q, k, v, scale=scale)

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            results = softmax(q, k, v, do, scale=ctx.scale)
            with torch.no_grad():
                q.detach().copy_(results["dQ"])
            return q.detach(), results["dK"], results["dV"], None

    def over(q, k, v, *, scale):
        return Function.apply(q, k, v, scale)

    report = probe(case_of("softmax", **SMALL), target_of(over))
    found = {(stray.kind, stray.tensor) for stray in report.runs[0].memory}
    assert found == {(CHANGED, "q"), (SHARED, "dQ")}


def test_inplace_names_inputs_that_the_target_is_given():
    with pytest.raises(UsageFailure, match="--inplace: no input 'dq'"):
        run_check(CheckRequest("lazy", None, None, {"inplace": ["dq"]}), "")
    with pytest.raises(UsageFailure, match="--inplace sinks: target 'lazy' is not given sinks"):
        run_check(CheckRequest("lazy", None, None, {"inplace": ["sinks"]}), "")
