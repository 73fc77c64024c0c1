"""`sdpa-onnx conformance`: test how a runtime implements the attention operators, feature by feature."""

import importlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from sdpa_onnx.cli.error_boundary import INTERRUPTED, OK, pin_threads, print_message, with_exit_codes
from sdpa_onnx.cli.expect import exit_code, print_known_findings, read_known_findings
from sdpa_onnx.cli.options import (
    Debug,
    DtypeName,
    Expect,
    Json,
    Quiet,
    Runtimes,
    Seed,
    Threads,
    Timeout,
    Verbose,
)
from sdpa_onnx.errors import PlanError, RuntimeUnavailableError

if TYPE_CHECKING:
    from sdpa_onnx.core.records.records import ConformanceRecord
    from sdpa_onnx.report.conformance.run import ConformanceRun
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, SortedFindings

__all__ = ["conformance"]

Only = Annotated[
    list[str], typer.Option("--only", metavar="SLUG", help="Test only this feature or group; `*` matches any text.")
]
Operators = Annotated[list[str], typer.Option("--operator", metavar="OP", help="Test only this operator; repeatable.")]
Opsets = Annotated[list[int], typer.Option("--opset", min=1, help="Test only this opset; repeatable.")]
Dtypes = Annotated[list[str], typer.Option("--dtype", help="Test only this element type; repeatable.")]
WriteExpected = Annotated[
    Path | None,
    typer.Option("--write-expected", metavar="F.toml", help="Write the current findings as known ones, then exit 0."),
]
Page = Annotated[Path | None, typer.Option("--page", metavar="F.html", help="Write the report as a single HTML page.")]
List = Annotated[bool, typer.Option("--list", help="List the features and run nothing.")]

# Expected seconds of one row, for the remaining time only.
_ESTIMATED_SECONDS = 0.3
# Default of --timeout, for one row: `workflows.conformance.row` has the same.
_TIMEOUT_SECONDS = 20.0


@with_exit_codes
def conformance(
    *,
    runtime: Runtimes = ["ort-cpu"],
    only: Only = [],
    operator: Operators = [],
    opset: Opsets = [],
    dtype: Dtypes = [],
    seed: Seed = 0,
    threads: Threads = 1,
    timeout: Timeout = _TIMEOUT_SECONDS,
    expect: Expect = None,
    write_expected: WriteExpected = None,
    page: Page = None,
    list_features: List = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> int:
    """Test runtimes on each feature of the attention operators: right, wrong, suspicious, refused or crashed."""
    pin_threads(threads)
    if list_features:
        _refuse_with_list({"--page": page, "--expect": expect, "--write-expected": write_expected})
        return _list(as_json=json)
    options = _parse_options(runtime, only, operator, opset, dtype, seed=seed, threads=threads, timeout=timeout)
    _check_files(page, write_expected, as_json=json)
    expected = read_known_findings(expect)
    records, is_finished = _run_rows(options)
    run = _as_run(options, records, expected, is_finished=is_finished)
    _show(run, page, as_json=json)
    if not is_finished:
        print_message(
            f"interrupted after {len(records)} {'row' if len(records) == 1 else 'rows'}; run again: {run.command}"
        )
        return INTERRUPTED
    if write_expected is not None:
        _write_expected(write_expected, records, expected)
        return OK
    return exit_code(records, run.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceOptions:
    """The options of the command line; an empty tuple means all."""

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
        """The command line that runs the same rows again."""
        options = {"--runtime": self.runtimes, "--only": self.only, "--operator": self.operators}
        options |= {"--opset": tuple(map(str, self.opsets)), "--dtype": self.dtypes, "--seed": (str(self.seed),)}
        if self.timeout_seconds != _TIMEOUT_SECONDS:
            options["--timeout"] = (f"{self.timeout_seconds:g}",)
        arguments = [part for option, values in options.items() for value in values for part in (option, value)]
        return shlex.join(["sdpa-onnx", "conformance", *arguments])


def _refuse_with_list(files: Mapping[str, Path | None]) -> None:
    """Refuse files about rows, since `--list` runs none.

    Raises:
        PlanError: If one is given.
    """
    for option, path in files.items():
        if path is not None:
            raise PlanError(f"{option} needs rows, and --list runs none.", hint=f"Leave out {option} or --list.")


def _list(*, as_json: bool) -> int:
    """Print every feature with its group, title and source."""
    from sdpa_onnx.cli.show import show_features
    from sdpa_onnx.workflows.conformance import features

    show_features(features(), as_json=as_json)
    return OK


def _parse_options(
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
    """Resolve and check every name before anything runs."""
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
    """Check before the work starts that the files can be written and that no package is missing for them.

    Raises:
        PlanError: If a file cannot be written, or the file of known findings already exists.
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
            f"{write_expected} already exists and is not overwritten.",
            hint=f"Choose another name; --expect {write_expected} copies its reasons into the new file.",
        )
    if page is not None:
        importlib.import_module("jinja2")
    if not as_json:
        importlib.import_module("rich")


def _run_rows(options: ConformanceOptions) -> "tuple[list[ConformanceRecord], bool]":
    """Run the rows; return them and whether all have run. Finished rows are kept when the user interrupts.

    Raises:
        RuntimeUnavailableError: If the only runtime is gone; with several, its rows are records with the reason.
    """
    from sdpa_onnx.cli.progress import Progress
    from sdpa_onnx.workflows.conformance import conformance as run_conformance
    from sdpa_onnx.workflows.conformance import not_run, select

    records: list[ConformanceRecord] = []
    rows = select(only=options.only, operators=options.operators, opsets=options.opsets, dtypes=options.dtypes)
    with Progress(_ESTIMATED_SECONDS * len(rows) * len(options.runtimes)) as progress:
        try:
            for runtime in options.runtimes:
                before = len(records)
                try:
                    for record in run_conformance(
                        runtime,
                        only=options.only,
                        operators=options.operators,
                        opsets=options.opsets,
                        dtypes=options.dtypes,
                        seed=options.seed,
                        threads=options.threads,
                        timeout_seconds=options.timeout_seconds,
                    ):
                        records.append(record)
                        progress.advance(_ESTIMATED_SECONDS)
                        progress.at(f"{runtime}: {record.feature} {record.operator} {record.opset} {record.dtype}")
                except RuntimeUnavailableError as error:
                    if len(options.runtimes) == 1:
                        raise
                    records += not_run(rows[len(records) - before :], runtime, str(error))
        except KeyboardInterrupt:
            return records, False
    return records, True


def _as_run(
    options: ConformanceOptions,
    records: "list[ConformanceRecord]",
    expected: "KnownFindings | None",
    *,
    is_finished: bool,
) -> "ConformanceRun":
    """Return the rows with the facts that their report needs."""
    import datetime as dt

    from sdpa_onnx.report.conformance.run import ConformanceRun
    from sdpa_onnx.workflows.conformance import features

    return ConformanceRun(
        records=tuple(records),
        versions={name: _version(name) for name in options.runtimes},
        sources={feature.slug: feature.source for feature in features()},
        facts=_facts(options),
        command=options.command,
        known=_sort_known(expected, records, is_finished=is_finished),
        is_finished=is_finished,
        made=dt.datetime.now(dt.UTC).date().isoformat(),
    )


def _version(runtime: str) -> str:
    """The version of a runtime; "unknown" if it is gone."""
    from sdpa_onnx.runtimes.base import get_runtime

    try:
        return get_runtime(runtime).version()
    except Exception:  # noqa: BLE001  # foreign code; its rows have the reason
        return "unknown"


def _sort_known(
    expected: "KnownFindings | None", records: "list[ConformanceRecord]", *, is_finished: bool
) -> "SortedFindings | None":
    """Compare the rows with the known findings. In an unfinished run no finding counts as vanished."""
    if expected is None:
        return None
    found = expected.sort(records)
    return found if is_finished else replace(found, vanished=(), unused=())


def _facts(options: ConformanceOptions) -> dict[str, str]:
    """Return facts about this machine for the page, without host name, user name, kernel build or paths."""
    import platform

    from sdpa_onnx.measure.environment import environment, versions

    machine = environment()
    return {
        "processor": machine["cpu"],
        "cores": machine["cores_usable"],
        "system": f"{platform.system()} {platform.machine()}",
        "python": machine["python"],
        "packages": ", ".join(f"{name} {version}" for name, version in versions().items() if version),
        "threads": str(options.threads),
        "seed": str(options.seed),
    }


def _show(run: "ConformanceRun", page: Path | None, *, as_json: bool) -> None:
    from sdpa_onnx.cli.show import show_conformance

    show_conformance(run, as_json=as_json)
    if run.known is not None:
        print_known_findings(run.known, with_summary=as_json)
    if page is not None:
        from sdpa_onnx.report.page.conformance_page import render_page
        from sdpa_onnx.sweep.store import replace_file

        replace_file(page, render_page(run).encode())
        print_message(f"wrote {page}")


def _write_expected(path: Path, records: "list[ConformanceRecord]", expected: "KnownFindings | None") -> None:
    """Write the findings. `_check_files` has checked that the file does not exist."""
    from sdpa_onnx.sweep.store import replace_file
    from sdpa_onnx.workflows.expected.known_findings import KnownFindings, is_bad
    from sdpa_onnx.workflows.expected.write_file import write_known

    data = write_known(records, known=expected or KnownFindings()).encode()
    replace_file(path, data)
    print_message(f"wrote {path}: {sum(map(is_bad, records))} known findings")
