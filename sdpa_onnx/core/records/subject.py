"""The subject of a judgement: an attention, an output of the model, or how an attention was read.

Also converts the names of earlier versions. Judges nothing.
"""

from enum import StrEnum
from typing import assert_never

__all__ = ["Subject", "earlier_site", "from_earlier_site"]


class Subject(StrEnum):
    """The subject of a judgement; `site` of the record is its name.

    ATTENTION: one attention, judged on its own inputs. OUTPUT: an output of the model, which has a rule instead
    of a proven bound. READING: the spec that was read from the graph, judged by the values of the source.
    """

    ATTENTION = "attention"
    OUTPUT = "output"
    READING = "reading"


# Earlier versions had no such field and put a prefix before the name.
_OUTPUT, _READING = "end:", "read:"


def earlier_site(subject: Subject, site: str) -> str:
    """The name as earlier versions wrote it, which their lists of known findings contain.

    Example:
        >>> earlier_site(Subject.OUTPUT, "Y")
        'end:Y'
    """
    match subject:
        case Subject.ATTENTION:
            return site
        case Subject.OUTPUT:
            return f"{_OUTPUT}{site}"
        case Subject.READING:
            return f"{_READING}{site}"
        case _:
            assert_never(subject)


def from_earlier_site(text: str) -> tuple[Subject, str]:
    """The subject and the name in a `site` of earlier versions.

    Example:
        >>> from_earlier_site("read:attention")
        (<Subject.READING: 'reading'>, 'attention')
    """
    for prefix, subject in ((_OUTPUT, Subject.OUTPUT), (_READING, Subject.READING)):
        if text.startswith(prefix):
            return subject, text[len(prefix) :]
    return Subject.ATTENTION, text
