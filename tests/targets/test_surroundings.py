"""What a target changes of its process is known afterwards, and undone."""

import pytest
import torch

from gradprobe.targets.surroundings import Surroundings


@pytest.mark.parametrize("more", [0, 1])
def test_a_target_that_chooses_the_number_of_threads_is_known_to(more):
    surroundings, before = Surroundings(), torch.get_num_threads()
    with surroundings.inside():
        torch.set_num_threads(before + more)
    assert torch.get_num_threads() == before
    assert surroundings.sets_threads is bool(more)
    assert surroundings.sentence == ""  # it changes no result


def test_its_threads_are_its_own_in_the_next_call():
    surroundings, before = Surroundings(), torch.get_num_threads()
    with surroundings.inside():
        torch.set_num_threads(before + 1)
    with surroundings.inside():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    assert surroundings.sets_threads
