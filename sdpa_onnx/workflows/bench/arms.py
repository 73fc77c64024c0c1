"""The arms of a comparison: files x forms x runtimes x settings x threads x environments, each with a short name.

Brings files into forms in memory, and says why one cannot be; times and judges nothing.
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
from sdpa_onnx.measure.arm_settings import adapter_of, arm_settings
from sdpa_onnx.measure.pool import PATIENCE_SECONDS
from sdpa_onnx.runtimes.arm_job import Adapter
from sdpa_onnx.runtimes.base import Runtime, Unsupported, get_runtime
from sdpa_onnx.workflows.bench.environments import environment_labels, package_version
from sdpa_onnx.workflows.check.run_context import MODULE_RUNTIME
from sdpa_onnx.workflows.choose_form.runtime_strategies import RuntimeForm
from sdpa_onnx.workflows.convert.convert_model import convert_model
from sdpa_onnx.workflows.isolate.isolated_runtime import own_process
from sdpa_onnx.workflows.timing.job_folder import Arm

__all__ = ["AS_IS", "USUAL_RUNTIMES", "ArmChoice", "ArmSet", "find_baseline", "make_contest"]

# The form of a file that is not converted.
AS_IS = "as-is"
# Runtimes where the caller names none.
USUAL_RUNTIMES = ("ort-cpu", MODULE_RUNTIME)
# An arm costs some 5 s: at least 4 launches of 40 visits of 10 ms, with starts and warm-up. A dozen are a minute, and
# as many as one can tell apart in a chart.
_MOST_ARMS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmChoice:
    """What is compared: the arms are the cross product.

    Args:
        runtimes: Names; () = ort-cpu, beside torch where it knows the attention.
        forms: Values of `Form`, or `AS_IS`; () = every file as it is.
        options: Sets of settings of the runtime, each an arm beside the usual ones.
        threads: Threads inside one operator.
        pythons: Interpreters of other environments, each an arm beside our own.
        patience_seconds: Longest wait for a runtime that is asked what a form needs there; None = asked in our process.
    """

    runtimes: Sequence[str] = ()
    forms: Sequence[str] = ()
    options: Sequence[Mapping[str, str]] = ()
    threads: Sequence[int] = (1,)
    pythons: Sequence[Path] = ()
    patience_seconds: float | None = PATIENCE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSet:
    """Who takes part.

    Args:
        arms: Those that can be timed.
        refused: A record with the reason for each of the others.
        warnings: By arm, what is to be known of its model.
    """

    arms: tuple[Arm, ...]
    refused: tuple[TimingRecord, ...]
    warnings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One model for one runtime: a file in a form; `reason` is why there is none."""

    path: Path
    form: str
    model: OnnxModel
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One arm before it has a name."""

    runtime: Runtime
    way: _Way
    threads: int
    options: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    version: str = ""

    @property
    def is_module(self) -> bool:
        return self.runtime.name == MODULE_RUNTIME


def make_contest(
    models: Mapping[Path, OnnxModel], choice: ArmChoice, *, on_step: Callable[[str], None] = lambda _: None
) -> ArmSet:
    """Make every arm.

    Args:
        models: By file, at least one.
        choice: What is compared.
        on_step: Told what is being done.

    Raises:
        PlanError: If there are too many arms, or none; if a runtime is for agreement only, or an interpreter is none.
        RuntimeNotFoundError, RuntimeUnavailableError: If a runtime is not there.
    """
    runtimes = [_timed(name) for name in dict.fromkeys(choice.runtimes or USUAL_RUNTIMES)]
    _check_number(len(models), runtimes, choice)
    _check_settings(runtimes, next(iter(models.values())), choice)
    entries = [entry for runtime in runtimes for entry in _entries(runtime, models, choice, on_step)]
    if not choice.runtimes:  # torch was not asked for by name: what it does not know is no news
        entries = [entry for entry in entries if not (entry.is_module and entry.way.reason)]
    named = dict(zip(_names(entries, models, choice), entries, strict=True))
    arms = tuple(_arm(name, entry) for name, entry in named.items() if not entry.way.reason)
    refused = tuple(_refusal(name, entry) for name, entry in named.items() if entry.way.reason)
    if not arms:
        raise PlanError(f"No runtime takes these models: {refused[0].reason}")
    warnings = {name: entry.way.warnings for name, entry in named.items() if entry.way.warnings}
    return ArmSet(arms=arms, refused=refused, warnings=warnings)


def find_baseline(arms: Sequence[Arm], asked: str | None) -> str:
    """The arm that ratios refer to: torch where nothing is asked, else the first.

    Args:
        arms: All.
        asked: Name of an arm, or a word of it, such as its runtime, file or version; the first that has it counts.

    Raises:
        PlanError: If no arm has it.
    """
    names = [arm.name for arm in arms]
    if asked is None:
        return next((arm.name for arm in arms if arm.runtime.name == MODULE_RUNTIME), names[0])
    found = next((arm.name for arm in arms if asked in (arm.name, arm.runtime.name, arm.form)), None)
    found = found or next((name for name in names if f" {asked} " in f" {name} "), None)
    if found is None:
        raise PlanError(f"There is no arm '{asked}' to be the baseline.", hint=f"Arms: {', '.join(names)}.")
    return found


def _timed(name: str) -> Runtime:
    runtime = get_runtime(name)
    if not runtime.measures_time:
        raise PlanError(f"Runtime '{name}' is for agreement only.", hint="Time another one.")
    return runtime


def _check_number(files: int, runtimes: Sequence[Runtime], choice: ArmChoice) -> None:
    total = 0
    for runtime in runtimes:
        ways = 1 if runtime.name == MODULE_RUNTIME else files * max(len(choice.forms), 1)
        takes_more = adapter_of(runtime.name) is not Adapter.SDPA_ONNX
        settings = (1 + len(choice.options)) * (1 + len(choice.pythons)) if takes_more else 1
        total += ways * settings * len(choice.threads)
    if total > _MOST_ARMS:
        raise PlanError(
            f"These are {total} arms; one comparison takes at most {_MOST_ARMS}.", hint="Compare fewer things at once."
        )


def _check_settings(runtimes: Sequence[Runtime], model: OnnxModel, choice: ArmChoice) -> None:
    """Find out about settings that no arm can have before anything runs."""
    able = [runtime.name for runtime in runtimes if adapter_of(runtime.name) is not Adapter.SDPA_ONNX]
    asked = "--option" if choice.options else "--python" if choice.pythons else ""
    if asked and not able:
        raise PlanError(f"{asked} is of ort-cpu, ort-cuda and openvino.", hint="Time one of them too.")
    for name, options in product(able, choice.options):
        arm_settings(name, model, threads=1, options=options)


def _entries(
    runtime: Runtime, models: Mapping[Path, OnnxModel], choice: ArmChoice, on_step: Callable[[str], None]
) -> Iterator[_Entry]:
    is_own = adapter_of(runtime.name) is Adapter.SDPA_ONNX  # knows neither settings nor other environments
    environments = [] if is_own else _environments(runtime, choice.pythons)  # before work is done in vain
    if runtime.name == MODULE_RUNTIME:  # the same attention, whatever the file and its form
        path, model = next(iter(models.items()))
        ways = [_supported(runtime, _Way(path=path, form="", model=model))]
    else:
        ways = [_way(runtime, path, model, form, choice, on_step) for path, model, form in _asked(models, choice)]
    if is_own:
        yield from (_Entry(runtime=runtime, way=way, threads=threads) for way, threads in product(ways, choice.threads))
        return
    settings = ({}, *choice.options)
    for way, options, threads, (python, version) in product(ways, settings, choice.threads, environments):
        yield _Entry(runtime=runtime, way=way, threads=threads, options=options, python=python, version=version)


def _asked(models: Mapping[Path, OnnxModel], choice: ArmChoice) -> Iterator[tuple[Path, OnnxModel, str]]:
    forms = tuple(dict.fromkeys(choice.forms)) or (AS_IS,)
    yield from ((path, model, form) for (path, model), form in product(models.items(), forms))


def _environments(runtime: Runtime, pythons: Sequence[Path]) -> list[tuple[Path | None, str]]:
    """Our own environment, and the others with their labels."""
    if not pythons:
        return [(None, "")]
    own = runtime.version().rpartition(" ")[2]
    adapter = adapter_of(runtime.name)
    versions = [package_version(python, adapter) for python in pythons]
    return [(None, own), *zip(pythons, environment_labels(pythons, versions, own), strict=True)]


def _way(
    runtime: Runtime,
    path: Path,
    model: OnnxModel,
    form: str,
    choice: ArmChoice,
    on_step: Callable[[str], None],
) -> _Way:
    """A file in a form, written as the runtime needs it."""
    if form == AS_IS:
        return _supported(runtime, _Way(path=path, form=form, model=model))
    on_step(f"writing {path.name} as {form} for {runtime.name}")
    try:
        with own_process(runtime, choice.patience_seconds) as apart:
            done = convert_model(model, RuntimeForm(runtime=apart, form=Form(form)))
    except (ModelError, ExportError) as error:
        return _Way(path=path, form=form, model=model, reason=str(error))
    first = next(iter(done.refused.values()), "").rstrip(".")
    if not (done.converted or done.already):
        return _Way(path=path, form=form, model=model, reason=first or "there is no attention in it")
    left = f"{len(done.refused)} of {len(done.found)} attentions of {path.name} stayed as they were: {first}."
    warnings = (left,) if done.refused else ()
    return _supported(runtime, _Way(path=path, form=form, model=done.model, warnings=warnings))


def _supported(runtime: Runtime, way: _Way) -> _Way:
    support = runtime.supports(way.model)
    return replace(way, reason=support.reason) if isinstance(support, Unsupported) else way


def _names(entries: Sequence[_Entry], models: Mapping[Path, OnnxModel], choice: ArmChoice) -> list[str]:
    """Names that tell only what differs; the runtime stands in them unless it is the same and something else does."""
    one_runtime = len({entry.runtime.name for entry in entries}) == 1
    details = [_details(entry, models, choice) for entry in entries]
    models_differ = len(models) > 1 or len(set(choice.forms)) > 1
    is_told = not (one_runtime and models_differ)
    return [
        " ".join([*([entry.runtime.name] if is_told else []), *words])
        for entry, words in zip(entries, details, strict=True)
    ]


def _details(entry: _Entry, models: Mapping[Path, OnnxModel], choice: ArmChoice) -> list[str]:
    words = []
    if len(models) > 1 and not entry.is_module:
        same_name = sum(other.name == entry.way.path.name for other in models) > 1
        words.append(str(entry.way.path) if same_name else entry.way.path.name)
    if len(set(choice.forms)) > 1 and not entry.is_module:
        words.append(entry.way.form)
    if entry.version:
        words.append(entry.version)
    if entry.options:
        words.append(_settings(entry.options, choice.options))
    if len(choice.threads) > 1:
        words.append("1 thread" if entry.threads == 1 else f"{entry.threads} threads")
    return words


def _settings(options: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> str:
    """Settings in short: the last word of a key, where that means one key only."""
    keys = {key for one in every for key in one}
    last = {key: re.split(r"[.:]", key)[-1] for key in keys}
    short = {key: word if list(last.values()).count(word) == 1 else key for key, word in last.items()}
    return ",".join(f"{short[key]}={value}" for key, value in options.items())


def _arm(name: str, entry: _Entry) -> Arm:
    return Arm(
        name=name,
        model=entry.way.model,
        runtime=entry.runtime,
        threads=entry.threads,
        options=entry.options,
        python=entry.python,
        environment=entry.version if entry.python is not None else "",
    )


def _refusal(name: str, entry: _Entry) -> TimingRecord:
    form = entry.way.form
    return TimingRecord(
        target=str(entry.way.path),
        case=str(entry.way.path),
        form=entry.way.model.facts.form.value if form == AS_IS else form,
        opset=0 if entry.is_module else entry.way.model.opset,
        runtime=entry.runtime.name,
        arm=name,
        threads=entry.threads,
        options=dict(entry.options),
        outcome=Outcome.UNSUPPORTED,
        reason=entry.way.reason,
    )
