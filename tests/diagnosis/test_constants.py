"""What results are stored as, and known by."""

from gradprobe.diagnosis.follow import RESULTS, STORED


def test_a_result_is_stored_with_its_scale_and_known_by_what_it_is_without():
    assert STORED == {
        "dQ": "scale * dS K", "dK": "scale * dS^T Q", "dV": "dV", "O": "O", "LSE": "LSE", "delta": "delta",
    }  # fmt: skip
    assert RESULTS == {"dS K": "dQ", "dS^T Q": "dK", "dV": "dV", "O": "O"}
