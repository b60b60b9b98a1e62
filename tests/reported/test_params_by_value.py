"""A .cu file whose host code launches a kernel with a structure by value is checked as it stands."""

from tests.reported.conftest import SMALL


def test_the_stride_of_another_tensor_is_found_at_its_line(check):
    ran, report = check(f"params_by_value.cu {SMALL}")
    verdicts = {run["layout"]: run["verdict"] for run in report["runs"]}
    assert (ran.code, verdicts["contiguous"], verdicts["distinct-unit"]) == (1, "match", "mismatch")
    cause = report["diagnoses"][0]
    assert cause["fault"] == "stride/do-row"
    assert {18, 20} & {
        where["line"] for where in cause["where"] if where["file"].endswith("params_by_value.cu")
    }
    assert report["first_mismatch"]["intermediate"] == "delta"
