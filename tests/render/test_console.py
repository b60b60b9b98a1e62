"""The table of heads: what is wrong in one head is not folded with what is right in its neighbours."""

from gradprobe.model.report import SplitProducts
from gradprobe.render.console import _split, head_groups


def test_where_heads_change_more_often_than_there_are_columns_the_shortest_neighbours_share_one():
    assert head_groups("abc", 3) == [range(0, 1), range(1, 2), range(2, 3)]
    assert head_groups("rwwwwwww", 7) == [range(0, 1), range(1, 8)]
    assert head_groups("aabcccddd", 3) == [range(0, 3), range(3, 6), range(6, 9)]


def test_it_is_told_how_float64_products_were_made_and_why():
    told = _split(SplitProducts(split=5, native=1, ratio=5.26))
    assert told == "5 of 6 float64 products made of exact float32 ones (5.3 times as fast on this device)"
