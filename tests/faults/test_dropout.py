"""DRP: dropout forgotten somewhere."""

from tests.faults.plain import both_ways, making, named, remembering, told
from tests.sampling import sampled

PLANTED = {
    "dV of all of P": (
        "dropout/dv",
        lambda: remembering("dV", lambda of, t: of("P").mT @ of("do")),
    ),
    "dP of all of P": (
        "dropout/dp",
        lambda: remembering("dP", lambda of, t: of("do") @ of("v").mT),
    ),
    "dV not scaled": ("dropout/scale", lambda: making("dV", lambda t: t * 0.7)),
    "dP not scaled": ("dropout/scale", lambda: making("dP", lambda t: t * 0.7)),
}


@both_ways
@sampled("name", PLANTED, push=2)
def test_dropout_that_is_left_out_is_named_by_what_it_is_left_out_of(name, exposed):
    fault, planted = PLANTED[name]
    assert named(told(planted(), exposed=exposed, dropout=0.3)) == fault
