"""Rule ids never change."""

from gradprobe.render.ci_rules import OF_FAILURE, OF_MEMORY, RULES

# Alerts that somebody closed are known by these: one may be added, none changed or taken away.
PUBLISHED = {
    "GP001": ("WrongIntermediate", "error"), "GP002": ("InheritedError", "note"), "GP003": ("BrokenIdentity", "error"),
    "GP004": ("Cause", "error"),
    "GP010": ("AccessOutsideTensor", "error"), "GP011": ("GuardBandTouched", "error"),
    "GP012": ("UnwrittenOutput", "error"), "GP013": ("StoreRace", "error"), "GP014": ("DivergentBarrier", "error"),
    "GP015": ("MisalignedAccess", "error"), "GP016": ("InputOverwritten", "error"),
    "GP017": ("ResultInOtherMemory", "error"), "GP018": ("CoarserResult", "error"),
    "GP019": ("UndefinedShuffle", "error"),
    "GP020": ("Crash", "error"),
    "GP021": ("Timeout", "error"), "GP022": ("TargetFailed", "error"), "GP023": ("ReferenceFailed", "error"),
    "GP024": ("ToolFailed", "error"), "GP025": ("WrongUsage", "error"),
    "GP026": ("Incomplete", "error"), "GP027": ("NotCompiled", "error"), "GP030": ("LayoutRefused", "none"),
    "GP040": ("OffsetOf32Bits", "warning"), "GP041": ("StridedVector", "warning"),
    "GP042": ("UndeclaredCase", "warning"),
}  # fmt: skip


def test_the_published_ids_are_those_of_the_rules():
    assert {rule.id: (rule.name, rule.level) for rule in RULES} == PUBLISHED
    assert len(RULES) == len(PUBLISHED)


def test_kinds_of_memory_findings_and_failures_keep_their_ids():
    assert {kind: rule.id for kind, rule in OF_MEMORY.items()} == {
        "outside": "GP010", "guard": "GP011", "unwritten": "GP012", "race": "GP013", "barrier": "GP014",
        "misaligned": "GP015", "changed": "GP016", "shared": "GP017", "dtype": "GP018", "shuffle": "GP019",
    }  # fmt: skip
    assert {kind: rule.id for kind, rule in OF_FAILURE.items()} == {
        "Crash": "GP020", "DeviceLost": "GP020", "NoRoom": "GP020", "Timeout": "GP021", "TargetFailure": "GP022",
        "RanksFailure": "GP022", "Refusal": "GP022", "KernelStopped": "GP022", "NoKernel": "GP022",
        "ReferenceFailure": "GP023",
        "UsageFailure": "GP025", "UntestedVersion": "GP025", "InputsFailure": "GP025",
        "Incomplete": "GP026", "CompileError": "GP027",
    }  # fmt: skip


def test_summaries_are_short_enough_for_a_list_of_rules():
    assert all(0 < len(rule.topic.title) < 100 for rule in RULES)
