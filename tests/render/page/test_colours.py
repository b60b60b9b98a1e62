"""The colours of a page: text can be read, and what pictures tell apart stays apart for whoever sees fewer colours."""

import math
import re
from itertools import combinations

import pytest

from gradprobe.render.page.page import TEMPLATES

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
PICTURES = [(mark, "page") for mark in ("wrong", "inherited", "right", "soft", "w3", "w4", "link")]
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}
# Two colours side by side are told apart at a distance of about 2 (CIEDE2000); these may lie far from one another.
APART = 10.0
CLASSES = ("r0", "r1", "w1", "w2", "w3", "w4")


def themes():
    light, dark = CSS.split("@media screen", 1)
    return {
        "light": dict(_VARIABLE.findall(light)),
        "dark": dict(_VARIABLE.findall(light)) | dict(_VARIABLE.findall(dark)),
    }


def linear(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def product(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def contrast(one, other):
    low, high = sorted(
        sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear(c), strict=True))
        for c in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def lab(colour, seen):
    rgb = [min(1.0, max(0.0, part)) for part in product(SEEN[seen], linear(colour))]
    xyz = product(
        (
            (0.4124564, 0.3575761, 0.1804375),
            (0.2126729, 0.7151522, 0.072175),
            (0.0193339, 0.119192, 0.9503041),
        ),
        rgb,
    )
    x, y, z = (
        part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116
        for part in (
            value / white for value, white in zip(xyz, (0.95047, 1.0, 1.08883), strict=True)
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Sharma, Wu and Dalal 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (
        math.degrees(math.atan2(b, a)) % 360 if a or b else 0.0 for a, b in ((a1, b1), (a2, b2))
    )
    turn = 0.0 if not c1 * c2 else (h2 - h1 + 180) % 360 - 180
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    if not c1 * c2:
        hm = h1 + h2
    elif abs(h1 - h2) <= 180:
        hm = (h1 + h2) / 2
    else:
        hm = (h1 + h2 + (360 if h1 + h2 < 360 else -360)) / 2
    t = (
        1 - 0.17 * math.cos(math.radians(hm - 30)) + 0.24 * math.cos(math.radians(2 * hm))
        + 0.32 * math.cos(math.radians(3 * hm + 6)) - 0.20 * math.cos(math.radians(4 * hm - 63))
    )  # fmt: skip
    sl = 1 + 0.015 * (lm - 50) ** 2 / math.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rc = 2 * math.sqrt(cm**7 / (cm**7 + 25**7))
    rt = -rc * math.sin(math.radians(60 * math.exp(-(((hm - 275) / 25) ** 2))))
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * dc / sc * dh / sh)


def test_the_distance_is_that_of_its_authors():
    """Pairs 1, 7, 17 and 25 of their table."""
    pairs = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425), ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492), ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ]  # fmt: skip
    for one, other, distance in pairs:
        assert ciede2000(one, other) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_pictures_stand_out_from_their_ground(theme):
    colours = themes()[theme]
    ratios = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in TEXT}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < OF_TEXT} == {}
    ratios = {pair: contrast(*(colours[name] for name in pair)) for pair in PICTURES}
    assert {pair: round(ratio, 2) for pair, ratio in ratios.items() if ratio < OF_PICTURES} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("seen", SEEN)
def test_classes_of_tiles_and_states_stay_apart_whatever_colours_are_seen(theme, seen):
    colours = {name: lab(value, seen) for name, value in themes()[theme].items()}
    states = combinations(("wrong", "inherited", "right", "ink"), 2)
    pairs = [*combinations(CLASSES, 2), *states, ("w2", "link")]
    close = {pair: round(ciede2000(*(colours[name] for name in pair)), 1) for pair in pairs}
    assert {pair: distance for pair, distance in close.items() if distance < APART} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_further_off_a_tile_is_the_more_it_stands_out_and_the_worst_is_not_pale(theme):
    colours = themes()[theme]
    wrong = [name for name in CLASSES if name.startswith("w")]
    out = [contrast(colours[name], colours["page"]) for name in wrong]
    full = [math.hypot(*lab(colours[name], "all colours")[1:]) for name in wrong]
    assert out == sorted(out)
    assert full[-1] > full[0]
    assert theme == "light" or full == sorted(full)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_is_right_has_a_colour_the_fuller_the_nearer_it_is_to_what_is_allowed(theme):
    colours = themes()[theme]
    page, r0, r1, right = (
        math.hypot(*lab(colours[name], "all colours")[1:]) for name in ("page", "r0", "r1", "right")
    )
    assert page + 5 < r0 < r1
    assert right > 20
