"""Known findings: a file that lists them, and which findings of this run it does not list.

One mechanism for every command and every kind of record. Says nothing of how a
finding is told, and runs nothing.

A file is TOML (or the same as JSON), one table a finding:

    [[known]]
    kind = "conformance"
    runtime = "ort-cpu"
    feature = "causal-past-one-query-*"
    verdict = "wrong"
    why = "https://..., or a sentence"

Every field but `why` is a field of the record and must be equal; in a string `*`
stands for any text. An entry of kind "gate" may say how large its finding may be,
`at_most`; a larger one is new. Without it, any size is allowed.

An entry with a `site` and no `subject` names an attention, or was written by a version
without that field, which put it before the name (`core.records.subject.earlier_site`).
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from sdpa_onnx.core.records.records import ConformanceRecord, GateRecord, Outcome, Record
from sdpa_onnx.core.records.subject import Subject, earlier_site
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.expected.amount import is_within

__all__ = ["KnownFinding", "KnownFindings", "SortedFindings", "is_bad", "read_expected"]

_KINDS: dict[str, type[Record]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Record)}

_AT_MOST = "at_most"

# Fields that say which row a record is of; the others say what came out. An entry has vanished if the rows
# that these name are all well.
_NAMES_A_ROW = frozenset(
    (
        *("kind", "schema", "cell", "job", "parts", "case", "target", "form", "opset", "runtime", "version"),
        *("subject", "site"),
        *("dtype", "precision", "inputs", "spread", "seed", "group", "arm", "baseline", "clock", "threads", "model"),
        "gate",
        *("node", "dialect", "feature", "title", "operator", "repeat", "scale_rule", "head_dim", "kv_seq_len", "sigma"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFinding:
    """One entry: which findings are known, and why.

    Args:
        fields: Field of a record -> its value, `kind` among them.
        why: A link or a sentence.
        at_most: How large a finding of a gate may be, see `expected_amount`; None = whatever its size.
        place: File and number, for people: `known.toml, entry 3`.
    """

    fields: Mapping[str, str | int | float | bool]
    why: str
    place: str
    at_most: float | None = None

    def matches(self, record: Record) -> bool:
        """Whether every field is that of the record, and the finding no larger than is allowed."""
        return self._agrees(record, self.fields) and not self.is_exceeded_by(record)

    def is_exceeded_by(self, record: Record) -> bool:
        """Whether the record is the finding of this entry, and larger than it allows."""
        if self.at_most is None or not self._agrees(record, self.fields):
            return False
        return not is_within(record, self.at_most)

    def is_about(self, record: Record) -> bool:
        """Whether the record is of a row that the entry names, whatever came out."""
        return self._agrees(record, _NAMES_A_ROW.intersection(self.fields))

    def _agrees(self, record: Record, names: Iterable[str]) -> bool:
        plain: dict[str, Any] = msgspec.to_builtins(record)
        if "subject" in plain and "subject" not in self.fields:
            plain["site"] = earlier_site(Subject(plain["subject"]), plain["site"])
        # An entry of a failure is one of a runtime that gave no answer in time too: earlier versions had no other word.
        if plain["outcome"] == Outcome.TIMED_OUT and self.fields.get("outcome") == Outcome.FAILED:
            plain["outcome"] = Outcome.FAILED.value
        return all(name in plain and _is_like(self.fields[name], plain[name]) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFindings:
    """The records of a run beside the known findings.

    Args:
        new: Bad, and in no entry: these alone fail a run.
        known: Entry -> its bad records.
        vanished: Entry -> its rows, which all ran and are all well now.
        changed: Entry -> its rows, of which some are bad, none in the way that the entry says.
        unused: Entries of which no row ran, or not all.
    """

    new: tuple[Record, ...]
    known: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    vanished: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    changed: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    unused: tuple[KnownFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFindings:
    """The known findings of a file; none of them: every bad record is new."""

    entries: tuple[KnownFinding, ...] = ()

    def find(self, record: Record) -> KnownFinding | None:
        """The first entry that a bad record matches, or None."""
        return next((entry for entry in self.entries if is_bad(record) and entry.matches(record)), None)

    def sort(self, records: Sequence[Record]) -> SortedFindings:
        """Tell new findings from known ones, and known ones from those that are gone.

        A finding that several entries match is known to each of them.
        """
        bad = [record for record in records if is_bad(record)]
        groups: dict[str, list[tuple[KnownFinding, tuple[Record, ...]]]] = {"known": [], "vanished": [], "changed": []}
        unused = []
        for entry in self.entries:
            matched = tuple(record for record in bad if entry.matches(record))
            rows = tuple(record for record in records if entry.is_about(record))
            if matched:
                groups["known"].append((entry, matched))
            elif any(map(is_bad, rows)):
                groups["changed"].append((entry, rows))
            elif rows and all(record.outcome is Outcome.OK for record in rows):
                groups["vanished"].append((entry, rows))
            else:
                unused.append(entry)
        excused = {id(record) for _, matched in groups["known"] for record in matched}
        new = tuple(record for record in bad if id(record) not in excused)
        return SortedFindings(new=new, unused=tuple(unused), **{name: tuple(group) for name, group in groups.items()})


def is_bad(record: Record) -> bool:
    """Whether a record needs an entry: a disagreement, a failure, or an operator's feature that is refused.

    With a file of known findings a newly refused feature is a regression.
    """
    refused = isinstance(record, ConformanceRecord) and record.outcome is Outcome.UNSUPPORTED
    return refused or record.outcome is Outcome.DISAGREES or record.outcome.is_failure


def read_expected(path: Path) -> KnownFindings:
    """Read a file of known findings, TOML or (by its suffix) JSON.

    Raises:
        PlanError: If it cannot be read, or an entry is wrong: file, number, what is allowed.
    """
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        content = decode(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise PlanError(f"Cannot read known findings {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"Known findings {path} are not a text file.") from error
    except RecursionError as error:
        raise PlanError(f"Known findings {path} cannot be read: they are nested too deeply.") from error
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: a whole number of thousands of digits
        raise PlanError(f"Known findings {path} cannot be read: {error}.") from error
    entries = content.get("known", []) if isinstance(content, dict) else None
    if not isinstance(entries, list) or set(content) - {"known"}:
        raise PlanError(f"Known findings {path} are not a list of entries.", hint="Each begins with [[known]].")
    read = (_entry(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1))
    return KnownFindings(entries=tuple(read))


def _entry(entry: object, place: str) -> KnownFinding:
    """One entry as read.

    Raises:
        PlanError: If it is none.
    """
    if not isinstance(entry, dict):
        raise PlanError(f"{place}: this is no table of fields.", hint="Each begins with [[known]].")
    fields = {name: value for name, value in entry.items() if name not in ("why", _AT_MOST)}
    kind = _kind(fields.get("kind"), place)
    why = entry.get("why")
    if not isinstance(why, str) or not why.strip():
        raise PlanError(f"{place}: 'why' is missing.", hint="Say why this is known: a link or a sentence.")
    if set(fields) <= {"kind"}:
        raise PlanError(
            f"{place}: no field but kind and why is given, so it would excuse everything.",
            hint="Give at least one, such as runtime.",
        )
    for name, value in fields.items():
        if name != "kind":
            _check_field(name, value, kind, place)
    return KnownFinding(fields=fields, why=why, place=place, at_most=_at_most(entry.get(_AT_MOST), kind, place))


def _at_most(value: object, kind: type[Record], place: str) -> float | None:
    if value is None:
        return None
    if kind is not GateRecord:
        raise PlanError(f"{place}: '{_AT_MOST}' is for kind 'gate' alone.", hint="Take it out.")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value < math.inf:
        raise PlanError(f"{place}: '{_AT_MOST}' is {value!r}; it must be a number above 0.")
    return float(value)


def _kind(kind: object, place: str) -> type[Record]:
    if kind is None:
        raise PlanError(f"{place}: 'kind' is missing.", hint=f"Allowed: {', '.join(_KINDS)}.")
    if not isinstance(kind, str):
        raise PlanError(f"{place}: 'kind' is {kind!r}; it must be text.", hint=f"Allowed: {', '.join(_KINDS)}.")
    if kind not in _KINDS:
        raise PlanError(f"{place}: unknown kind '{kind}'.", hint=_offer(kind, _KINDS))
    return _KINDS[kind]


def _check_field(name: str, value: object, kind: type[Record], place: str) -> None:
    """Refuse an entry that could never match, for it would only look as if it did something."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - narrows the type only
    types = {field.name: field.type for field in info.fields}
    simple = {field: allowed for field, one in types.items() if (allowed := _simple(one))}
    if name not in simple:
        raise PlanError(f"{place}: unknown field '{name}' of kind '{info.tag}'.", hint=_offer(name, simple))
    kinds, words = simple[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = {str: "text", bool: "true or false", int: "a whole number"}.get(kinds[0], "a number")
        raise PlanError(f"{place}: '{name}' is {value!r}; it must be {wanted}.")
    if words and "*" not in str(value) and value not in words:
        raise PlanError(f"{place}: '{name}' is never '{value}'.", hint=_offer(str(value), words))


def _simple(kind: msgspec.inspect.Type) -> tuple[tuple[type, ...], tuple[str, ...]] | None:
    """Python types of a field that holds one value, and its words if they are a closed set; None for others."""
    plain: dict[type, tuple[type, ...]] = {
        msgspec.inspect.StrType: (str,),
        msgspec.inspect.BoolType: (bool,),
        msgspec.inspect.IntType: (int,),
        msgspec.inspect.FloatType: (float, int),
    }
    match kind:
        case msgspec.inspect.EnumType(cls=cls):
            return (str,), tuple(str(word) for word in cls)
        case msgspec.inspect.UnionType(types=types):
            found = [simple for one in types if (simple := _simple(one))]
            return found[0] if len(found) == 1 else None
        case _:
            return (plain[type(kind)], ()) if type(kind) in plain else None


def _is_like(wanted: object, value: object) -> bool:
    """Equal; in text `*` stands for any text, and nothing else has a meaning of its own."""
    if not isinstance(wanted, str):
        return wanted == value
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL) is not None


def _offer(word: str, known: Iterable[str]) -> str:
    names = tuple(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'?" if near else f"Allowed: {', '.join(names)}."
