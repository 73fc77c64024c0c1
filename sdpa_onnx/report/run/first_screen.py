"""The first screen of a run: the verdict, one table, what to do next, how far the timings hold. Data only.

`terminal` prints it and `markdown` begins with it; everything else is in the report.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import AgreementRecord, Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.findings import first_findings
from sdpa_onnx.report.run.next_steps import NextStep, next_steps
from sdpa_onnx.report.text.labels import usual_factors
from sdpa_onnx.report.text.table import Table
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.case_groups import CaseGroups, case_groups, wrong_arm
from sdpa_onnx.report.timing.case_names import case_names
from sdpa_onnx.report.timing.case_table import medians_table
from sdpa_onnx.report.timing.comparisons import comparisons
from sdpa_onnx.report.timing.trust import timing_trust, trust_sentence
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

__all__ = ["FirstScreen", "first_screen", "sized_screen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """What a reader sees first.

    Args:
        verdict: Sentences: numbers right or wrong, what is not ok, how much of it is known.
        outcome: The worst outcome of the run; SKIPPED also for a run that is not finished or empty.
        groups: The timed cases in groups, for the table.
        medians: The table of arms that were timed without another arm; None if there is a comparison or no timing.
        steps: What to do next.
        trust: Whether the verdicts on the times hold; "" without timings.
    """

    verdict: tuple[str, ...]
    outcome: Outcome
    groups: CaseGroups
    medians: Table | None
    steps: tuple[NextStep, ...]
    trust: str


def first_screen(
    records: Sequence[Record],
    header: RunHeader,
    *,
    most_groups: int,
    known: SortedFindings | None = None,
    folder: str = "",
) -> FirstScreen:
    """Gather the first screen of a run with at most so many groups of timed cases, at least 2."""
    return sized_screen(records, header, known=known, folder=folder)(most_groups)


def sized_screen(
    records: Sequence[Record], header: RunHeader, *, known: SortedFindings | None = None, folder: str = ""
) -> Callable[[int], FirstScreen]:
    """Gather the first screen of a run for any number of groups; only the table depends on it.

    Args:
        records: All records of the run.
        header: Of the run.
        known: The records sorted by the file of known findings; None without such a file.
        folder: The run folder, for commands; "" if unknown.

    Returns:
        The screen for a greatest number of groups of timed cases, at least 2.
    """
    found = comparisons(records)
    wrong = {
        wrong_arm(one) for one in records if isinstance(one, AgreementRecord) and outcome_of(one) is Outcome.DISAGREES
    }
    names = case_names(found, usual_factors(records))
    grouped = case_groups(found, names, wrong)
    verdict = tuple(first_findings(records, header, known=known))
    outcome = _worst_outcome(records, header)
    counted = timing_trust(found, wrong)
    steps = tuple(next_steps(records, header, found, wrong, counted, folder=folder))
    trust = trust_sentence(counted)

    def at_most(most_groups: int) -> FirstScreen:
        groups = grouped(most_groups)
        return FirstScreen(
            verdict=verdict,
            outcome=outcome,
            groups=groups,
            medians=medians_table(found, names, most=most_groups) if found and not groups.groups else None,
            steps=steps,
            trust=trust,
        )

    return at_most


def _worst_outcome(records: Sequence[Record], header: RunHeader) -> Outcome:
    outcomes = {outcome_of(record) for record in records}
    for worst in (Outcome.DISAGREES, Outcome.FAILED, Outcome.UNSUPPORTED, Outcome.SKIPPED):
        if worst in outcomes:
            return worst
    return Outcome.OK if header.is_finished and records else Outcome.SKIPPED
