"""Every mistake in a suite, by the complete sentence that the user reads."""

import re
from pathlib import Path

import pytest

from sdpa_onnx.core.attention.forms import Form
from sdpa_onnx.errors import PlanError
from sdpa_onnx.sweep.suite import built_in_suites, cases, load_suite
from tests.sweep.suites import TINY, suite_of, write_suite

_PLAIN = 'name = "t"\nagreement = ["ort-cpu"]\n[[vary]]\ntargets = ["sdpa"]\n'
_MEASURE = "launches, first_launches, blocks, least_blocks, budget_seconds, visit_seconds, warm_up_seconds"
_TOP = (
    "name, opsets, agreement, timing, baseline, spreads, probes, reference_seq_len, seed, threads, measure, base, "
    "saturation, vary"
)
_BASE = (
    "batch_size, q_seq_len, kv_seq_len, past_seq_len, q_num_heads, kv_num_heads, head_dim, v_head_dim, is_causal, dtype"
)


def _error(path: Path) -> str:
    with pytest.raises(PlanError) as caught:
        load_suite(str(path))
    return str(caught.value)


def _table(name: str, line: str) -> str:
    return _PLAIN.replace("[[vary]]", f"[{name}]\n{line}\n[[vary]]")


_UNKNOWN_KEYS = {
    "top": ("opset = [18]\n" + _PLAIN, "unknown key 'opset'. Did you mean 'opsets'?"),
    "top-far": ("zzz = 1\n" + _PLAIN, f"unknown key 'zzz'. Allowed: {_TOP}."),
    "base": (_table("base", "head_dims = 3"), "unknown key 'head_dims' in base. Did you mean 'head_dim'?"),
    "base-far": (_table("base", "qqq = 3"), f"unknown key 'qqq' in base. Allowed: {_BASE}."),
    "measure": (_table("measure", "block = 3"), "unknown key 'block' in measure. Did you mean 'blocks'?"),
    "measure-far": (
        _table("measure", "qqq = 3"),
        f"unknown key 'qqq' in measure. Allowed: {_MEASURE}.",
    ),
    "vary": (_PLAIN + "q_seqlen = [3]\n", "unknown key 'q_seqlen' in vary[0]. Did you mean 'q_seq_len'?"),
    "second-vary": (
        _PLAIN + '[[vary]]\ntargets = ["sdpa"]\ntarget = ["sdpa"]\n',
        "unknown key 'target' in vary[1]. Did you mean 'targets'?",
    ),
}


@pytest.mark.parametrize(("text", "words"), _UNKNOWN_KEYS.values(), ids=_UNKNOWN_KEYS)
def test_unknown_key(tmp_path: Path, text: str, words: str) -> None:
    """A misspelt key is named with its place and the nearest allowed one, or all of them."""
    path = write_suite(tmp_path, text)
    assert _error(path) in (
        f"Suite {path}: {words}",
        # msgspec counts array items since 0.20, before it wrote dots.
        f"Suite {path}: {words}".replace("vary[0]", "vary[...]").replace("vary[1]", "vary[...]"),
    )


_WRONG_TYPES = {
    "text-for-list": ('opsets = "18"\n' + _PLAIN, "Expected `array`, got `str` at `opsets`."),
    "number-for-list": (_PLAIN + "head_dim = 8\n", "Expected `array`, got `int` at `vary[0].head_dim`."),
    "text-in-list": (_PLAIN + 'head_dim = ["a"]\n', "Expected `int`, got `str` at `vary[0].head_dim[0]`."),
    "fraction": (_table("base", "head_dim = 6.5"), "Expected `int`, got `float` at `base.head_dim`."),
    "truth-value": ("seed = true\n" + _PLAIN, "Expected `int`, got `bool` at `seed`."),
    "dtype": (_PLAIN + 'dtype = ["float8"]\n', "Invalid enum value 'float8' at `vary[0].dtype[0]`."),
    "no-name": (_PLAIN.replace('name = "t"\n', ""), "Object missing required field `name`."),
    "no-vary": ('name = "t"\n', "Object missing required field `vary`."),
    "no-targets": (_PLAIN.replace('targets = ["sdpa"]', ""), "Object missing required field `targets` at `vary[0]`."),
    "nothing": ("", "Object missing required field `name`."),
}


@pytest.mark.parametrize(("text", "words"), _WRONG_TYPES.values(), ids=_WRONG_TYPES)
def test_wrong_type(tmp_path: Path, text: str, words: str) -> None:
    """A value of another type is reported with its place, its type and the expected type."""
    path = write_suite(tmp_path, text)
    assert _error(path).replace("[...]", "[0]") == f"Suite {path}: {words}"


_IMPOSSIBLE = {
    "opsets": ("opsets = []\n" + _PLAIN, "'opsets' is empty. Give at least one value."),
    "agreement": (_PLAIN.replace('["ort-cpu"]', "[]"), "'agreement' is empty. Give at least one value."),
    "vary": ('name = "t"\nvary = []\n', "'vary' is empty. Give at least one value."),
    "spreads": ("spreads = []\n" + _PLAIN, "'spreads' is empty. Give at least one value."),
    "targets": (_PLAIN.replace('["sdpa"]', "[]"), "'targets of vary[0]' is empty. Give at least one value."),
    "zero-length": (_PLAIN + "q_seq_len = [4, 0]\n", "'vary[0].q_seq_len[0]' must be at least 1 and at most 16777216."),
    "negative-batch": (_PLAIN + "batch_size = [-1]\n", "'vary[0].batch_size[0]' must be at least 1 and at most 65536."),
    "zero-keys": (_PLAIN + "kv_seq_len = [0]\n", "'vary[0].kv_seq_len[0]' must be at least 1 and at most 16777216."),
    "threads": ("threads = 0\n" + _PLAIN, "'threads' must be at least 1 and at most 65536."),
    "blocks": (_table("measure", "blocks = 1"), "'measure.blocks' must be at least 2 and at most 65536."),
    "budget": (
        _table("measure", "budget_seconds = 0"),
        "'measure.budget_seconds' must be above 0 and at most 1e+09.",
    ),
    "spread": ("spreads = [1.0, 0.0]\n" + _PLAIN, "'spreads[0]' must be above 0 and at most 1e+09."),
    "baseline": (
        'timing = ["ort-cpu"]\n' + _PLAIN,
        "baseline 'torch' is not in 'timing'. Add it to 'timing'.",
    ),
    "module-width": (
        _PLAIN.replace('"sdpa"', '"sdpa", "encoder-self"') + "head_dim = [8]\n",
        "'head_dim' cannot be varied for 'encoder-self'; the module determines it.",
    ),
}


_OUT_OF_RANGE = {
    "seed-beyond-64-bits": (
        f"seed = {10**26}\n" + _PLAIN,
        "'seed' must be at least 0 and at most 9223372036854775807.",
    ),
    "negative-seed": ("seed = -1\n" + _PLAIN, "'seed' must be at least 0 and at most 9223372036854775807."),
    "length": (_table("base", f"q_seq_len = {10**14}"), "'base.q_seq_len' must be at least 1 and at most 16777216."),
    "length-in-list": (
        _PLAIN + "kv_seq_len = [64, 16777217]\n",
        "'vary[0].kv_seq_len[0]' must be at least 1 and at most 16777216.",
    ),
    "past": (_table("base", "past_seq_len = -1"), "'base.past_seq_len' must be at least 0 and at most 16777216."),
    "heads": (_PLAIN + "q_num_heads = [65537]\n", "'vary[0].q_num_heads[0]' must be at least 1 and at most 65536."),
    "threads": (f"threads = {2**64}\n" + _PLAIN, "'threads' must be at least 1 and at most 65536."),
    "nan": ("spreads = [nan]\n" + _PLAIN, "'spreads[0]' must be above 0 and at most 1e+09."),
    "inf": (_table("measure", "budget_seconds = inf"), "'measure.budget_seconds' must be above 0 and at most 1e+09."),
    "combinations": (
        _PLAIN + f"q_seq_len = {list(range(1, 1001))}\nkv_seq_len = {list(range(1, 1001))}\n",
        "vary[0] has 1000000 combinations; at most 100000 are allowed. Give fewer values, or split the suite.",
    ),
}


@pytest.mark.parametrize(("text", "words"), _OUT_OF_RANGE.values(), ids=_OUT_OF_RANGE)
def test_number_out_of_range(tmp_path: Path, text: str, words: str) -> None:
    """A number beyond any use is refused before anything is built, with its field and the range."""
    path = write_suite(tmp_path, text)
    assert re.sub(r"\[(\.\.\.|\d+)\]", "[0]", _error(path)) == f"Suite {path}: {words}"


def test_too_many_elements(tmp_path: Path) -> None:
    """Sizes that are possible alone are refused if a tensor of one case fits no machine; just inside, they pass."""
    sizes = "batch_size = [1024]\nq_num_heads = [1024]\nhead_dim = [1024]\nq_seq_len = [{}]\n"
    load_suite(str(write_suite(tmp_path, _PLAIN + sizes.format(16))))
    path = write_suite(tmp_path, _PLAIN + sizes.format(17))
    assert _error(path) == (
        "The suite has a case for 'sdpa' with 18253611008 elements in one tensor; at most 17179869184 are allowed. "
        "Choose a smaller batch, length, width or number of heads."
    )


@pytest.mark.parametrize(("text", "words"), _IMPOSSIBLE.values(), ids=_IMPOSSIBLE)
def test_value_that_types_do_not_refuse(tmp_path: Path, text: str, words: str) -> None:
    """Empty lists, sizes below 1, a baseline that is not timed and the like are refused with the key."""
    path = write_suite(tmp_path, text)
    # Older msgspec writes [...] for any place in a list, newer ones the place.
    assert re.sub(r"\[(\.\.\.|\d+)\]", "[0]", _error(path)) == f"Suite {path}: {words}"


_BAD_VALUES = {
    "base-zero-length": (_table("base", "q_seq_len = 0"), "q_seq_len"),
    "base-negative-batch": (_table("base", "batch_size = -2"), "batch_size"),
    "base-zero-keys": (_table("base", "kv_seq_len = 0"), "kv_seq_len"),
    "base-zero-kv-heads": (_table("base", "kv_num_heads = 0"), "kv_num_heads"),
    "zero-kv-heads": (_PLAIN + "kv_num_heads = [0]\n", "kv_num_heads"),
    "zero-value-width": (_PLAIN + "v_head_dim = [0]\n", "v_head_dim"),
    "opset-17": ("opsets = [17]\n" + _PLAIN, "opsets"),
    "opset-26": ("opsets = [23, 26]\n" + _PLAIN, "opsets"),
    "opset-twice": ("opsets = [23, 23]\n" + _PLAIN, "opsets"),
    "runtime-twice": (_PLAIN.replace('["ort-cpu"]', '["ort-cpu", "ort-cpu"]'), "agreement"),
    "negative-seed": ("seed = -1\n" + _PLAIN, "seed"),
    "negative-visit": (_table("measure", "visit_seconds = -1.0"), "visit_seconds"),
    "budget-not-a-number": (_table("measure", "budget_seconds = nan"), "budget_seconds"),
    "spread-not-a-number": ("spreads = [nan]\n" + _PLAIN, "spreads"),
    "spread-infinite": ("spreads = [inf]\n" + _PLAIN, "spreads"),
    "budget-infinite": (_table("measure", "budget_seconds = inf"), "budget_seconds"),
    "visit-infinite": (_table("measure", "visit_seconds = inf"), "visit_seconds"),
    "warm-up-infinite": (_table("measure", "warm_up_seconds = inf"), "warm_up_seconds"),
    "sigma-infinite": (_table("saturation", "head_dim = [8]\nkv_seq_len = [8]\nsigma = inf"), "sigma"),
    "sigma-tiny": (_table("saturation", "head_dim = [8]\nkv_seq_len = [8]\nsigma = 9e-4"), "sigma"),
    "saturation-width": (_table("saturation", "head_dim = [65537]\nkv_seq_len = [8]"), "head_dim"),
    "saturation-length": (_table("saturation", "head_dim = [8]\nkv_seq_len = [65537]"), "kv_seq_len"),
    "saturation-empty": (_table("saturation", "head_dim = []\nkv_seq_len = [8]"), "'head_dim of saturation' is empty"),
}


@pytest.mark.parametrize(("text", "key"), _BAD_VALUES.values(), ids=_BAD_VALUES)
def test_value_that_would_fail_or_be_replaced_later(tmp_path: Path, text: str, key: str) -> None:
    """What cannot run is refused at the door with its key, not in every job and not silently replaced."""
    path = write_suite(tmp_path, text)
    message = _error(path)
    assert str(path) in message or message.startswith("The suite has an impossible case")
    assert key in message


def test_heads_that_do_not_divide(tmp_path: Path) -> None:
    """A combination that is no attention is reported with the figures."""
    path = write_suite(tmp_path, _PLAIN + "kv_num_heads = [8, 3]\n")
    assert _error(path) == (
        "The suite has an impossible case for 'sdpa': q_num_heads is 8, which kv_num_heads = 3 does not divide. "
        "Each key/value head must serve the same number of query heads."
    )


def test_head_dim_of_zero(tmp_path: Path) -> None:
    """d_k = 0 is no attention."""
    path = write_suite(tmp_path, _PLAIN + "head_dim = [0]\n")
    assert re.sub(r"\[(\.\.\.|\d+)\]", "[0]", _error(path)) == (
        f"Suite {path}: 'vary[0].head_dim[0]' must be at least 1 and at most 65536."
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name = \n", "Invalid value (at line 1, column 8)"),
        ("[[[", "Invalid initial character for a key part (at line 1, column 3)"),
        ("hello world", "Expected '=' after a key in a key/value pair (at line 1, column 7)"),
    ],
    ids=["no-value", "brackets", "text"],
)
def test_text_that_is_no_toml(tmp_path: Path, text: str, what: str) -> None:
    """Broken TOML is reported as such, with line and column."""
    path = write_suite(tmp_path, text)
    assert _error(path) == f"Suite {path} is not TOML: {what}."


def test_binary_file(tmp_path: Path) -> None:
    """A file that is not text is reported as such."""
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert _error(path) == f"Suite {path} is not a text file."


def test_missing_file(tmp_path: Path) -> None:
    """A .toml file that does not exist is reported with its path."""
    path = tmp_path / "none.toml"
    assert _error(path) == f"Cannot read suite {path}: No such file or directory."


def test_directory(tmp_path: Path) -> None:
    """A directory with the name of a suite is reported with the message of the system."""
    path = tmp_path / "folder.toml"
    path.mkdir()
    assert _error(path) == f"Cannot read suite {path}: Is a directory."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("quik", "Did you mean 'quick'?"),
        ("zzz", f"Known suites: {', '.join(built_in_suites())}; or name a .toml file."),
    ],
)
def test_unknown_name(name: str, hint: str) -> None:
    """A misspelt suite is answered with the nearest one, or with all."""
    with pytest.raises(PlanError) as caught:
        load_suite(name)
    assert str(caught.value) == f"There is no suite '{name}'. {hint}"


def test_every_suite_of_ours_loads() -> None:
    """The suites in the package are valid, and their names are those of their files."""
    found = {name: load_suite(name).name for name in built_in_suites()}
    assert found == {name: name for name in found}
    assert "quick" in found


def test_quick_has_its_stated_cases() -> None:
    """`quick` is the three uses and bare attention, one factor varied at a time around batch 1, length 512, d_k 64."""
    suite = load_suite("quick")
    assert (suite.opsets, suite.agreement, suite.timing) == (
        (18, 23),
        ("ort-cpu", "torch", "onnx-reference"),
        ("ort-cpu", "torch"),
    )
    found = cases(suite)
    assert [case.target for case in found if case.spec is None] == ["encoder-self", "decoder-self", "encoder-decoder"]
    bare = {
        (case.batch_size, case.q_seq_len, case.spec.head_dim, case.spec.is_causal)
        for case in found
        if case.spec is not None
    }
    widths = {(1, 512, width, False) for width in (16, 32, 64, 128, 256)}
    lengths = {(1, length, 64, False) for length in (32, 64, 128, 256, 512, 1024)}
    batches = {(4, length, 64, False) for length in (128, 512)}
    causal = {(1, length, 64, True) for length in (512, 1024)}
    assert bare == widths | lengths | batches | causal
    assert {case.spec.q_num_heads for case in found if case.spec is not None} == {8}
    assert len(found) == len(set(found)) == 17


def test_grid_is_every_combination_once(tmp_path: Path) -> None:
    """Lists of one [[vary]] multiply; a case that occurs twice is there once, at its first place."""
    again = '[[vary]]\ntargets = ["sdpa"]\nis_causal = [true]\nq_seq_len = [16, 8]\n'
    found = cases(suite_of(tmp_path, TINY + "batch_size = [1, 3]\n" + again))
    assert [(case.batch_size, case.q_seq_len, case.spec.is_causal) for case in found if case.spec] == [
        (1, 16, False),
        (1, 16, True),
        (3, 16, False),
        (3, 16, True),
        (1, 8, True),
    ]


def test_ci_has_what_a_pull_request_needs() -> None:
    """`ci` is the three uses, bare causal attention in every form, and one decode step; nothing takes minutes."""
    suite = load_suite("ci")
    assert (suite.opsets, suite.agreement, suite.timing, suite.baseline) == (
        (18, 23),
        ("ort-cpu",),
        ("ort-cpu", "torch"),
        "torch",
    )
    assert suite.saturation is None
    *uses, causal, decode = cases(suite)
    assert [case.target for case in uses] == ["encoder-self", "decoder-self", "encoder-decoder"]
    assert set(causal.forms) == {Form.BLOCKED, Form.ORT_MHA, Form.ORT_GQA}
    assert causal.spec is not None
    assert causal.spec.is_causal
    assert decode.spec is not None
    assert (decode.q_seq_len, decode.kv_seq_len, decode.spec.q_num_heads, decode.spec.kv_num_heads) == (1, 1024, 32, 8)
