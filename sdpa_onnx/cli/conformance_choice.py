"""Which features are asked for: names and patterns of the command line against those that there are."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from sdpa_onnx.errors import PlanError

__all__ = ["pick_features", "pick_names"]


def pick_features(patterns: Sequence[str], groups: Mapping[str, str]) -> tuple[str, ...]:
    """The features that are asked for by name, pattern or group, in their own order; () if nothing is asked for.

    Args:
        groups: Feature -> its group.

    Raises:
        PlanError: If a name or pattern fits none; the nearest is offered.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        fits = [slug for slug, group in groups.items() if pattern == group or _fits(pattern, slug)]
        if not fits:
            raise PlanError(f"There is no feature '{pattern}'.", hint=_offer(pattern, list(groups), "See --list."))
        chosen.update(fits)
    return tuple(slug for slug in groups if slug in chosen)


def pick_names(noun: str, names: Sequence[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """The operators or element types that are asked for by name.

    Raises:
        PlanError: If there is none of that name; the nearest is offered.
    """
    known = list(dict.fromkeys(all_names))
    for name in names:
        if name not in known:
            raise PlanError(f"There is no {noun} '{name}'.", hint=_offer(name, known, f"Known: {', '.join(known)}."))
    return tuple(dict.fromkeys(names))


def _fits(pattern: str, slug: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), slug) is not None


def _offer(name: str, known: Sequence[str], otherwise: str) -> str:
    """The nearest name: by spelling, else one that holds or ends in what was typed."""
    bare = name.strip("*")
    near = difflib.get_close_matches(bare, known, n=1, cutoff=0.5)
    near += [one for one in known if bare and one.lower().endswith(bare.lower())]
    near += [one for one in known if bare and bare.lower() in one.lower()]
    return f"Did you mean '{near[0]}'?" if near else otherwise
