"""No two comparisons of a test share a name."""

from sdpa_onnx.pytest_plugin.collected import SessionComparisons


def test_names_are_numbered_within_a_test() -> None:
    """With a name and without; another test may use the same; a number that somebody gave himself is passed over."""
    collected = SessionComparisons()
    assert [collected.label("t", name) for name in (None, None, "a", "a", "a 2", "a")] == [
        "",
        "2",
        "a",
        "a 2",
        "a 2 2",
        "a 3",
    ]
    assert [collected.label("u", name) for name in ("a", None)] == ["a", ""]
