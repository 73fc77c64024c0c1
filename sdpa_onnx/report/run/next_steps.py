"""What to do next, derived from the records of a run: sentences, each with its command if there is one."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sdpa_onnx.core.records.records import Outcome, Record
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.findings import wrong_findings
from sdpa_onnx.report.run.repeat_command import repeat_command
from sdpa_onnx.report.text.number_text import count
from sdpa_onnx.report.text.tally import outcome_of
from sdpa_onnx.report.timing.case_groups import WrongArm
from sdpa_onnx.report.timing.comparisons import RecordedComparison
from sdpa_onnx.report.timing.doubt import REMEDY
from sdpa_onnx.report.timing.form_advice import FormAdvice, form_advice
from sdpa_onnx.report.timing.trust import TimingTrust

__all__ = ["NextStep", "next_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do.

    Args:
        sentence: What and why, without a full stop.
        command: The command line that does it; "" if there is none.
    """

    sentence: str
    command: str = ""


_OWN_MODULE = NextStep(sentence="your own module", command="sdpa-onnx export FILE.py:Class -o F.onnx")


def next_steps(
    records: Sequence[Record],
    header: RunHeader,
    found: Sequence[RecordedComparison],
    wrong: Collection[WrongArm],
    trust: TimingTrust,
    *,
    folder: str = "",
) -> list[NextStep]:
    """The steps: repeat what is wrong first; a run that is not finished is finished before a form is chosen.

    After a run in which everything is ok, the reader's own module is next.

    Args:
        records: All records of the run.
        header: Of the run.
        found: The timings as comparisons.
        wrong: Arms whose outputs are wrong.
        trust: How many verdicts on the times hold.
        folder: The run folder, for the command that resumes; "" if unknown.
    """
    repeat = next((command for one in wrong_findings(records)[:1] if (command := repeat_command(one))), "")
    failed = sum(outcome_of(record) is Outcome.FAILED for record in records)
    chosen = form_advice(found, wrong) if header.is_finished else []
    wrong_first = [NextStep(sentence="repeat the wrong output", command=repeat)] if repeat else []
    resume = _resume(header, folder, failed)
    again = [] if resume or not trust.is_mostly_doubtful else [NextStep(sentence=REMEDY, command=header.command)]
    is_good = header.is_finished and bool(records) and all(outcome_of(one) is Outcome.OK for one in records)
    own = [_OWN_MODULE] if is_good and not again else []
    return [*wrong_first, *resume, *again, *_choices(chosen), *own]


def _resume(header: RunHeader, folder: str, failed: int) -> list[NextStep]:
    if header.is_finished and not failed:
        return []
    left = header.planned_cells - header.done_cells
    missing = f"run the {count(left, 'job')} that {'is' if left == 1 else 'are'} left"
    why = "repeat what failed" if header.is_finished or left <= 0 else missing
    try:
        started = shlex.split(header.command)
    except ValueError:  # a quote without its pair, in a run.json that was edited
        return [NextStep(sentence=why)]
    out = [*started, *(["--out", folder] if folder else []), "--resume"]
    return [NextStep(sentence=why, command=shlex.join(out))]


def _choices(found: Sequence[FormAdvice]) -> list[NextStep]:
    runtimes = {advice.runtime for advice in found}
    return [_choose(advice, f" on {advice.runtime}" if len(runtimes) > 1 else "") for advice in found]


def _choose(advice: FormAdvice, on: str) -> NextStep:
    kind = {None: "", False: "not causal: ", True: "causal: "}[advice.is_causal]
    if advice.from_length == 0:
        where = "in every case" if advice.cases > 1 else "in the only case"
    elif advice.from_length is not None:
        where = f"from length {advice.from_length} on"
    else:
        where = f"in {advice.wins} of {advice.cases} cases"
    loses = f"; {advice.baseline} beats it in {advice.slower_wins}" if advice.slower_wins else ""
    return NextStep(
        sentence=f"{kind}form '{advice.form}' is fastest{on} {where}{loses}",
        command=f"sdpa-onnx convert F.onnx -o G.onnx --form {advice.form}",
    )
