"""The colours of a page: text can be read, and what pictures tell apart stays apart for whoever sees fewer colours."""

import re

import pytest

from gradprobe.render.page import TEMPLATES

CSS = (TEMPLATES / "page.css").read_text()
_VARIABLE = re.compile(r"--([\w-]+):\s*(#[0-9a-f]{3,6})")
# WCAG 2.2, 1.4.3 and 1.4.11: of text, and of what is needed to understand a picture.
OF_TEXT, OF_PICTURES = 4.5, 3.0
TEXT = [
    *((ink, ground) for ink in ("ink", "soft", "link", "wrong", "inherited", "right") for ground in ("page", "box")),
    *((ink, "wrong-box") for ink in ("ink", "soft", "wrong", "inherited")),
    *(("on-light", ground) for ground in ("r0", "r1", "w1", "w2")), ("on-dark", "w3"), ("on-dark", "w4"),
    ("page", "wrong"), ("right", "r0"),
]  # fmt: skip
PICTURES = [
    (mark, "page") for mark in ("wrong", "inherited", "right", "soft", "w3", "w4", "link")
]


def themes():
    light, dark = CSS.split("@media screen", 1)
    return {
        "light": dict(_VARIABLE.findall(light)),
        "dark": dict(_VARIABLE.findall(light)) | dict(_VARIABLE.findall(dark)),
    }


def linear(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]


def contrast(one, other):
    low, high = sorted(
        sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(c), strict=True))
        for c in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_pictures_stand_out_from_their_ground(theme):
    colours = themes()[theme]
    ratios = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in TEXT}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < OF_TEXT} == {}
    ratios = {pair: contrast(*(colours[name] for name in pair)) for pair in PICTURES}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < OF_PICTURES} == {}
