"""The file of entries: what was saved comes back, the same bytes for the same entries, and a broken one is refused."""

import json

import pytest

from gradprobe.commands.baseline import load, save, with_entry
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.failures import UsageFailure
from tests.commands.baseline.entries import entry


def test_what_is_saved_comes_back_with_the_figures_of_one_intermediate_on_one_line(tmp_path):
    file = tmp_path / "b.json"
    words = {"shards": "my.py:cut[0,  1, 2]", "layout": ["do=expanded", "all=blhd"], "heads": 4}
    request = CheckRequest("flash", "softmax", "mine.py:reference", words)
    kept = (
        entry("flash", request=request),
        entry("lazy", {"contiguous": {"dQ": 2.0}}, coarser=("dK",)),
    )
    save(str(file), kept)
    assert load(str(file)) == kept
    lines = file.read_text().splitlines()
    assert '            "rms": [ 0.2, 0.202, 0.198, 0.204, 0.196 ],' in lines
    assert '      "seeds": [ 0, 1, 2, 3, 4 ],' in lines


def test_the_same_entries_are_the_same_bytes_in_whatever_order_and_a_new_one_takes_its_place(
    tmp_path,
):
    several = [entry(name) for name in ("lazy", "b.py:f", "a.py:f")]
    for file, order in (("one.json", several), ("two.json", several[::-1])):
        kept = ()
        for one in order:
            kept = with_entry(kept, one)
        save(str(tmp_path / file), kept)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    found = load(str(tmp_path / "one.json"))
    assert [one.request.target for one in found] == ["a.py:f", "b.py:f", "lazy"]
    new = entry("lazy", coarser=("dK",))
    other = entry("lazy", request=CheckRequest("lazy", None, None, {"heads": 4}))
    assert with_entry((several[0], other), new) == (new, other)


FIGURES = ("entries", 0, "errors", "distinct", "dQ", "rms")
CHANGES = [
    (("schema",), "gradprobe.baseline/2"), (("entries", 0, "options"), {"heads": "four"}),
    (("entries", 0, "seeds"), [0, 1]), (FIGURES, [0.1] * 4),
    (FIGURES, [0.1, 0.1, 0.1, 0.1, float("nan")]), (("entries", 0, "errors"), {"contiguous": 1}),
]  # fmt: skip


def changed(path, to, file):
    """The text of a file of one entry, after a change of its document."""
    save(str(file), (entry(),))
    document = json.loads(file.read_text())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize("change", ["null", "[" * 100_000, "\udcff", *CHANGES])
def test_a_file_that_holds_no_baseline_is_refused_by_name_with_a_way_out(change, tmp_path):
    file = tmp_path / "b.json"
    text = change if isinstance(change, str) else changed(*change, file)
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageFailure, match=f"--baseline {file}: ") as told:
        load(str(file))
    assert told.value.way_out == "gradprobe check TARGET --baseline FILE writes one"


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageFailure, match="cannot be written"):
        save(str(tmp_path / "no" / "folder.json"), ())
