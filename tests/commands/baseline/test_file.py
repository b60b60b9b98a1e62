"""The file of entries: what was saved comes back, the same bytes for the same entries, and a broken one is refused."""

import json

import pytest

from gradprobe.commands.baseline.entry import load, save, with_entry
from gradprobe.inputs.history import CheckRequest
from gradprobe.model.failures import UsageFailure
from tests.commands.baseline.entries import entry


def test_what_is_saved_comes_back(tmp_path):
    file = str(tmp_path / "b.json")
    kept = (
        entry(
            "flash",
            request=CheckRequest(
                "flash", "softmax", "mine.py:reference", {"heads": 4, "causal": True}
            ),
        ),
        entry("lazy", coarser=("dK",)),
    )
    save(file, kept)
    assert load(file) == kept


def test_the_same_entries_are_the_same_bytes_in_whatever_order_they_were_added(tmp_path):
    several = [entry(name) for name in ("lazy", "b.py:f", "a.py:f")]
    for file, order in (("one.json", several), ("two.json", several[::-1])):
        kept = ()
        for one in order:
            kept = with_entry(kept, one)
        save(str(tmp_path / file), kept)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert [one.request.target for one in load(str(tmp_path / "one.json"))] == [
        "a.py:f",
        "b.py:f",
        "lazy",
    ]


def test_an_entry_takes_the_place_of_that_of_the_same_target_and_options():
    old, other = (
        entry("lazy"),
        entry("lazy", request=CheckRequest("lazy", None, None, {"heads": 4})),
    )
    new = entry("lazy", coarser=("dK",))
    assert with_entry((old, other), new) == (new, other)


def test_the_figures_of_one_intermediate_stand_on_one_line(tmp_path):
    file = tmp_path / "b.json"
    save(str(file), (entry(errors={"contiguous": {"dQ": 2.0}}),))
    lines = file.read_text().splitlines()
    assert '            "rms": [0.2, 0.202, 0.198, 0.204, 0.196],' in lines
    assert '      "seeds": [0, 1, 2, 3, 4],' in lines


def test_words_with_brackets_and_blanks_in_them_stay_as_they_are(tmp_path):
    file = str(tmp_path / "b.json")
    words = {"shards": "my.py:cut[0,  1, 2]", "layout": ["do=expanded", "all=blhd"]}
    save(file, (entry(request=CheckRequest("lazy", None, None, words)),))
    assert load(file)[0].request.options == words


def broken(change):
    """The text of a file of one entry, after a change of its document."""

    def text(tmp_path):
        file = tmp_path / "b.json"
        save(str(file), (entry(),))
        document = json.loads(file.read_text())
        return json.dumps(change(document) or document)

    return text


def changed(*path, to):
    def change(document):
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return broken(change)


FIGURES = ("entries", 0, "errors", "distinct", "dQ", "rms")


@pytest.mark.parametrize(
    "text",
    [
        lambda _: "", lambda _: "{", lambda _: "[]", lambda _: "null", lambda _: "[" * 100_000, lambda _: "\udcff",
        changed("schema", to="gradprobe.baseline/2"), changed("entries", to=None), changed("entries", to=[1]),
        changed("entries", 0, "target", to=3), changed("entries", 0, "options", to={"heads": "four"}),
        changed("entries", 0, "options", to={"colour": 1}), changed("entries", 0, "seeds", to=[0, 1]),
        changed("entries", 0, "seeds", to=[0, 1, 2, 3, "4"]), changed("entries", 0, "ran", to=None),
        changed("entries", 0, "environment", to=[]), changed(*FIGURES, to=[0.1] * 4),
        changed(*FIGURES, to=[0.1, 0.1, 0.1, 0.1, None]), changed(*FIGURES, to=[0.1, 0.1, 0.1, 0.1, -0.1]),
        changed(*FIGURES, to=[0.1, 0.1, 0.1, 0.1, True]), changed("entries", 0, "errors", to={"contiguous": 1}),
        broken(lambda document: document["entries"][0].pop("case") and None),
        lambda tmp_path: changed(*FIGURES, to=[0.1] * 5)(tmp_path).replace("0.1]", "Infinity]"),
        lambda tmp_path: changed(*FIGURES, to=[0.1] * 5)(tmp_path).replace("0.1]", "NaN]"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_baseline_is_refused_by_name_with_a_way_out(text, tmp_path):
    file = tmp_path / "b.json"
    file.write_bytes(text(tmp_path).encode(errors="surrogateescape"))
    with pytest.raises(UsageFailure, match=f"--baseline {file}: ") as told:
        load(str(file))
    assert told.value.way_out == "gradprobe check TARGET --baseline FILE writes one"


def test_a_file_that_is_not_there_and_one_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(UsageFailure, match="there is no such file"):
        load(str(tmp_path / "none.json"))
    with pytest.raises(UsageFailure, match="cannot be written"):
        save(str(tmp_path / "no" / "folder.json"), ())
