"""The case options of the command line, and how their words become values."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model import assignment as lying
from ..model import case as cases
from ..model.assignment import OUTPUTS, parse_layout, parse_run, parse_shapes
from ..model.case import IMPLIED, Case, flag_of
from ..model.failures import UsageFailure, did_you_mean
from ..model.resolution import refuse_unknown


@dataclass(frozen=True)
class Option:
    name: str
    kind: Any
    help: str
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    numbers: bool = False

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def expected(self) -> str:
        return "an array of numbers" if self.numbers else _KINDS[self.kind]


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
_KINDS |= {list: "an array of strings"}


def word_of(option: Option, value: Any) -> Any:
    """What the command line would hold for a plain value; None of another type."""
    import msgspec

    kind, is_word = option.kind, isinstance(value, str)
    if kind is list:
        kind, value = list[str], [value] if is_word else value
    elif option.numbers and not is_word:
        items = value if isinstance(value, list) else [value]
        are_numbers = items and all(type(item) in (int, float) for item in items)
        value = ",".join(map(str, items)) if are_numbers else None
    try:
        return msgspec.convert(value, kind, strict=kind is bool or not is_word)
    except msgspec.ValidationError:
        return None


def _numbers(
    name: str, convert: Callable[[str], Any], help: str, metavar: str, count: int | None = None
) -> Option:
    form = f"{'whole ' if convert is int else ''}numbers"
    form = f"{form} separated by commas" if count is None else f"two {form}, {metavar}"

    def parse(word: str) -> tuple[Any, ...]:
        try:
            values = tuple(convert(part) for part in word.split(","))
        except ValueError:
            values = ()
        if not values or (count is not None and len(values) != count):
            raise UsageFailure(f"{flag_of(name)} takes {form}, got {word!r}")
        return values

    return Option(name, str, help, metavar, parse, True)


def _implied(word: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in word.split(","))
    if unknown := [name for name in names if name not in IMPLIED]:
        words = f"--implied takes some of {', '.join(IMPLIED)}, got {word!r}"
        raise UsageFailure(words, did_you_mean(unknown[0], IMPLIED, ""))
    return names


def _input(word: str) -> str:
    known = [name for name in lying.TENSORS if name not in OUTPUTS]
    if word.lower() not in known:
        raise UsageFailure(f"--inplace: no input {word!r}", did_you_mean(word, known))
    return word.lower()


def _all(parse: Callable[[str], Any]) -> Callable[[list[str]], tuple[Any, ...] | None]:
    return lambda words: tuple(map(parse, words)) or None


FAMILIES = ("softmax", "lazy")
OPTIONS = (
    Option("batch", int, "Batches (default: 2)"),
    Option("heads", int, "Query heads (default: 3)"),
    Option("kv_heads", int, "Key/value heads, a divisor of --heads (default: as many)"),
    Option("seqlen", int, "Query rows and keys (default: 72)"),
    Option("seqlen_q", int, "Query rows"),
    Option("seqlen_k", int, "Keys"),
    Option("head_dim", int, "Head dim of q and k (default: 24)"),
    Option("head_dim_v", int, "Head dim of v (default: --head-dim)"),
    Option("dtype", str, f"{', '.join(cases.DTYPES)} (default: float32)"),
    Option("causal", bool, "Causal mask (default: lazy always, softmax not)"),
    Option("align", str, f"Corner of the diagonal: {', '.join(cases.ALIGNMENTS)} (default: bottom-right)"),
    _numbers("window", int, "Sliding window; -1 for no limit", "LEFT,RIGHT", 2),
    Option("window_as", str, f"How TARGET takes the window: {' or '.join(cases.WINDOW_FORMS)}, LEFT alone "
           "(default: as its parameter is typed)", "FORM"),
    Option("softcap", float, "Scores become c * tanh(S / c)"),
    Option("scale", float, "Factor of the scores (default: 1 / sqrt(head dim))"),
    Option("bias", bool, "Additive bias (default: lazy with, softmax without)"),
    Option("bias_window", int, "Distances that the lazy bias covers (default: 40)"),
    Option("bias_axes", str, "Axes of the softmax bias, of b, h, m, n (default: hmn)"),
    Option("bias_rank", int, "Number of axes of TARGET's bias, 2 to 4 (default: 4)"),
    Option("alibi", bool, "ALiBi slopes, one a head"),
    Option("mask", str, f"Boolean mask, True where a key may be seen: {', '.join(cases.MASKS)}"),
    Option("mask_axes", str, "Axes of the mask (default: bhmn; of padding bn)"),
    Option("mask_rank", int, "Number of axes of TARGET's mask"),
    Option("mask_as", str, f"How TARGET takes the mask: {' or '.join(cases.MASK_FORMS)}, 0 or -inf "
           "(default: boolean)", "FORM"),
    Option("lse_as", str, f"Unit of TARGET's LSE: {' or '.join(cases.LSE_FORMS)} "
           "(default: natural)", "FORM"),
    Option("sinks", bool, "A learnable sink logit per head"),
    Option("dropout", float, "Dropout probability; TARGET is given the mask"),
    _numbers("tau", float, "Lazy attention's tau, one or one a head (default: both signs)", "T,..."),
    _numbers("seqlens", int, "Live length of each batch, right padding", "N,..."),
    _numbers("cu_seqlens", int, "Packed sequences: where each begins, and the end", "0,N,..."),
    _numbers("cu_seqlens_k", int, "The same of the keys (default: as --cu-seqlens)", "0,N,..."),
    Option("seed", int, "Seed of the drawn values (default: 0)"),
    Option("device", str, f"Where TARGET runs: {', '.join(cases.DEVICES)} (default: auto)"),
    Option("layout", list,
           f"How a tensor, or all, lies: {', '.join(lying.LAYOUTS)}; of --inputs "
           f"{lying.AS_SAVED}", "[TENSOR=]NAME", _all(parse_layout)),
    Option("runs", list, "A layout to run in, may be repeated: contiguous, distinct, do=expanded", "LAYOUT",
           _all(parse_run)),
    Option("block_m", int, "Query rows of a tile (default: 32)"),
    Option("block_n", int, "Keys of a tile (default: 16)"),
    Option("inputs", str, "File of real q, k, v, do (.pt, .npz)", "FILE"),
    Option("shapes", str, f"Order of axes of q, k, v, dO in TARGET: {', '.join(lying.SHAPES)} "
           f"(default: {lying.PLAIN})", parse=parse_shapes),
    Option("implied", str, f"What TARGET does without a parameter for it: {', '.join(IMPLIED)}", "NAME,...",
           _implied),
    Option("as_cuda", bool, "Let interpreted tensors say that they are on a GPU"),
    Option("arch", str, f"Without a GPU, the one that TARGET is told of: "
           f"{', '.join(cases.ARCHITECTURES)} (default: {cases.DEFAULT_ARCHITECTURE})", "ARCH"),
    Option("untested", bool, "Go on with versions that gradprobe is not tested with"),
    Option("ranks", int, "Processes that TARGET works in, each given its shard"),
    Option("shards", str, f"What each rank holds: {', '.join(cases.SHARDS)} (default: contiguous)"),
    Option("pattern", str, f"Pattern of the drawn values: {', '.join(cases.PATTERNS)} (default: normal)"),
    Option("dots", str, f"Arithmetic of float32 dots: {', '.join(cases.DOTS)} (default: what the backend does)"),
    Option("repeat", int, "Runs of each layout, compared with one another (default: 1)"),
    Option("poison", bool, "Fill what TARGET allocates with NaN, in every second run with 7.0"),
    Option("inplace", list, "An input that TARGET may write over", "TENSOR", _all(_input)),
    Option("recover", bool, "Recover P, dP, delta and dS from gradients (default: yes)"),
    Option("strict", bool, "Count warnings as mismatches, and sums kept in 16 bits"),
)  # fmt: skip

MOVED = {
    "compare": "gradprobe show OLD.json NEW.json",
    "targets": "gradprobe init --list",
    "contract": "gradprobe check TARGET --contract",
    "baseline": "gradprobe check TARGET --baseline FILE",
    "--class": "gradprobe mutate plants faults of every class, and --sample says how many",
    "--draw": "gradprobe check TARGET --battery chooses cases",
}
_BY_NAME = {option.name: option for option in OPTIONS}


def parse(words: Mapping[str, Any]) -> dict[str, Any]:
    """Raises UsageFailure."""
    if words.get("layout") and words.get("runs"):
        both = "--layout and --runs both say where tensors lie"
        raise UsageFailure(both, "give one: --layout is a single run")
    given = dict[str, Any]()
    for name, word in words.items():
        if word is not None and word != []:
            value = _BY_NAME[name].parse
            given["layouts" if name == "layout" else name] = value(word) if value else word
    if "inputs" not in given:
        refuse_unknown(given)
    return given


def refuse_unknown_family(word: str | None) -> None:
    if word not in (None, *FAMILIES):
        words = f"--family must be {' or '.join(FAMILIES)}, got {word!r}"
        raise UsageFailure(words, did_you_mean(word, FAMILIES, ""))


def flags(words: Mapping[str, Any]) -> list[str]:
    parts: list[str] = []
    for name, word in words.items():
        flag = flag_of(name)
        if isinstance(word, bool):
            parts.append(flag if word else f"--no-{flag[2:]}")
        elif isinstance(word, list):
            parts += [part for item in word for part in (flag, str(item))]
        elif word is not None:
            parts += [flag, str(word)]
    return parts


def length_words(case: Case) -> dict[str, Any]:
    """None for one that is not needed."""
    ends, of_keys = case.cu_seqlens_q, case.cu_seqlens_k
    if ends:
        other = None if of_keys in (None, ends) else _listed(of_keys)
        return {"cu_seqlens": _listed(ends), "cu_seqlens_k": other}
    lengths = {"seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    if case.seqlen_q == case.seqlen_k:
        lengths = {"seqlen": case.seqlen_q}
    return {**lengths, "seqlens": _listed(case.seqlens)}


def _listed(numbers: Sequence[int] | None) -> str | None:
    return ",".join(map(str, numbers)) if numbers else None


def command_line(
    command: str, target: str, words: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> str:
    named = [*command.split(), *filter(None, [target])]
    return shlex.join(["gradprobe", *named, *flags({**words, **(extra or {})})])


def with_others(command: str, options: Mapping[str, Any]) -> str:
    """A command line with these options in the place of its own."""
    words, kept = shlex.split(command), list[str]()
    while words:
        word = words.pop(0)
        flag, equals, _ = word.partition("=")
        if flag in map(flag_of, options):
            del words[: 0 if equals else 1]
        else:
            kept.append(word)
    return shlex.join([*kept, *flags(options)]) if command else ""
