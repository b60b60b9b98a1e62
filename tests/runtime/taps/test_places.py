"""Behind which statements of a function a tap stores."""

from types import SimpleNamespace

import pytest

from gradprobe.runtime.taps import parse_tap
from gradprobe.runtime.taps.places import places
from gradprobe.runtime.taps.rewrite import behind
from gradprobe.source.triton_source import read_function

# ruff: noqa: F841, RET504


# Functions that nothing calls: only their text matters.
n_steps = start = tile = mask = other = c = 0


def shown(written, word):
    """The text of a function with a mark at every place, without `def` and indented as it stands."""
    function = read_function(SimpleNamespace(fn=written))
    tap = parse_tap(word)
    usable = [p for p in places(function, tap) if tap.index_names & function.variables <= p.visible]
    text = function.edited([behind(function, place.statement, "STORE") for place in usable])
    compile(text, "marked", "exec")
    return [line.strip() for line in text.splitlines() if "STORE" in line]


def last_of_several():
    m = start + 1
    p = tile(m)
    p = p * 2  # a comment
    # fmt: off
    p += (
        1 +
        m)  # another
    # fmt: on
    q = p
    return q


def test_behind_the_last_assignment_of_a_block_before_its_comment():
    assert shown(last_of_several, "delta=p[0,0,m]") == ["m); STORE  # another"]


def masked_in_a_branch():
    for n in range(n_steps):
        p = tile(n)
        if c:
            p = mask(p)
        other(p)


def test_behind_a_branch_that_changes_what_was_assigned_before_it():
    assert shown(masked_in_a_branch, "delta=p[0,0,n]") == ["STORE"]


def in_either_branch():
    for n in range(n_steps):
        if c == 1:
            p = tile(n)
        elif c == 2:
            p = mask(n)
        else:
            p = other(n)


def test_behind_a_branch_all_ways_of_which_assign():
    assert shown(in_either_branch, "delta=p[0,0,n]") == ["STORE"]


def in_one_branch():
    for n in range(n_steps):
        if c == 1: p = tile(n)  # noqa: E701  # fmt: skip
        elif c == 2:
            p = mask(n)
            p = p + 1


def test_inside_the_branches_where_some_way_assigns_nothing():
    lines = shown(in_one_branch, "delta=p[0,0,n]")
    assert lines == ["if c == 1: p = tile(n); STORE  # noqa: E701  # fmt: skip", "p = p + 1; STORE"]


def in_two_loops():
    for n in range(n_steps):
        p = tile(n)
    for n in range(n_steps):
        p = mask(tile(n))


def test_in_each_of_two_loops_over_tiles():
    assert shown(in_two_loops, "delta=p[0,0,n]") == ["p = tile(n); STORE", "p = mask(tile(n)); STORE"]


def accumulated():
    m = start
    dq = 0
    for n in range(n_steps):
        dq += tile(n)
    dq = dq * 2


def test_an_accumulator_is_stored_once_behind_its_last_change():
    assert shown(accumulated, "delta=dq[0,0,m]") == ["dq = dq * 2; STORE"]


def accumulated_last():
    m = start
    dq = 0
    for n in range(n_steps):
        dq += tile(n) + m
    return dq


def test_an_accumulator_that_nothing_scales_is_stored_behind_the_loop():
    assert shown(accumulated_last, "delta=dq[0,0,m]") == ["STORE"]


def indexed_later():
    dq = 0
    for n in range(n_steps):
        dq += tile(n)
    m = start
    other(dq, m)


def test_where_the_index_comes_after_the_variable_the_store_waits_for_it():
    assert shown(indexed_later, "delta=dq[0,0,m]") == ["m = start; STORE"]


def advanced():
    n = start
    p = 0
    for _ in range(n_steps):
        p = tile(n)
        n += 1
    n = 0
    p = tile(n)


def test_an_index_that_is_moved_on_is_used_before_it_moves():
    lines = shown(advanced, "delta=p[0,0,n]")
    assert lines == ["p = 0; STORE", "p = tile(n); STORE", "p = tile(n); STORE"]


def set_before_the_loop():
    p = 0
    for step in range(n_steps):
        n = start + step
        p = tile(n)
    return p


def test_what_is_assigned_before_the_index_exists_is_not_stored():
    assert shown(set_before_the_loop, "delta=p[0,0,n]") == ["p = tile(n); STORE"]


def fresh_in_every_turn():
    n = start
    p = 0
    for step in range(n_steps):
        p = tile(step)
        p = mask(p)
    return p


def named_in_some_turns():
    n = start
    for step in range(n_steps):
        p = tile(step)
        if c:
            n = start + step
            p = mask(p)
        other(p)


def named_in_every_turn():
    for step in range(n_steps):
        if c:
            n = start + step
        else:
            n = start - step
        p = tile(n)
        while n < 3:
            n += 1


def running():
    m = start
    peak = 0
    for step in range(n_steps):
        new = max(peak, tile(step))
        other(new)
        peak = new
    return peak


def overwritten():
    m = start
    for step in range(n_steps):
        peak = tile(step)
    peak = tile(m)


def named_in_the_other_branch():
    n = start
    for step in range(n_steps):
        if step % 2:
            p = tile(step)
        else:
            n = start + step


def stale(written, word):
    tap = parse_tap(word)
    return [place.stale for place in places(read_function(SimpleNamespace(fn=written)), tap)]


def test_a_loop_that_computes_anew_what_the_index_cannot_tell_apart_is_refused():
    (words,) = [words for words in stale(fresh_in_every_turn, "delta=p[0,0,n]") if words]
    line = fresh_in_every_turn.__code__.co_firstlineno + 3
    assert words == f"the loop in line {line} computes it anew in every turn, and nothing in the index changes there"
    assert not any(stale(fresh_in_every_turn, "delta=p[0,0,start + step]"))


def test_an_index_that_only_the_branch_beside_the_tile_renews_is_refused():
    line = named_in_the_other_branch.__code__.co_firstlineno + 2
    words = f"the loop in line {line} changes 'n' in some of its turns only"
    assert words in stale(named_in_the_other_branch, "delta=p[0,0,n]")


def test_an_index_that_a_branch_alone_renews_is_refused():
    line = named_in_some_turns.__code__.co_firstlineno + 2
    assert f"the loop in line {line} changes 'n' in some of its turns only" in stale(
        named_in_some_turns, "delta=p[0,0,n]"
    )
    assert stale(named_in_some_turns, "delta=p[0,0,start + step]") == [""]
    assert shown(named_in_some_turns, "delta=p[0,0,start + step]") == ["STORE"]


def test_an_index_that_every_branch_renews_is_not():
    assert stale(named_in_every_turn, "delta=p[0,0,n]") == [""]


def test_a_running_value_is_stored_behind_its_loop_though_it_is_assigned_afresh_by_name():
    assert stale(running, "delta=peak[0,0,m]") == [""]
    assert shown(running, "delta=peak[0,0,m]") == ["STORE"]


def test_what_a_later_assignment_overwrites_is_not_stored():
    assert stale(overwritten, "delta=peak[0,0,m]") == [""]
    assert shown(overwritten, "delta=peak[0,0,m]") == ["peak = tile(m); STORE"]


def left_early():
    n = start
    p = tile(n)
    if c:
        p = mask(p)
        return
    other(p)


def test_a_branch_that_leaves_is_looked_into():
    assert shown(left_early, "delta=p[0,0,n]") == ["p = tile(n); STORE", "p = mask(p); STORE"]


def unpacked():
    for n in range(n_steps):
        p, dp = tile(n), "größer"; ds = p  # noqa: E702  # fmt: skip
        other(ds, dp)


def test_a_variable_among_several_on_one_line_beyond_ascii():
    assert shown(unpacked, "delta=ds[0,0,n]") == ['p, dp = tile(n), "größer"; ds = p; STORE  # noqa: E702  # fmt: skip']
    assert shown(unpacked, "delta=p[0,0,n]") == ['p, dp = tile(n), "größer"; STORE; ds = p  # noqa: E702  # fmt: skip']


@pytest.mark.parametrize("variable", ["s", "tile", "n_steps", "start"])
def test_what_no_statement_assigns_has_no_place(variable):
    assert shown(masked_in_a_branch, f"delta={variable}[0,0,0]") == []
