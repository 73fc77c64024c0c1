"""Every wrong option: one message with the value and what would be right."""

import os

import pytest

from tests.cli.invoke import Shell

_OPTIONS: dict[str, tuple[list[str], str]] = {
    "no-value": (["run", "smoke", "--skip"], "Option '--skip' requires an argument. See sdpa-onnx run --help."),
    "page-dash": (["conformance", "--page", "-"], "'-' is not the name of a file. Give the name of a file."),
    "output-dash": (["export", "sdpa", "-o", "-"], "'-' is not the name of a file. Give the name of a file."),
    "html-dash": (
        ["compare", "bare.onnx", "causal.onnx", "--html", "-"],
        "'-' is not the name of a file. Give the name of a file.",
    ),
    "list-page": (
        ["conformance", "--page", "p.html", "--list"],
        "--page needs rows, and --list runs none. Leave out --page or --list.",
    ),
    "budget": (
        ["bench", "a.onnx", "--budget", "1e30"],
        "budget is 1e+30 s, longer than a timer waits. Give at most 9.2e+09.",
    ),
    "heads": (
        ["export", "sdpa", "-o", "x.onnx", "--q-num-heads", "8", "--kv-num-heads", "3"],
        (
            "q_num_heads is 8, which kv_num_heads = 3 does not divide. "
            "Each key/value head must serve the same number of query heads."
        ),
    ),
    "head-dim-0": (["export", "sdpa", "-o", "x.onnx", "--head-dim", "0"], "head_dim is 0; it must be at least 1."),
    "head-dim-negative": (
        ["export", "sdpa", "-o", "x.onnx", "--head-dim", "-4"],
        "head_dim is -4; it must be at least 1.",
    ),
    "v-head-dim-0": (
        ["export", "sdpa", "-o", "x.onnx", "--v-head-dim", "0"],
        "v_head_dim is 0; it must be at least 1.",
    ),
    "heads-negative": (
        ["export", "sdpa", "-o", "x.onnx", "--q-num-heads", "-8"],
        "q_num_heads is -8; it must be at least 1.",
    ),
    "kv-heads-0": (
        ["export", "sdpa", "-o", "x.onnx", "--kv-num-heads", "0"],
        "kv_num_heads is 0; it must be at least 1.",
    ),
    "window": (
        ["export", "sdpa", "-o", "x.onnx", "--left-window", "-2"],
        "left_window is -2; it must be -1 (all keys) or more.",
    ),
    "softcap": (
        ["export", "sdpa", "-o", "x.onnx", "--softcap", "-1"],
        "softcap is -1.0; it must be 0 (off) or more.",
    ),
    "scale": (["export", "sdpa", "-o", "x.onnx", "--scale", "nan"], "--scale nan is not a finite number."),
    "lengths-and-past": (
        ["export", "sdpa", "-o", "x.onnx", "--mask", "lengths", "--past", "--opset", "24"],
        (
            "mask 'lengths' cannot be combined with a past. "
            "ONNX Attention accepts nonpad_kv_seqlen only without past_key and past_value."
        ),
    ),
    "opset-17": (
        ["export", "sdpa", "-o", "x.onnx", "--opset", "17"],
        "Opset 17 cannot be exported. Use an opset from 18 to 25.",
    ),
    "opset-26": (
        ["export", "sdpa", "-o", "x.onnx", "--opset", "26"],
        "Opset 26 cannot be exported. Use an opset from 18 to 25.",
    ),
    "opset-17-module": (
        ["export", "encoder-self", "-o", "x.onnx", "--opset", "17"],
        "Opset 17 cannot be exported. Use an opset from 18 to 25.",
    ),
    "opset-26-module": (
        ["export", "encoder-self", "-o", "x.onnx", "--opset", "26"],
        "Opset 26 cannot be exported. Use an opset from 18 to 25.",
    ),
    "form": (
        ["export", "encoder-self", "-o", "x.onnx", "--opset", "18", "--form", "attention"],
        "A module at opset 18 cannot be exported in form 'attention'. Use --opset 23 or higher.",
    ),
    "target": (
        ["export", "encoder-slf", "-o", "x.onnx"],
        "'encoder-slf' is not a target. Did you mean 'encoder-self'?",
    ),
    "class": (["export", "mods.py:Rigt", "-o", "x.onnx"], "mods.py has no 'Rigt'. Did you mean 'Right'?"),
    "file": (["export", "none.py:Right", "-o", "x.onnx"], "There is no file none.py."),
    "module": (
        ["export", "no_such_package.layers:Right", "-o", "x.onnx"],
        "There is no module 'no_such_package.layers'. Install it, or name a file.",
    ),
    "no-module": (
        ["export", "mods.py:not_a_module", "-o", "x.onnx"],
        "'not_a_module' in mods.py is of type int, not a torch.nn.Module.",
    ),
    "sampleless": (
        ["export", "mods.py:Sampleless", "-o", "x.onnx"],
        (
            "mods.py:Sampleless has no sample inputs. Define sample_inputs (a tuple or dict of tensors, or a function "
            "that returns one) in the class or the file, or give --shape, such as --shape x=2x16x96."
        ),
    ),
    "shape": (
        ["export", "mods.py:Right", "-o", "x.onnx", "--shape", "x=2,10"],
        "--shape x=2,10 is not of the form NAME=2x16x512. Append a type if needed: :int64.",
    ),
    "shape-dtype": (
        ["export", "mods.py:Right", "-o", "x.onnx", "--shape", "x=2x10x16:flat32"],
        "The input 'x' has the unknown dtype 'flat32'. Known: float64, float32, float16, bfloat16, int64, int32, bool.",
    ),
    "dynamic": (
        ["export", "mods.py:Right", "-o", "x.onnx", "--dynamic", "x=batch"],
        "--dynamic x=batch is not of the form NAME=0,1. Axes count from 0.",
    ),
    "against": (
        ["verify", "bare.onnx", "--against", "encoder-sef"],
        "'encoder-sef' is not a target. Did you mean 'encoder-self'?",
    ),
    "size-form": (
        ["verify", "bare.onnx", "--size", "q_seq_len"],
        "--size q_seq_len is not of the form AXIS=N with N at least 0. E.g. q_seq_len=128.",
    ),
    "size-negative": (
        ["verify", "bare.onnx", "--size", "q_seq_len=-3"],
        "--size q_seq_len=-3 is not of the form AXIS=N with N at least 0. E.g. q_seq_len=128.",
    ),
    "budget-without-bench": (
        ["export", "sdpa", "-o", "timed.onnx", "--budget", "5"],
        "--budget requires --bench, which it limits. Leave out --budget.",
    ),
    "size-zero": (
        ["bench", "bare.onnx", "--size", "q_seq_len=0"],
        "--size q_seq_len=0 is not of the form AXIS=N with N at least 1. E.g. q_seq_len=128.",
    ),
    "size-axis": (
        ["verify", "bare.onnx", "--size", "seq=3"],
        "The model has no axis 'seq'. It has batch_size, q_seq_len, kv_seq_len.",
    ),
    "size-axis-bench": (
        ["bench", "bare.onnx", "--size", "seq=3"],
        "The model has no axis 'seq'. It has batch_size, q_seq_len, kv_seq_len.",
    ),
    "runtime-export": (
        ["export", "sdpa", "-o", "x.onnx", "--runtime", "openvno"],
        ("There is no runtime 'openvno'. Did you mean 'openvino'? `sdpa-onnx runtimes` lists them."),
    ),
    "suite": (["run", "quik"], "There is no suite 'quik'. Did you mean 'quick'?"),
    "suite-file": (["run", "none.toml"], "Cannot read suite none.toml: No such file or directory."),
    "suite-runtime": (
        ["run", "quick", "--runtime", "ort-cuda"],
        "The suite does not use runtime 'ort-cuda'. It uses ort-cpu, torch, onnx-reference.",
    ),
    "resume-nothing": (
        ["run", "quick", "--resume"],
        "There is no run of 'quick' in reports to resume. Start one without --resume.",
    ),
    "resume-no-run": (
        ["run", "quick", "--resume", "--out", "nowhere"],
        "nowhere contains no run. A run folder has a run.json.",
    ),
    "report-nothing": (["report", "nowhere"], "nowhere contains no run. A run folder has a run.json."),
    "report-file": (["report", "bare.onnx"], "bare.onnx contains no run. A run folder has a run.json."),
    "bench-reference": (
        ["bench", "bare.onnx", "--runtime", "onnx-reference"],
        "Runtime 'onnx-reference' is for agreement only. Time another one.",
    ),
    "bench-baseline": (
        ["bench", "bare.onnx", "--baseline", "openvino"],
        "There is no arm 'openvino' to be the baseline. Arms: ort-cpu, torch.",
    ),
    "bench-different": (
        ["bench", "bare.onnx", "causal.onnx"],
        "causal.onnx and bare.onnx compute different attention. Time them one by one.",
    ),
    "bench-inputs": (
        ["bench", "bare.onnx", "product.onnx"],
        "product.onnx has inputs x, bare.onnx has Q, K, V. Only models with the same inputs can be compared.",
    ),
    "bench-twice": (["bench", "bare.onnx", "./bare.onnx"], "The same file is given twice."),
}


@pytest.mark.parametrize(("arguments", "sentence"), _OPTIONS.values(), ids=_OPTIONS)
def test_option(shell: Shell, arguments: list[str], sentence: str) -> None:
    """The message has the wrong value and what would be right."""
    assert shell.refusal(*arguments) == sentence


_USAGE = {
    "threads-0": ["run", "quick", "--threads", "0"],
    "seed-negative": ["verify", "bare.onnx", "--seed", "-1"],
    "opset-word": ["export", "sdpa", "-o", "x.onnx", "--opset", "abc"],
    "mask": ["export", "sdpa", "-o", "x.onnx", "--mask", "bol"],
    "seconds-0": ["bench", "bare.onnx", "--seconds", "0"],
    "no-argument": ["verify"],
    "no-output": ["export", "sdpa"],
    "option": ["verify", "bare.onnx", "--runtme", "torch"],
    "command": ["verfy", "bare.onnx"],
}


@pytest.mark.parametrize("arguments", _USAGE.values(), ids=_USAGE)
def test_misuse(shell: Shell, arguments: list[str]) -> None:
    """A misspelt option, a missing argument or a value of the wrong type is one line too."""
    shell.refusal(*arguments)


@pytest.mark.parametrize("command", [("verify", "bare.onnx"), ("fuzz",), ("conformance",)])
def test_too_many_threads(shell: Shell, command: tuple[str, ...]) -> None:
    """They would exhaust the system, so they are rejected before anything starts."""
    most = 4 * (os.cpu_count() or 1)
    message = shell.refusal(*command, "--threads", "100000")
    assert message == f"--threads 100000 is too many for this machine. Give at most {most}."


@pytest.mark.parametrize("width", [40, 80])
def test_runtimes_fit_the_screen(shell: Shell, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """A long reason is broken at words."""
    monkeypatch.setenv("COLUMNS", str(width))
    lines = shell("runtimes").stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("  ") for line in lines)
