import torch

from gradprobe.targets.surroundings import Surroundings


def test_a_target_that_chooses_the_number_of_threads_is_known_to_and_has_its_own_in_the_next_call():
    surroundings, before = Surroundings(), torch.get_num_threads()
    for more in (0, 1):
        with surroundings.inside():
            torch.set_num_threads(before + more)
        assert torch.get_num_threads() == before
        assert surroundings.sets_threads is bool(more)
    with surroundings.inside():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    assert surroundings.sentence == ""  # it changes no result
