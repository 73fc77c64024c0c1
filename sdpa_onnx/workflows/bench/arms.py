"""Build the arms of a comparison: files x forms x runtimes x settings x threads x environments, with short names.

Converts files to forms in memory, and reports why one cannot be converted. Times and judges nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.core.records.records import Outcome, TimingRecord
from sdpa_onnx.errors import ExportError, ModelError, PlanError
from sdpa_onnx.graph.model import OnnxModel
from sdpa_onnx.measure.arm_settings import arm_settings, option_takers, place_of, takes_options
from sdpa_onnx.measure.pool import PATIENCE_SECONDS
from sdpa_onnx.runtimes.base import Runtime, Unsupported
from sdpa_onnx.runtimes.torch_compiled import TORCH_COMPILE, module_runtime
from sdpa_onnx.workflows.bench.environments import environment_labels, package_version
from sdpa_onnx.workflows.check.lifted_model import LiftedModel, with_lifted_sites
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME, runs_module
from sdpa_onnx.workflows.choose_form.runtime_strategies import RuntimeForm
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["AS_IS", "USUAL_RUNTIMES", "ArmChoice", "ArmSet", "find_baseline", "make_contest"]

# The form of a file that is not converted.
AS_IS = "as-is"
# Runtimes if the caller names none.
USUAL_RUNTIMES = ("ort-cpu", MODULE_RUNTIME)
# An arm costs about 5 s: at least 4 launches of 40 visits of 10 ms, with starts and warm-up. A dozen take a minute,
# and a reader can distinguish no more in a chart.
_MOST_ARMS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChoice:
    """The requested arms: the cross product of these factors.

    Args:
        runtimes: Names; () = ort-cpu, and torch where it supports the attention.
        forms: Values of `Form`, or `AS_IS`; () = every file unchanged.
        options: Sets of settings of the runtime, each an arm in addition to the default settings.
        threads: Threads inside one operator.
        pythons: Interpreters of other environments, each an arm in addition to our own.
        patience_seconds: Longest wait for a runtime while a form is probed there; None = probe in our process.
        against_module: Whether the PyTorch module of the models is timed too, in eager mode and compiled.
    """

    runtimes: Sequence[str] = ()
    forms: Sequence[str] = ()
    options: Sequence[Mapping[str, str]] = ()
    threads: Sequence[int] = (1,)
    pythons: Sequence[Path] = ()
    patience_seconds: float | None = PATIENCE_SECONDS
    against_module: bool = False

    @property
    def runtime_names(self) -> tuple[str, ...]:
        """The runtimes to time, the module's last."""
        if not self.against_module:
            return tuple(dict.fromkeys(self.runtimes or USUAL_RUNTIMES))
        others = [name for name in self.runtimes if not runs_module(name)]
        return tuple(dict.fromkeys((*(others or USUAL_RUNTIMES[:1]), MODULE_RUNTIME, TORCH_COMPILE)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSet:
    """The arms of a comparison.

    Args:
        arms: The arms that can be timed.
        refused: A record with the reason for each other arm.
        warnings: By arm, warnings about its model.
    """

    arms: tuple[Arm, ...]
    refused: tuple[TimingRecord, ...]
    warnings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One model for one runtime: a file in a form; `reason` is why there is none."""

    path: Path
    form: str
    model: OnnxModel
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An arm without a name."""

    runtime: Runtime
    candidate: _Candidate
    threads: int
    options: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    version: str = ""

    @property
    def is_module(self) -> bool:
        return runs_module(self.runtime.name)


def make_contest(
    models: Mapping[Path, OnnxModel], choice: ArmChoice, *, on_step: Callable[[str], None] = lambda _: None
) -> ArmSet:
    """Build every arm.

    Args:
        models: By file, at least one.
        choice: The requested arms.
        on_step: Called with a description of each step.

    Raises:
        PlanError: If there are too many arms, or none; if a runtime is for agreement only; if an interpreter is bad.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not available.
    """
    runtimes = [_timed(name) for name in choice.runtime_names]
    _check_number(len(models), runtimes, choice)
    _check_settings(runtimes, choice)
    entries = [entry for runtime in runtimes for entry in _entries(runtime, models, choice, on_step)]
    if not (choice.runtimes or choice.against_module):
        # torch is a default, not requested by name: what it does not support is not reported
        entries = [entry for entry in entries if not (entry.is_module and entry.candidate.reason)]
    named = dict(zip(_names(entries, models, choice), entries, strict=True))
    able = {name: entry for name, entry in named.items() if not entry.candidate.reason}
    distinct = {id(entry.candidate.model): entry.candidate.model for entry in able.values()}
    lifted = {key: with_lifted_sites(model) for key, model in distinct.items()}
    arms = tuple(_arm(name, entry, lifted[id(entry.candidate.model)]) for name, entry in able.items())
    refused = tuple(_refusal(name, entry) for name, entry in named.items() if entry.candidate.reason)
    if not arms:
        raise PlanError(f"No runtime supports these models: {refused[0].reason}")
    warnings = {name: entry.candidate.warnings for name, entry in named.items() if entry.candidate.warnings}
    return ArmSet(arms=arms, refused=refused, warnings=warnings)


def find_baseline(arms: Sequence[Arm], requested: str | None) -> str:
    """The arm that ratios refer to: the requested one, else torch, else the first.

    Args:
        arms: All arms.
        requested: Name of an arm, or a word of it, such as its runtime, file or version; the first match counts.

    Raises:
        PlanError: If no arm matches.
    """
    names = [arm.name for arm in arms]
    if requested is None:
        return next((arm.name for arm in arms if arm.runtime.name == MODULE_RUNTIME), names[0])
    found = next((arm.name for arm in arms if requested in (arm.name, arm.runtime.name, arm.form)), None)
    found = found or next((name for name in names if f" {requested} " in f" {name} "), None)
    if found is None:
        raise PlanError(f"There is no arm '{requested}' to be the baseline.", hint=f"Arms: {', '.join(names)}.")
    return found


def _timed(name: str) -> Runtime:
    runtime = module_runtime(name)
    if not runtime.measures_time:
        raise PlanError(f"Runtime '{name}' is for agreement only.", hint="Time another one.")
    return runtime


def _check_number(files: int, runtimes: Sequence[Runtime], choice: ArmChoice) -> None:
    total = 0
    for runtime in runtimes:
        candidates = 1 if runs_module(runtime.name) else files * max(len(choice.forms), 1)
        settings = 1 + len(choice.options) if takes_options(runtime.name) else 1
        settings *= 1 + len(choice.pythons) if place_of(runtime.name) else 1
        total += candidates * settings * len(choice.threads)
    if total > _MOST_ARMS:
        raise PlanError(
            f"These are {total} arms; one comparison takes at most {_MOST_ARMS}.", hint="Compare fewer things at once."
        )


def _check_settings(runtimes: Sequence[Runtime], choice: ArmChoice) -> None:
    """Refuse settings that no arm supports before anything runs."""
    able = [runtime.name for runtime in runtimes if takes_options(runtime.name)]
    if choice.options and not able:
        raise PlanError(f"--option works with {option_takers()} only.", hint="Time one of them too.")
    if choice.pythons and not any(place_of(runtime.name) for runtime in runtimes):
        raise PlanError("--python does not work with torch.", hint="Time another runtime too, such as ort-cpu.")
    for name, options in product(able, choice.options):
        arm_settings(name, threads=1, options=options)


def _entries(
    runtime: Runtime, models: Mapping[Path, OnnxModel], choice: ArmChoice, on_step: Callable[[str], None]
) -> Iterator[_Entry]:
    has_engine = bool(place_of(runtime.name))  # else it supports no other environment
    environments = _environments(runtime, choice.pythons if has_engine else ())  # fails early, before any conversion
    if runs_module(runtime.name):  # the same attention, whatever the file and its form
        path, model = next(iter(models.items()))
        candidates = [_supported(runtime, _Candidate(path=path, form="", model=model))]
    else:
        candidates = [
            _candidate(runtime, path, model, form, choice, on_step) for path, model, form in _pairs(models, choice)
        ]
    settings = ({}, *(choice.options if takes_options(runtime.name) else ()))
    for candidate, options, threads, (python, version) in product(candidates, settings, choice.threads, environments):
        yield _Entry(
            runtime=runtime, candidate=candidate, threads=threads, options=options, python=python, version=version
        )


def _pairs(models: Mapping[Path, OnnxModel], choice: ArmChoice) -> Iterator[tuple[Path, OnnxModel, str]]:
    forms = tuple(dict.fromkeys(choice.forms)) or (AS_IS,)
    yield from ((path, model, form) for (path, model), form in product(models.items(), forms))


def _environments(runtime: Runtime, pythons: Sequence[Path]) -> list[tuple[Path | None, str]]:
    """Our own environment, and the others with their labels."""
    if not pythons:
        return [(None, "")]
    own = runtime.version().rpartition(" ")[2]
    versions = [package_version(python, runtime.name) for python in pythons]
    return [(None, own), *zip(pythons, environment_labels(pythons, versions, own), strict=True)]


def _candidate(
    runtime: Runtime,
    path: Path,
    model: OnnxModel,
    form: str,
    choice: ArmChoice,
    on_step: Callable[[str], None],
) -> _Candidate:
    """A file in a form, with the workarounds of the runtime."""
    if form == AS_IS:
        return _supported(runtime, _Candidate(path=path, form=form, model=model))
    on_step(f"writing {path.name} as {form} for {runtime.name}")
    try:
        with own_process(runtime, choice.patience_seconds) as worker:
            done = convert_model(model, RuntimeForm(runtime=worker, form=Form(form)))
    except (ModelError, ExportError) as error:
        return _Candidate(path=path, form=form, model=model, reason=str(error))
    first = next(iter(done.refused.values()), "").rstrip(".")
    if not (done.converted or done.already):
        return _Candidate(path=path, form=form, model=model, reason=first or "it contains no attention")
    unchanged = f"{len(done.refused)} of {len(done.found)} attentions of {path.name} stay unchanged: {first}."
    warnings = (unchanged,) if done.refused else ()
    return _supported(runtime, _Candidate(path=path, form=form, model=done.model, warnings=warnings))


def _supported(runtime: Runtime, candidate: _Candidate) -> _Candidate:
    support = runtime.supports(candidate.model)
    return replace(candidate, reason=support.reason) if isinstance(support, Unsupported) else candidate


def _names(entries: Sequence[_Entry], models: Mapping[Path, OnnxModel], choice: ArmChoice) -> list[str]:
    """Names that contain only what differs; the runtime is omitted if all arms share it and the models differ."""
    one_runtime = len({entry.runtime.name for entry in entries}) == 1
    details = [_details(entry, models, choice) for entry in entries]
    models_differ = len(models) > 1 or len(set(choice.forms)) > 1
    has_runtime = not (one_runtime and models_differ)
    return [
        " ".join([*([entry.runtime.name] if has_runtime else []), *words])
        for entry, words in zip(entries, details, strict=True)
    ]


def _details(entry: _Entry, models: Mapping[Path, OnnxModel], choice: ArmChoice) -> list[str]:
    words = []
    if len(models) > 1 and not entry.is_module:
        same_name = sum(other.name == entry.candidate.path.name for other in models) > 1
        words.append(str(entry.candidate.path) if same_name else entry.candidate.path.name)
    if len(set(choice.forms)) > 1 and not entry.is_module:
        words.append(entry.candidate.form)
    if entry.version:
        words.append(entry.version)
    if entry.options:
        words.append(_settings(entry.options, choice.options))
    if len(choice.threads) > 1:
        words.append("1 thread" if entry.threads == 1 else f"{entry.threads} threads")
    return words


def _settings(options: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> str:
    """Settings in short: the last part of a key, if that is unique."""
    keys = {key for one in every for key in one}
    last = {key: re.split(r"[.:]", key)[-1] for key in keys}
    short = {key: word if list(last.values()).count(word) == 1 else key for key, word in last.items()}
    return ",".join(f"{short[key]}={value}" for key, value in options.items())


def _arm(name: str, entry: _Entry, lifted: LiftedModel) -> Arm:
    return Arm(
        name=name,
        model=entry.candidate.model,
        runtime=entry.runtime,
        threads=entry.threads,
        options=entry.options,
        python=entry.python,
        environment=entry.version if entry.python is not None else "",
        lifted=lifted,
    )


def _refusal(name: str, entry: _Entry) -> TimingRecord:
    form = entry.candidate.form
    return TimingRecord(
        target=str(entry.candidate.path),
        case=str(entry.candidate.path),
        form=entry.candidate.model.facts.form.value if form == AS_IS else form,
        opset=None if entry.is_module else entry.candidate.model.opset,
        runtime=entry.runtime.name,
        arm=name,
        threads=entry.threads,
        options=dict(entry.options),
        outcome=Outcome.UNSUPPORTED,
        reason=entry.candidate.reason,
    )
