"""Axes that belong together are found by what runs and what does not."""

from collections.abc import Callable

import pytest

from sdpa_onnx.core.attention.axis_links import find_links

_CACHE = {"batch": 2, "q": 3, "k": 3, "v": 3, "past_k": 7, "past_v": 7}

Sizes = dict[str, int]


def _equal_keys(sizes: Sizes) -> bool:
    return sizes["k"] == sizes["v"]


def _cache(sizes: Sizes) -> bool:
    return sizes["k"] + sizes["past_k"] == sizes["v"] + sizes["past_v"]


@pytest.mark.parametrize(
    ("runs", "axes", "links"),
    [
        (lambda _: True, _CACHE, {}),
        (_equal_keys, _CACHE, {"v": "k"}),
        (_cache, _CACHE, {"v": "k", "past_v": "past_k"}),
        (_cache, dict.fromkeys(_CACHE), {"v": "k", "past_v": "past_k"}),
        (lambda sizes: sizes["k"] == sizes["v"] == sizes["q"], _CACHE, {"k": "q", "v": "q"}),
        (lambda sizes: sizes["k"] == 99, _CACHE, {}),
        (lambda _: False, {"k": 3}, {}),
    ],
    ids=["free", "keys", "cache", "cache-without-sample", "all", "never", "alone"],
)
def test_links(runs: Callable[[Sizes], bool], axes: dict[str, int | None], links: dict[str, str]) -> None:
    """Only what cannot be parted is linked; what does not run at all is not explained by links."""
    assert find_links(axes, batches={"batch"}, runs=runs) == links


def test_sizes_that_are_tried() -> None:
    """Free axes first all differ, and none is 0 or 1, which broadcast."""
    tried: list[Sizes] = []
    find_links({"b": 2, "q": 5, "k": 5}, batches={"b"}, runs=lambda sizes: bool(tried.append(sizes)) or True)
    assert tried == [{"b": 2, "q": 3, "k": 4}]
