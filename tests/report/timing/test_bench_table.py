"""What `bench` prints, to the letter, and in the cases that must not be overlooked."""

import msgspec
import pytest

from sdpa_onnx.core.records.records import BUDGET_REASON, Outcome, TimingRecord
from sdpa_onnx.core.records.timing_records import NodeTime
from sdpa_onnx.core.records.verdicts import RatioVerdict
from sdpa_onnx.report.timing.bench_points import along_length
from sdpa_onnx.report.timing.bench_table import (
    BENCH_WIDTH,
    bench_lines,
    bench_verdict,
    crossover_sentences,
    ratio_tables,
)
from sdpa_onnx.report.timing.bench_verdict import verdict_sentences
from sdpa_onnx.workflows.bench.arm_agreement import ArmAgreement
from sdpa_onnx.workflows.bench.bench_files import BenchResult
from tests.report.synthetic_bench import BASELINE, benched, failed, over_lengths, timing

# Columns are two spaces apart where there is room.
_WIDE = 200


def _printed(*results: BenchResult, refused: tuple[TimingRecord, ...] = (), width: int = BENCH_WIDTH) -> str:
    return "\n".join(line.text for line in bench_lines(results, refused, width=width))


def _row(text: str, arm: str, *, table: str = "Time of a call") -> list[str]:
    """The cells of an arm's line in a table."""
    lines = text[text.index(table) :].splitlines()
    line = next(line for line in lines if line.startswith(arm))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_line_of_an_arm() -> None:
    """Median, ratio with interval, verdict, percentiles and rate; first runs, memory, roof and bound; with units."""
    calls = {"p50_seconds": 0.0011, "p90_seconds": 0.0012, "p99_seconds": 0.0031, "calls_per_second": 870.0}
    text = _printed(benched(timing(BASELINE, **calls), timing("ort-cpu", 0.8, **calls)))
    percentiles = ["1.10 ms", "1.20 ms", "3.10 ms", "870"]
    assert _row(text, "torch") == ["torch", "1.00 ms", "baseline", *percentiles]
    assert _row(text, "ort-cpu") == ["ort-cpu", "800 µs", "0.80 [0.79, 0.81]", "faster", *percentiles]
    assert _row(text, "ort-cpu", table="First runs, memory and roof") == [
        "ort-cpu", "12.3 ms", "2.10 ms", "1.70 ms", "3.34 MiB", "42 %", "products",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "verdict", "sentence"),
    [
        (0.8, None, "ort-cpu takes 0.80 x [0.79, 0.81] the time of torch: faster."),
        (1.25, None, "ort-cpu takes 1.25 x [1.23, 1.27] the time of torch: slower."),
        (1.0, RatioVerdict.EQUAL, "ort-cpu takes 1.00 x [0.99, 1.02] the time of torch: equal within 2 %."),
    ],
)
def test_the_verdict_is_first(ratio: float, verdict: RatioVerdict | None, sentence: str) -> None:
    """The first line is the answer, with the ratio and its interval."""
    arm = timing("ort-cpu", ratio, **({} if verdict is None else {"verdict": verdict}))
    assert _printed(benched(timing(BASELINE), arm)).splitlines()[0] == sentence


OTHER = "Another timing of sdpa_onnx (process 7) ran at the same time."
CLOCKS = "The ratio is 5.940 by wall time and 2.270 by CPU time: the difference is larger than the uncertainty."


def test_the_headline_has_both_clocks_if_they_differ() -> None:
    """A reader of the first line alone must not take one clock's ratio for the truth."""
    clocks = {"ratio_wall": 5.94, "ratio_cpu": 2.27, "warnings": (CLOCKS,)}
    lines = bench_lines([benched(timing(BASELINE), timing("ort-cpu", 2.27, clock="cpu", **clocks))], (), width=_WIDE)
    assert lines[0].text == (
        "ort-cpu takes 2.27 to 5.94 x the time of torch, depending on the clock (5.94 x by wall time, 2.27 x by CPU "
        "time): slower; other programs used the machine; repeat when the machine is quiet."
    )
    quiet = _printed(benched(timing(BASELINE), timing("ort-cpu", 5.94, clock="wall", **clocks)), width=_WIDE)
    assert "2.27 x by CPU time): slower; one arm waits or sleeps." in quiet.splitlines()[0]
    split = clocks | {"ratio_cpu": 0.8}
    text = _printed(benched(timing(BASELINE), timing("ort-cpu", 5.94, clock="wall", **split)), width=_WIDE)
    assert "slower? Doubtful, because wall time and CPU time name different winners: repeat" in text.splitlines()[0]


def test_a_doubtful_verdict_is_doubtful_in_the_headline() -> None:
    """With the reason and what to do, and a question mark in the table; at several sizes it is no win."""
    text = _printed(benched(timing(BASELINE), timing("ort-cpu", 0.8, warnings=(OTHER,))), width=_WIDE)
    assert text.splitlines()[0] == (
        "ort-cpu takes 0.80 x [0.79, 0.81] the time of torch: faster? Doubtful, because another sdpa-onnx timing ran "
        "at the same time: repeat when the machine is quiet."
    )
    assert "faster?" in _row(text, "ort-cpu")
    sizes = [
        benched(timing(BASELINE, length=n), timing("ort-cpu", 0.8, length=n, warnings=(OTHER,)), length=n)
        for n in (64, 128)
    ]
    text = _printed(*sizes, width=_WIDE)
    assert text.startswith("ort-cpu is faster than torch at 0 and slower at 0 of 2 sizes. At 2 it is doubtful, because")
    assert "0.80 [0.79, 0.81] faster?" in text


def test_a_long_verdict_is_not_cut() -> None:
    """--quiet prints the first sentence to its end, in several lines if the terminal is narrow."""
    result = benched(timing(BASELINE), timing("ort-cpu", 0.8))
    wide, narrow = (bench_verdict([result], (), width=width) for width in (_WIDE, 40))
    assert len(wide) == 1 < len(narrow)
    assert " ".join(line.text for line in narrow) == wide[0].text
    assert wide[0].text.endswith("faster.")


def test_the_verdict_on_a_module() -> None:
    """Against a module the file and the compiled module are compared with the module in eager mode."""
    arms = [
        timing(BASELINE),
        timing("torch-compile", 0.9, runtime="torch-compile", compile_seconds=7.5),
        timing("ort-cpu", 0.8),
    ]
    lines = [line.text for line in bench_lines([benched(*arms)], (), width=BENCH_WIDTH, against="m.py:Block")]
    assert lines[:2] == [
        "Your module with torch.compile takes 0.90 x [0.89, 0.91] the time of your module in eager mode: faster.",
        "On ort-cpu the file takes 0.80 x [0.79, 0.81] the time of your module in eager mode: faster.",
    ]
    text = "\n".join(lines)
    assert _row(text, "torch-compile", table="First runs, memory and roof")[:3] == ["torch-compile", "7.50 s", "-"]


def test_one_arm_alone_is_compared_with_nothing() -> None:
    """Its time, its rate and its share of the roof; no ratio, no verdict, no baseline."""
    arm = timing("ort-cpu", 0.8, baseline="ort-cpu", verdict=None, calls_per_second=1234.0)
    text = _printed(benched(arm))
    assert text.splitlines()[0] == (
        "ort-cpu takes 800 µs a call: 1,234 calls per second, 42 % of what this machine allows."
    )
    assert _row(text, "ort-cpu") == ["ort-cpu", "800 µs", "-", "-", "-", "1230"]
    assert not any(word in text.lower() for word in ("ratio", "verdict", "baseline"))


def test_what_the_time_limit_did_not_reach() -> None:
    """Sizes that were skipped are named in the verdict; if nothing was timed, that is the verdict."""
    skipped = benched(TimingRecord(arm="ort-cpu", outcome=Outcome.SKIPPED, reason=BUDGET_REASON), length=256)
    text = _printed(benched(timing(BASELINE), timing("ort-cpu", 0.8)), skipped)
    assert text.splitlines()[1] == ("Skipped because of the time limit: batch_size=1, q_seq_len=256, kv_seq_len=256.")
    assert _printed(skipped).splitlines()[0] == (
        "Nothing was timed: the time limit was reached first; use a larger --budget."
    )
    assert "skipped. budget" not in _printed(skipped)


def test_a_ratio_that_is_no_quotient_is_explained() -> None:
    """Medians whose quotient lies outside the interval of the ratio get a note; others do not."""
    odd = timing("ort-cpu", 0.96, median_seconds=1.16e-3)
    assert "A ratio is not the quotient of two medians: ort-cpu has 1.16 ms over 1.00 ms of torch, which is 1.16" in (
        " ".join(_printed(benched(timing(BASELINE), odd)).split())
    )
    assert "quotient" not in _printed(benched(timing(BASELINE), timing("ort-cpu", 0.8)))


def test_time_of_nodes() -> None:
    """Each node with its share of the call, and what is left of it."""
    nodes = (
        NodeTime(node="attention", operator="Attention", seconds=6e-4),
        NodeTime(node="add", operator="Add", seconds=1e-4),
    )
    arm = timing("ort-cpu", 0.8, nodes=nodes, kernel_seconds=7.5e-4, host_seconds=5e-5)
    text = _printed(benched(timing(BASELINE), arm))
    assert _row(text, "attention", table="Time by node: ort-cpu") == ["attention", "Attention", "600 µs", "75 %"]
    assert _row(text, "all else", table="Time by node: ort-cpu") == ["all else", "100 µs", "13 %"]


def test_lines_fit() -> None:
    """No line is wider than the promised width, even with long names and verdicts."""
    arms = [timing(f"ort-cpu a_longer_name_{n}.onnx decomposed", 1.0 + n / 1000) for n in range(4)]
    text = _printed(benched(timing(BASELINE), *arms))
    assert max(map(len, text.splitlines())) <= BENCH_WIDTH


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (RatioVerdict.EQUAL, "equal"),
        (RatioVerdict.INCONCLUSIVE, "inconclusive (3 more)"),
        (RatioVerdict.NOISY, "noisy"),
        (RatioVerdict.SLOWER, "inconclusive"),
    ],
)
def test_words(verdict: RatioVerdict, word: str) -> None:
    """The verdict of the record; one that its own interval contradicts is not printed."""
    needed = 3 if verdict is RatioVerdict.INCONCLUSIVE else 0
    arm = timing("ort-cpu", 1.001, verdict=verdict, launches_needed=needed)
    assert _row(_printed(benched(timing(BASELINE), arm), width=_WIDE), "ort-cpu")[3] == word


def test_noisy_table_leads() -> None:
    """The warning that ratios are not reliable is printed before the first number."""
    text = _printed(benched(timing(BASELINE), timing("ort-cpu", 0.8, verdict=RatioVerdict.NOISY)))
    assert text.startswith("No verdict: the machine is too noisy")
    assert text.splitlines()[1].startswith("- NOISY in 1 of 1 comparison")


def test_what_was_not_measured() -> None:
    """A dash, never a zero or a minus one."""
    unknown = dict.fromkeys(("first_seconds", "new_length_seconds", "idle_seconds", "peak_memory_bytes"))
    arm = timing("ort-cpu", 0.8, roof_share=None, bound_by="", **unknown)
    text = _printed(benched(timing(BASELINE), arm), width=_WIDE)
    assert _row(text, "ort-cpu")[4:] == ["-"] * 4
    assert _row(text, "ort-cpu", table="First runs, memory and roof")[1:] == ["-"] * 6


def test_wrong_numbers_stand_in_the_table() -> None:
    """A fast arm with wrong outputs is marked in its own line, with the evidence below and in the legend."""
    sentence = "Numbers wrong: 5 of 40 elements are out of bound."
    wrong = timing("ort-cpu", 0.5, warnings=(sentence,))
    numbers = ArmAgreement(warnings={"ort-cpu": (sentence,)})
    text = _printed(benched(timing(BASELINE), wrong, numbers=numbers), width=_WIDE)
    assert _row(text, "ort-cpu [1]")[3] == "faster, numbers wrong"
    assert f"[1] {sentence}" in text
    assert "- Numbers at these sizes, by the float64 oracle: right for torch; not right for ort-cpu." in text


def test_numbers_that_nobody_could_judge() -> None:
    """What was not judged is named with the reason."""
    numbers = ArmAgreement(unjudged={"ort-cpu": "no attention of it could be read"})
    text = _printed(benched(timing(BASELINE), timing("ort-cpu", 0.8), numbers=numbers))
    assert text.splitlines()[-2:] == [
        "- Numbers at these sizes, by the float64 oracle: right for torch; not judged for ort-cpu: no attention of it",
        "  could be read.",
    ]


def test_arms_without_a_time() -> None:
    """A refused arm and a failed one are listed once each, with the reason."""
    refused = TimingRecord(arm="ort-gqa", outcome=Outcome.UNSUPPORTED, reason="It has no such mask.")
    results = [
        benched(timing(BASELINE, length=n), failed("openvino", "It crashed.", length=n), length=n) for n in (128, 256)
    ]
    text = _printed(*results, refused=(refused,))
    assert text.count("- ort-gqa: unsupported. It has no such mask.") == 1
    assert text.count("- openvino: failed. It crashed.") == 1


def test_nothing_has_a_time() -> None:
    """Without a time there is no table and no legend of one, only the reasons."""
    assert _printed(benched(failed(BASELINE, "It crashed."))) == "Nothing was timed.\n- torch: failed. It crashed."


def test_calibrated_figure_is_told() -> None:
    """A reader learns whether the machine's own figure was used."""
    arm = timing("ort-cpu", 0.8)
    usual = "Assumed difference between two processes of one model: 0.57 % (default;"
    assert usual in _printed(benched(timing(BASELINE), arm))
    own = [msgspec.structs.replace(one, between_sd=0.0031) for one in (timing(BASELINE), arm)]
    assert "processes of one model: 0.31 % (calibrated)." in _printed(benched(*own))


_RATIOS = {128: 1.3, 256: 1.2, 512: 0.9, 1024: 0.8, 2048: 0.7}


def test_ratios_over_lengths() -> None:
    """A column a length, in order, at most four a table."""
    tables = ratio_tables(along_length(over_lengths(_RATIOS)[::-1]))
    assert [[column.head for column in table.columns] for table in tables] == [
        ["arm", "128", "256", "512", "1024"],
        ["arm", "2048"],
    ]
    assert tables[0].title == "Ratio to torch over kv_seq_len"
    assert tables[0].sections[0].rows[1][:2] == ("ort-cpu", "1.30 [1.28, 1.32] slower")
    assert tables[0].sections[0].rows[0][1] == "baseline, 1.00 ms"


def test_crossover_is_told() -> None:
    """The length, and the two lengths that prove it."""
    assert crossover_sentences(along_length(over_lengths(_RATIOS))) == [
        "ort-cpu overtakes torch at kv_seq_len of about 397: proven slower at 256, proven faster at 512."
    ]


def test_arm_that_is_overtaken() -> None:
    """Where an arm loses beyond a length, the other one overtakes it."""
    assert crossover_sentences(along_length(over_lengths({128: 0.8, 512: 1.25}))) == [
        "torch overtakes ort-cpu at kv_seq_len of about 256: proven slower at 128, proven faster at 512."
    ]


def test_no_change_is_claimed() -> None:
    """Without two proofs of opposite sign there is no length; a noisy table proves nothing."""
    none = ["No change of order with torch is proven for ort-cpu."]
    assert crossover_sentences(along_length(over_lengths({128: 1.3, 256: 1.2}))) == none
    assert crossover_sentences(along_length(over_lengths({128: 1.3, 256: 0.999}))) == none
    noisy = [
        benched(timing(BASELINE, length=n), timing("a", ratio, length=n, verdict=RatioVerdict.NOISY), length=n)
        for n, ratio in {128: 1.3, 256: 0.7}.items()
    ]
    assert crossover_sentences(along_length(noisy)) == []


def test_one_length_has_no_crossover() -> None:
    """With one comparison there is no text on lengths."""
    along = along_length(over_lengths({128: 0.8}))
    assert (along.axis, ratio_tables(along), crossover_sentences(along)) == ("", [], [])


def test_wrong_numbers_are_neither_faster_nor_slower() -> None:
    """The first lines compare no time of an arm that computes something else, nor any arm with such a baseline."""
    arms = (timing(BASELINE), timing("ort-cpu", 0.5), timing("torch-compile", 0.8))
    right = "torch-compile takes 0.80 x [0.79, 0.81] the time of torch: faster."
    for wrong, expected in (("ort-cpu", [right]), (BASELINE, [])):
        one = benched(*arms, numbers=ArmAgreement(warnings={wrong: ("Numbers wrong: so.",)}))
        says = f"The numbers of {wrong} are not right, so its time does not count."
        assert list(verdict_sentences([one], along_length([one]), against="")) == [says, *expected]


WIDENED = "15 float16 nodes ran in float32, with 10 casts that a float32 file does not need."


@pytest.mark.parametrize("lengths", [(128,), (128, 256)])
def test_casts_of_a_slower_arm_are_named(lengths: tuple[int, ...]) -> None:
    """Only where the float16 file was measured and is slower, and the baseline does not compute in float32 as well."""
    says = f"ort-cpu has no float16 kernels for nodes of half: {WIDENED}"

    def is_named(ratio: float, of_baseline: tuple[str, ...] = ()) -> bool:
        results = [
            benched(
                timing(BASELINE, length=n, warnings=of_baseline),
                timing("half", ratio, length=n, runtime="ort-cpu", warnings=(WIDENED,)),
                length=n,
            )
            for n in lengths
        ]
        return says in verdict_sentences(results, along_length(results), against="")

    assert is_named(1.5)
    assert not is_named(0.7)
    assert not is_named(1.5, of_baseline=(WIDENED,))


def test_a_module_that_fails_leads() -> None:
    """The first sentence has the error of the module, and accuses no file."""
    one = benched(timing(BASELINE), timing("ort-cpu", 0.5), numbers=ArmAgreement(module_error="ValueError: too long"))
    first = next(verdict_sentences([one], along_length([one]), against="m.py:M"))
    assert first.startswith("Your module does not run at ")
    assert first.endswith(", so nothing is compared with it there: ValueError: too long.")
