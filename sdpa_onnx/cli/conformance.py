"""`sdpa-onnx conformance`: what a runtime makes of an attention operator, feature by feature."""

import importlib
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from sdpa_onnx.cli.error_boundary import INTERRUPTED, OK, guarded, pin_threads, tell
from sdpa_onnx.cli.expect import exit_code, read_known, tell_known
from sdpa_onnx.cli.options import Debug, DtypeName, Expect, Json, Runtimes, Seed, Threads, Timeout
from sdpa_onnx.errors import PlanError

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import ConformanceRecord
    from sdpa_onnx.report.conformance.run import ConformanceRun
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings

__all__ = ["conformance"]

Only = Annotated[list[str], typer.Option("--only", metavar="SLUG", help="Only this feature or group; `*` is any text.")]
Operators = Annotated[list[str], typer.Option("--operator", metavar="OP", help="Only this operator; repeatable.")]
Opsets = Annotated[list[int], typer.Option("--opset", min=1, help="Only this operator set; repeatable.")]
Dtypes = Annotated[list[str], typer.Option("--dtype", help="Only this element type; repeatable.")]
WriteExpected = Annotated[
    Path | None,
    typer.Option("--write-expected", metavar="F.toml", help="Write the present findings as known ones; then exit 0."),
]
Page = Annotated[Path | None, typer.Option("--page", metavar="F.html", help="Write the report as one page to send.")]
List = Annotated[bool, typer.Option("--list", help="List the features, and run nothing.")]

# Of one row, for the time left; corrected by what rows take.
_GUESSED_SECONDS = 0.3


@guarded
def conformance(
    *,
    runtime: Runtimes = ["ort-cpu"],
    only: Only = [],
    operator: Operators = [],
    opset: Opsets = [],
    dtype: Dtypes = [],
    seed: Seed = 0,
    threads: Threads = 1,
    timeout: Timeout = 20.0,
    expect: Expect = None,
    write_expected: WriteExpected = None,
    page: Page = None,
    list_features: List = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Ask runtimes for each feature of the attention operators: right, wrong, refused or crashed."""
    pin_threads(threads)
    if list_features:
        return _list(as_json=json)
    asked = _asked(runtime, only, operator, opset, dtype, seed=seed, threads=threads, timeout=timeout)
    _check_files(page, write_expected, as_json=json)
    expected = read_known(expect)
    records, is_finished = _ask(asked)
    run = _as_run(asked, records, expected, is_finished=is_finished)
    _show(run, page, as_json=json)
    if not is_finished:
        tell(f"interrupted after {len(records)} {'row' if len(records) == 1 else 'rows'}; again: {run.command}")
        return INTERRUPTED
    if write_expected is not None:
        _write_expected(write_expected, records, expected)
        return OK
    return exit_code(records, run.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceOptions:
    """What the command line asks for; an empty list means all."""

    runtimes: tuple[str, ...]
    only: tuple[str, ...]
    operators: tuple[str, ...]
    opsets: tuple[int, ...]
    dtypes: tuple[str, ...]
    seed: int
    threads: int
    timeout_seconds: float

    @property
    def command(self) -> str:
        """The command line that asks for the same again."""
        options = {"--runtime": self.runtimes, "--only": self.only, "--operator": self.operators}
        options |= {"--opset": tuple(map(str, self.opsets)), "--dtype": self.dtypes, "--seed": (str(self.seed),)}
        words = [word for option, values in options.items() for value in values for word in (option, value)]
        return shlex.join(["sdpa-onnx", "conformance", *words])


def _list(*, as_json: bool) -> int:
    """Every feature with its group, its words and where they come from."""
    from sdpa_onnx.cli.show import show_features
    from sdpa_onnx.workflows.conformance import features

    show_features(features(), as_json=as_json)
    return OK


def _asked(
    runtimes: list[str],
    only: list[str],
    operators: list[str],
    opsets: list[int],
    dtypes: list[str],
    *,
    seed: int,
    threads: int,
    timeout: float,
) -> ConformanceOptions:
    """Turn words into names that there are, before anything runs."""
    from sdpa_onnx.cli.conformance_choice import pick_features, pick_names
    from sdpa_onnx.workflows.check.available_runtimes import pick_runtimes
    from sdpa_onnx.workflows.conformance import features

    known = features()
    return ConformanceOptions(
        runtimes=tuple(pick_runtimes(runtimes)),
        only=pick_features(only, {feature.slug: feature.group for feature in known}),
        operators=pick_names("operator", operators, (str(feature.operator) for feature in known)),
        opsets=tuple(dict.fromkeys(opsets)),
        dtypes=pick_names("element type", dtypes, get_args(DtypeName)),
        seed=seed,
        threads=threads,
        timeout_seconds=timeout,
    )


def _check_files(page: Path | None, write_expected: Path | None, *, as_json: bool) -> None:
    """Find out before minutes of work that a file cannot be written, or that a package is missing for it.

    Raises:
        PlanError: If a file cannot be written, or known findings are there already.
        ModuleNotFoundError: If a package is missing.
    """
    from sdpa_onnx.graph.files.whole_file import check_target

    for path in (page, write_expected):
        if path is not None and path.is_dir():
            raise PlanError(f"{path} is a folder.", hint="Give the name of a file.")
        if path is not None:
            check_target(path, failure=PlanError)
    if write_expected is not None and write_expected.exists():
        raise PlanError(
            f"{write_expected} is there already, and known findings are not overwritten.",
            hint="Give another name; with --expect of the old file its reasons are kept.",
        )
    if page is not None:
        importlib.import_module("jinja2")
    if not as_json:
        importlib.import_module("rich")


def _ask(asked: ConformanceOptions) -> "tuple[list[ConformanceRecord], bool]":
    """The rows, and whether all of them came; what was done is kept when the user stops it."""
    from sdpa_onnx.cli.progress import Progress
    from sdpa_onnx.workflows.conformance import conformance as ask
    from sdpa_onnx.workflows.conformance import select

    records: list[ConformanceRecord] = []
    rows = select(only=asked.only, operators=asked.operators, opsets=asked.opsets, dtypes=asked.dtypes)
    with Progress(_GUESSED_SECONDS * len(rows) * len(asked.runtimes)) as progress:
        try:
            for runtime in asked.runtimes:
                for record in ask(
                    runtime,
                    only=asked.only,
                    operators=asked.operators,
                    opsets=asked.opsets,
                    dtypes=asked.dtypes,
                    seed=asked.seed,
                    threads=asked.threads,
                    timeout_seconds=asked.timeout_seconds,
                ):
                    records.append(record)
                    progress.advance(_GUESSED_SECONDS)
                    progress.at(f"{runtime}: {record.feature} {record.operator} {record.opset} {record.dtype}")
        except KeyboardInterrupt:
            return records, False
    return records, True


def _as_run(
    asked: ConformanceOptions,
    records: "list[ConformanceRecord]",
    expected: "KnownFindings | None",
    *,
    is_finished: bool,
) -> "ConformanceRun":
    """The rows with all that a report says of them."""
    import datetime as dt

    from sdpa_onnx.report.conformance.run import ConformanceRun
    from sdpa_onnx.runtimes.base import get_runtime
    from sdpa_onnx.workflows.conformance import features

    return ConformanceRun(
        records=tuple(records),
        versions={name: get_runtime(name).version() for name in asked.runtimes},
        sources={feature.slug: feature.source for feature in features()},
        facts=_facts(asked),
        command=asked.command,
        known=_beside(expected, records, is_finished=is_finished),
        is_finished=is_finished,
        made=dt.datetime.now(dt.UTC).date().isoformat(),
    )


def _beside(
    expected: "KnownFindings | None", records: "list[ConformanceRecord]", *, is_finished: bool
) -> "SortedFindings | None":
    """The rows beside the known findings; of half a run nothing can be said to have vanished."""
    if expected is None:
        return None
    found = expected.sort(records)
    return found if is_finished else replace(found, vanished=(), unused=())


def _facts(asked: ConformanceOptions) -> dict[str, str]:
    """What a page may tell of this machine: no name of it, of its user, of its kernel's build or of a folder."""
    import platform

    from sdpa_onnx.measure.environment import environment, versions

    machine = environment()
    return {
        "processor": machine["cpu"],
        "cores": machine["cores_usable"],
        "system": f"{platform.system()} {platform.machine()}",
        "python": machine["python"],
        "packages": ", ".join(f"{name} {version}" for name, version in versions().items() if version),
        "threads": str(asked.threads),
        "seed": str(asked.seed),
    }


def _show(run: "ConformanceRun", page: Path | None, *, as_json: bool) -> None:
    from sdpa_onnx.cli.show import show_conformance

    show_conformance(run, as_json=as_json)
    if run.known is not None:
        tell_known(run.known, with_summary=as_json)
    if page is not None:
        from sdpa_onnx.report.conformance.page import render_page
        from sdpa_onnx.sweep.store import replace_file

        replace_file(page, render_page(run).encode())
        tell(f"wrote {page}")


def _write_expected(path: Path, records: "list[ConformanceRecord]", expected: "KnownFindings | None") -> None:
    """Write the findings; that no file is there was found out before."""
    from sdpa_onnx.sweep.store import replace_file
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, is_bad
    from sdpa_onnx.workflows.expected.write_file import write_known

    data = write_known(records, known=expected or KnownFindings()).encode()
    replace_file(path, data)
    tell(f"wrote {path}: {sum(map(is_bad, records))} known findings")
