"""Each option of a command is a parameter of its Python function: the same name, plural where it is repeatable."""

import inspect

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import sdpa_onnx as so
from sdpa_onnx.cli.main import app

# Options that no function has, with the reason.
_EVERYWHERE = {
    "json": "functions return the records",
    "debug": "Python shows its own tracebacks",
    "quiet": "functions print nothing",
    "verbose": "functions print nothing",
    "output": "`save` of the returned model writes it",
    "expect": "known findings decide over exit codes",
    "write_expected": "known findings decide over exit codes",
}
_REASONS = {
    "export": {
        "bench": "`bench` of the returned model",
        "budget": "`bench(..., budget=)` of the returned model",
        **dict.fromkeys(
            (
                *("q_num_heads", "kv_num_heads", "head_dim", "v_head_dim", "causal", "left_window", "right_window"),
                *("softcap", "scale", "mask", "past", "layout"),
            ),
            "fields of an `AttentionSpec`, the target",
        ),
    },
    "inspect": {},  # one runtime tries the axes; the command also prints what others run
    "convert": {"no_empty_rows": "`rows_may_be_empty=False`"},
    "verify": dict.fromkeys(("outputs", "precision", "keep"), "they store and read files between two commands"),
    "bench": {
        "out": "a run folder belongs to the command",
        "chart": "a notebook draws the chart of the list",
        "calibrate": "done once for a machine",
    },
    "saturation": {},
    "compare": dict.fromkeys(("markdown", "html", "junit"), "files for CI and for people"),
    "run": {"open_page": "`folder` of the list has the page"},
    "conformance": {"page": "a file of the command", "list_features": "prints"},
}
# Names that say the same where the word of the command is not what Python calls it.
_SAME = {"dynamic": "dynamic_axes"}
# Commands that have no function, with the reason.
_NO_FUNCTION = {
    "report": "renders a folder",
    "reduce": "writes a bundle",
    "fuzz": "a search that runs until it is stopped",
    "runtimes": "`sdpa_onnx.runtimes` is a package: `sdpa-onnx runtimes` lists them",
}


def _commands() -> dict[str, list[str]]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return {
        name: [str(parameter.name) for parameter in command.params if parameter.param_type_name == "option"]
        for name, command in group.commands.items()
    }


def _parameters(command: str) -> list[str]:
    return list(inspect.signature(getattr(so, command)).parameters)


def _has(option: str, parameters: list[str]) -> bool:
    return not {option, f"{option}s", _SAME.get(option, option)}.isdisjoint(parameters)


def test_every_command_has_a_function_or_a_reason() -> None:
    """A new command needs one or the other."""
    assert set(_commands()) == {*_REASONS, *_NO_FUNCTION}


@pytest.mark.parametrize("command", _REASONS)
def test_every_option_is_a_parameter_or_has_a_reason(command: str) -> None:
    """A new option needs one or the other, and a reason that is out of date goes."""
    parameters = _parameters(command)
    missing = {option for option in _commands()[command] if not _has(option, parameters)}
    reasons = _REASONS[command]
    assert missing - set(_EVERYWHERE) == set(reasons), (
        "write a parameter or a reason, and remove one that is not needed"
    )


@pytest.mark.parametrize("command", _REASONS)
def test_defaults_are_the_same(command: str) -> None:
    """Numbers and texts; None stands for a choice that is made later."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    signature = inspect.signature(getattr(so, command)).parameters
    differ = {}
    for option in group.commands[command].params:
        name = str(option.name)
        if name == "timeout":  # a function runs in this process if it has none
            continue
        if name in signature and isinstance(option.default, int | float | str):
            default = signature[name].default
            if default is not None and default != option.default:
                differ[name] = (default, option.default)
    assert differ == {}
