"""Read the file of known findings, and sort the findings of a run into known, new, changed and vanished.

One mechanism for every command and every kind of record. Does not report findings,
and runs nothing.

A file is TOML (or the same as JSON), one table per finding:

    [[known]]
    kind = "conformance"
    runtime = "ort-cpu"
    feature = "causal-past-one-query-*"
    verdict = "wrong"
    why = "https://..., or a sentence"

Every field but `why` is a field of the record and must be equal; in a string `*`
matches any text. An entry of kind "gate" may limit the size of its finding with
`at_most`; a larger one is new. Without it, any size is allowed.

An entry with a `site` and no `subject` names an attention, or was written by a version
without that field, which put the subject before the name (`core.records.subject.earlier_site`).
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from sdpa_onnx.core.records.earlier_schema import earlier_number
from sdpa_onnx.core.records.records import ConformanceRecord, GateRecord, Outcome, Record
from sdpa_onnx.core.records.subject import Subject, earlier_site
from sdpa_onnx.core.records.verdicts import Conformity
from sdpa_onnx.errors import PlanError
from sdpa_onnx.workflows.expected.amount import is_within

__all__ = ["KnownFinding", "KnownFindings", "SortedFindings", "is_bad", "read_expected"]

_KINDS: dict[str, type[Record]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Record)}

_AT_MOST = "at_most"

# Fields that identify the row of a record; the others hold the result. An entry has vanished if all rows
# that these fields identify are OK.
_ROW_FIELDS = frozenset(
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
    """One entry: the findings that it covers, and why they are known.

    Args:
        fields: Field of a record -> its value, `kind` among them.
        why: A link or a sentence.
        at_most: Largest size of a gate finding, see `amount`; None = any size.
        place: File and number, for people: `known.toml, entry 3`.
    """

    fields: Mapping[str, str | int | float | bool]
    why: str
    place: str
    at_most: float | None = None

    def matches(self, record: Record) -> bool:
        """Whether every field equals that of the record, and the finding is no larger than allowed."""
        return self._agrees(record, self.fields) and not self.is_exceeded_by(record)

    def is_exceeded_by(self, record: Record) -> bool:
        """Whether the record is the finding of this entry, and larger than allowed."""
        if self.at_most is None or not self._agrees(record, self.fields):
            return False
        return not is_within(record, self.at_most)

    def is_about(self, record: Record) -> bool:
        """Whether the record is of a row that the entry names, whatever its result."""
        return self._agrees(record, _ROW_FIELDS.intersection(self.fields))

    def _agrees(self, record: Record, names: Iterable[str]) -> bool:
        plain: dict[str, Any] = msgspec.to_builtins(record)
        if "subject" in plain and "subject" not in self.fields:
            plain["site"] = earlier_site(Subject(plain["subject"]), plain["site"])
        # An entry with outcome "failed" matches a timeout too: earlier versions had no outcome for it.
        if plain["outcome"] == Outcome.TIMED_OUT and self.fields.get("outcome") == Outcome.FAILED:
            plain["outcome"] = Outcome.FAILED.value
        # An entry with verdict "wrong" matches a suspicious feature too: earlier versions had no verdict for it.
        if isinstance(record, ConformanceRecord) and self.fields.get("verdict") == Conformity.WRONG:
            plain["verdict"] = Conformity.WRONG.value if plain["verdict"] == Conformity.SUSPICIOUS else plain["verdict"]
        return all(name in plain and self._is_field_like(name, plain) for name in names)

    def _is_field_like(self, name: str, plain: Mapping[str, Any]) -> bool:
        """Whether one field agrees; a number that schema 1 wrote for "unknown" agrees with None."""
        wanted, value = self.fields[name], plain[name]
        if value is None and not isinstance(wanted, str):
            return wanted in earlier_number(plain["kind"], name)
        return _is_like(wanted, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFindings:
    """The findings of a run, sorted by the known findings.

    Args:
        new: Bad records that no entry matches: only these fail a run.
        known: Entry -> its bad records.
        vanished: Entry -> its rows, which all ran and are all OK now.
        changed: Entry -> its rows, of which some are bad, but none matches the entry.
        unused: Entries of which no row ran, or not all.
    """

    new: tuple[Record, ...]
    known: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    vanished: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    changed: tuple[tuple[KnownFinding, tuple[Record, ...]], ...] = ()
    unused: tuple[KnownFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFindings:
    """The known findings of a file; without entries every bad record is new."""

    entries: tuple[KnownFinding, ...] = ()

    def find(self, record: Record) -> KnownFinding | None:
        """The first entry that a bad record matches, or None."""
        return next((entry for entry in self.entries if is_bad(record) and entry.matches(record)), None)

    def sort(self, records: Sequence[Record]) -> SortedFindings:
        """Sort findings into new, known, changed and vanished ones.

        A finding that several entries match is listed under each of them.
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
    """Whether a record needs an entry: a disagreement, a failure, or a refused feature of an operator.

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
        raise PlanError(f"Known findings {path} are not a list of entries.", hint="Each starts with [[known]].")
    read = (_entry(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1))
    return KnownFindings(entries=tuple(read))


def _entry(entry: object, place: str) -> KnownFinding:
    """Check and convert one entry.

    Raises:
        PlanError: If it is invalid.
    """
    if not isinstance(entry, dict):
        raise PlanError(f"{place}: this is no table of fields.", hint="Each starts with [[known]].")
    fields = {name: value for name, value in entry.items() if name not in ("why", _AT_MOST)}
    kind = _kind(fields.get("kind"), place)
    why = entry.get("why")
    if not isinstance(why, str) or not why.strip():
        raise PlanError(f"{place}: 'why' is missing.", hint="State why this is known: a link or a sentence.")
    if set(fields) <= {"kind"}:
        raise PlanError(
            f"{place}: it has no field but kind and why, so it would match every finding.",
            hint="Add at least one, such as runtime.",
        )
    for name, value in fields.items():
        if name != "kind":
            _check_field(name, value, kind, place)
    return KnownFinding(fields=fields, why=why, place=place, at_most=_at_most(entry.get(_AT_MOST), kind, place))


def _at_most(value: object, kind: type[Record], place: str) -> float | None:
    if value is None:
        return None
    if kind is not GateRecord:
        raise PlanError(f"{place}: '{_AT_MOST}' is for kind 'gate' only.", hint="Remove it.")
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
    """Refuse an entry that can never match: it would have no effect."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - narrows the type only
    types = {field.name: field.type for field in info.fields}
    simple = {field: allowed for field, one in types.items() if (allowed := _simple(one))}
    if name not in simple:
        raise PlanError(f"{place}: unknown field '{name}' of kind '{info.tag}'.", hint=_offer(name, simple))
    kinds, choices = simple[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = {str: "text", bool: "true or false", int: "a whole number"}.get(kinds[0], "a number")
        raise PlanError(f"{place}: '{name}' is {value!r}; it must be {wanted}.")
    if choices and "*" not in str(value) and value not in choices:
        raise PlanError(f"{place}: '{name}' is never '{value}'.", hint=_offer(str(value), choices))


def _simple(kind: msgspec.inspect.Type) -> tuple[tuple[type, ...], tuple[str, ...]] | None:
    """Python types of a field that holds one value, and its allowed values if it is an enum; None for others."""
    plain: dict[type, tuple[type, ...]] = {
        msgspec.inspect.StrType: (str,),
        msgspec.inspect.BoolType: (bool,),
        msgspec.inspect.IntType: (int,),
        msgspec.inspect.FloatType: (float, int),
    }
    match kind:
        case msgspec.inspect.EnumType(cls=cls):
            return (str,), tuple(str(member) for member in cls)
        case msgspec.inspect.UnionType(types=types):
            found = [simple for one in types if (simple := _simple(one))]
            return found[0] if len(found) == 1 else None
        case _:
            return (plain[type(kind)], ()) if type(kind) in plain else None


def _is_like(wanted: object, value: object) -> bool:
    """Whether two values are equal; in text `*` matches any text, and no other character is special."""
    if not isinstance(wanted, str):
        return wanted == value
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL) is not None


def _offer(word: str, known: Iterable[str]) -> str:
    names = tuple(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'?" if near else f"Allowed: {', '.join(names)}."
