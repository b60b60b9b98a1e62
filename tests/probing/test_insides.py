from gradprobe.targets.find import find_target
from tests.cases import softmax_case
from tests.probe import probe


def test_what_a_target_of_one_batch_does_with_more_is_not_held_against_it() -> None:
    case = softmax_case(batch=1, heads=1, seqlen=20, head_dim=16, bias=True)
    probed = probe(case, find_target("tests.probing.batched_bias:backward"))
    assert probed.runs[0].inside is not None
    assert probed.verdict == "match"
    assert not any(run.memory for run in probed.runs)
