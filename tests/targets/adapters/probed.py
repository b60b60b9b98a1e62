"""Built-in and other targets through the tool, on the CPU."""

from gradprobe.inputs.options import parse
from gradprobe.model.resolution import resolve
from gradprobe.numerics.evidence import ProbeResult
from gradprobe.targets.find import find_target
from tests.probe import probe


def probed(word: str, reference: str | None = None, **options: object) -> ProbeResult:
    target = find_target(word)
    given = {**parse(options), "device": "cpu"}
    case = resolve(given, target.family, takes_bias="bias" in target.takes, packs=target.packs)
    return probe(case, target, reference=find_target(reference) if reference else None)


def ratios(report: ProbeResult) -> dict[str, float]:
    worst: dict[str, float] = {}
    for _, measured in report.measured:
        for name, finding in measured.comparison.findings.items():
            worst[name] = max(worst.get(name, 0.0), finding.max_ratio)
    return worst
