"""Synthetic records for the report's tests: believable shapes, invented figures, no machine read."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from sdpa_onnx.core.attention.spec import AttentionCase, AttentionSpec
from sdpa_onnx.core.records.records import (
    AgreementRecord,
    ExportRecord,
    Outcome,
    Record,
    RuntimeRecord,
    Sizes,
    Subject,
    TimingRecord,
    Verdict,
)
from sdpa_onnx.core.records.run_header import RunHeader
from sdpa_onnx.report.run.findings import findings
from sdpa_onnx.workflows.expected.known_findings import SortedFindings

GEMM, EXPS = 98e9, 3.0e9


@dataclass(frozen=True)
class Arm:
    """One thing that runs: its name, form, opset, runtime and invented costs."""

    name: str
    form: str
    opset: int
    runtime: str
    overhead_seconds: float
    efficiency: float
    ran: tuple[tuple[str, int], ...]


DECOMPOSED = (("MatMul", 2), ("Mul", 2), ("Softmax", 1), ("Transpose", 1))
ARMS = (
    Arm("torch", "", 0, "torch", 9e-6, 0.80, (("scaled_dot_product_attention", 1),)),
    Arm("ort-cpu decomposed 18", "decomposed", 18, "ort-cpu", 24e-6, 0.87, DECOMPOSED),
    Arm("ort-cpu attention 23", "attention", 23, "ort-cpu", 14e-6, 0.93, (("Attention", 1),)),
)
USES = ("encoder-self", "decoder-self", "encoder-decoder")


def case_of(
    *, batch_size: int = 1, seq_len: int = 512, kv_seq_len: int = 0, head_dim: int = 64, causal: bool = False
) -> AttentionCase:
    """A case of the quick suite."""
    spec = AttentionSpec(q_num_heads=8, kv_num_heads=8, head_dim=head_dim, is_causal=causal)
    return AttentionCase(spec=spec, batch_size=batch_size, q_seq_len=seq_len, kv_seq_len=kv_seq_len or seq_len)


def sizes_of(case: AttentionCase) -> Sizes:
    """The sizes of a case, as a runner would write them."""
    return Sizes(
        batch_size=case.batch_size,
        q_seq_len=case.q_seq_len,
        kv_seq_len=case.kv_seq_len,
        head_dim=case.spec.head_dim,
        q_num_heads=8,
    )


def wobble(*parts: object) -> float:
    """A fixed invented number in -1..1 for a name."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1


def name_of(target: str, case: AttentionCase) -> str:
    """The case as verify names it: a case id for bare attention, the axes for a module."""
    if target not in USES:
        return case.case_id
    return f"{target}_batch_size{case.batch_size}_q_seq_len{case.q_seq_len}_kv_seq_len{case.kv_seq_len}"


def spec_of(target: str, case: AttentionCase) -> AttentionSpec | None:
    """The spec as verify writes it: that of bare attention, none for a module."""
    return None if target in USES else case.spec


def timings_of(target: str, case: AttentionCase, *, noise: float = 0.012) -> list[TimingRecord]:
    """One interleaved comparison of the three arms."""
    pairs = case.batch_size * 8 * case.q_seq_len * case.kv_seq_len
    flops, exps = 4 * pairs * case.spec.head_dim, pairs
    roof = flops / GEMM + exps / EXPS
    times = {arm.name: arm.overhead_seconds + roof / arm.efficiency for arm in ARMS}
    return [_timing(target, case, arm, times, noise, roof) for arm in ARMS]


def _timing(
    target: str, case: AttentionCase, arm: Arm, times: dict[str, float], noise: float, roof: float
) -> TimingRecord:
    seconds, pairs = times[arm.name], case.batch_size * 8 * case.q_seq_len * case.kv_seq_len
    ratio = seconds / times["torch"] * (1 + noise / 3 * wobble(target, case.case_id, arm.name))
    half = noise * (1.2 + 0.4 * wobble(case.case_id, arm.name))
    is_baseline = arm.name == "torch"
    return TimingRecord(
        case=name_of(target, case),
        spec=spec_of(target, case),
        target=target,
        form=arm.form,
        opset=arm.opset,
        runtime=arm.runtime,
        group=f"{target}/{case.case_id}",
        sizes=sizes_of(case),
        dtype="float32",
        arm=arm.name,
        baseline="torch",
        median_seconds=seconds,
        median_low=seconds * (1 - half),
        median_high=seconds * (1 + half),
        ratio=1.0 if is_baseline else ratio,
        ratio_low=1.0 if is_baseline else ratio * (1 - half),
        ratio_high=1.0 if is_baseline else ratio * (1 + half),
        clock="wall",
        disturbed=0.06,
        launches=1,
        confidence=0.95,
        calls=800,
        blocks=80,
        useful_flops=4 * pairs * case.spec.head_dim,
        executed_flops=4 * pairs * case.spec.head_dim,
        exps=pairs,
        roof_share=roof / seconds,
        ran=dict(arm.ran),
    )


def checks_of(target: str, case: AttentionCase) -> Iterator[AgreementRecord]:
    """Three arms and the reference, each on two steps of the input ladder."""
    reference = Arm("", "attention", 23, "onnx-reference", 0, 1, (("Attention", 1),))
    for arm in (*ARMS, reference):
        for step, spread in (("normal", 1.0), ("wide", 8.0)):
            luck = wobble(target, case.case_id, arm.name or arm.runtime, step)
            ratio = 0.09 * (case.spec.head_dim / 64) ** 0.2 * (1 + 0.25 * luck)
            inner = AgreementRecord(
                case=name_of(target, case),
                spec=spec_of(target, case),
                target=target,
                form=arm.form,
                opset=arm.opset,
                runtime=arm.runtime,
                sizes=sizes_of(case),
                dtype="float32",
                precision="float32",
                verdict=Verdict.OK,
                max_abs_error=ratio * 6e-6 * (case.spec.head_dim / 64) ** 0.5,
                max_bound_ratio=ratio,
                inputs=f"spread {spread:g}",
                spread=spread,
                judged_rows=4096,
                total_rows=4096,
                scale_error_proven=2.4e-5 * (1.3 + luck),
                ran=dict(arm.ran),
            )
            yield inner
            if target in USES:
                yield msgspec.structs.replace(
                    inner,
                    subject=Subject.OUTPUT,
                    site="Y",
                    sizes=Sizes(batch_size=1, q_seq_len=case.q_seq_len, kv_seq_len=case.kv_seq_len),
                    max_bound_ratio=0.5 + 0.1 * luck,
                    scale_error_proven=None,
                )


def exports() -> Iterator[ExportRecord]:
    """Every target in both forms."""
    for target in (*USES, "sdpa"):
        for form, opset, nodes in (("decomposed", 18, dict(DECOMPOSED)), ("attention", 23, {"Attention": 1})):
            extra = {} if target == "sdpa" else {"MatMul": nodes.get("MatMul", 0) + 4, "Reshape": 4, "Add": 4}
            yield ExportRecord(
                case=target,
                target=target,
                form=form,
                opset=opset,
                dynamic_axes=("batch_size", "q_seq_len", "kv_seq_len"),
                sizes_tried=5,
                nodes=nodes | extra,
                seconds=2.1,
            )


def quick_cases() -> list[tuple[str, AttentionCase]]:
    """The plan of the quick suite."""
    plan = [("encoder-self", case_of()), ("decoder-self", case_of(causal=True))]
    plan += [("encoder-decoder", case_of(seq_len=384, kv_seq_len=512))]
    plan += [("sdpa", case_of(head_dim=head_dim)) for head_dim in (16, 32, 64, 128, 256)]
    plan += [("sdpa", case_of(seq_len=seq_len)) for seq_len in (32, 64, 128, 256, 1024)]
    return plan + [("sdpa", case_of(batch_size=4, seq_len=seq_len)) for seq_len in (128, 512)]


def quick_records() -> list[Record]:
    """All that a quick run writes when all is well."""
    records: list[Record] = [*exports()]
    for target, case in quick_cases():
        records += [*checks_of(target, case), *timings_of(target, case)]
    return records


def troubled_records() -> list[Record]:
    """A run in which something of every kind went wrong."""
    wide = case_of(head_dim=256)
    names = {"case": wide.case_id, "target": "sdpa", "sizes": sizes_of(wide), "dtype": "float32"}
    ort = {"form": "attention", "opset": 23, "runtime": "ort-cpu"}
    diagnosis = "The outputs fit a scale of 1/d_k, not 1/sqrt(d_k)."
    wrong = {"outcome": Outcome.DISAGREES, "verdict": Verdict.WRONG, "max_bound_ratio": 38.2, "max_abs_error": 1.2e-3}
    expanded = ("Attention was expanded into 59 nodes.",)
    return [
        *quick_records(),
        AgreementRecord(**names, **ort, **wrong, diagnosis=diagnosis, inputs="normal", seed=7),
        AgreementRecord(
            **names, **ort, outcome=Outcome.FAILED, reason="Could not find an implementation for Expand(13)"
        ),
        AgreementRecord(**names, runtime="onnx-reference", outcome=Outcome.UNSUPPORTED, reason="no opset 25 | yet"),
        AgreementRecord(**names, runtime="ort-cpu", opset=25, verdict=Verdict.OK, warnings=expanded),
        TimingRecord(**names, **ort, arm="ort-cpu attention 23", outcome=Outcome.SKIPPED, reason="its check is wrong"),
        RuntimeRecord(
            case="openvino", runtime="openvino", outcome=Outcome.UNSUPPORTED, reason="install extra openvino"
        ),
    ]


def header() -> RunHeader:
    """The header of a finished quick run."""
    return RunHeader(
        suite="quick",
        started="2026-07-01T10:00:00+00:00",
        finished="2026-07-01T10:03:12+00:00",
        command="sdpa-onnx run quick --threads 1 --seed 0",
        environment={"cpu": "Invented CPU at 2.5 GHz", "cores": "2", "os": "Linux 6.1", "python": "3.11.9"},
        versions={"torch": "2.13.0", "onnx": "1.23.2", "onnxruntime": "1.32.0"},
        threads=1,
        ceilings={"gemm_flops_per_second": GEMM, "exps_per_second": EXPS},
        planned_cells=96,
        done_cells=96,
    )


def tell(records: Sequence[Record], told: RunHeader | None = None, *, known: SortedFindings | None = None) -> list[str]:
    """All findings of a run: the first lines, then the sentences of every section."""
    return findings(records, told or header(), known=known)


def check(**fields: object) -> AgreementRecord:
    """One right check at the middle of the suite, with fields replaced."""
    case = case_of()
    usual = {"case": case.case_id, "target": "sdpa", "sizes": sizes_of(case), "dtype": "float32"}
    usual |= {"form": "attention", "opset": 23, "runtime": "ort-cpu", "verdict": Verdict.OK, "max_bound_ratio": 0.11}
    return AgreementRecord(**(usual | fields))


def comparison(target: str = "sdpa", *, noise: float = 0.012, **sizes: int) -> list[TimingRecord]:
    """One comparison: torch, ort-cpu decomposed 18, ort-cpu attention 23."""
    return timings_of(target, case_of(**sizes), noise=noise)


def with_ratios(records: list[TimingRecord], ratios: dict[str, tuple[float, float, float]]) -> list[TimingRecord]:
    """The comparison with the ratios of some arms replaced."""
    return [
        msgspec.structs.replace(one, **dict(zip(("ratio", "ratio_low", "ratio_high"), ratios[one.arm], strict=True)))
        if one.arm in ratios
        else one
        for one in records
    ]
