"""The table of heads: what is wrong in one head is not folded with what is right in its neighbours."""

from gradprobe.render.console import head_groups


def test_where_heads_change_more_often_than_there_are_columns_the_shortest_neighbours_share_one():
    assert head_groups("abc", 3) == [range(0, 1), range(1, 2), range(2, 3)]
    assert head_groups("rwwwwwww", 7) == [range(0, 1), range(1, 8)]
    assert head_groups("aabcccddd", 3) == [range(0, 3), range(3, 6), range(6, 9)]
