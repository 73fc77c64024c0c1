"""Every block of every page runs, and prints what the page shows."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Varies, blocks
from tests.docs.session import Session, check, same

# Pages that take milliseconds, or a second or two: they run with the default tests.
QUICK: set[str] = set()


def _pages() -> list[object]:
    """Pages with something to run; those that take long are marked."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        if any(block.not_run is None and block.language in ("console", "sh", "python") for block in blocks(page)):
            found.append(pytest.param(page, id=name, marks=[] if name in QUICK else [pytest.mark.slow]))
    return found


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files that pages start from are made once, for all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "docs-store"


@pytest.mark.parametrize("page", _pages())
def test_page_runs_as_printed(page: Path, tmp_path: Path, store: Path) -> None:
    """Every command ends with the exit code and the output that the page states, in the order of the page."""
    folder = tmp_path / "page"
    folder.mkdir()
    check(page, folder, store=store)


def _faults(tmp_path: Path, text: str) -> list[str]:
    page = tmp_path / "planted.md"
    page.write_text(text, encoding="utf-8")
    folder = tmp_path / "page"
    folder.mkdir()
    return [ran.fault().partition("\n")[0] for ran in Session(page, folder, store=tmp_path / "store").run()]


def test_faults_of_a_page_are_found(tmp_path: Path) -> None:
    """A wrong exit code and a wrong output are seen; notes write files, expect exit codes and leave blocks out."""
    page = """
<!-- file: sub/data.txt -->
```text
content
```

```console
$ cat sub/data.txt
content
$ cat sub/data.txt
other
$ exit 3
```

<!-- exit code: 3 -->
<!-- figures vary -->
```sh
exit 3
```

<!-- not run: it would fail -->
```sh
exit 4
```

```python
raise SystemExit(5)
```

```python
def test_it():
    assert False
```
"""
    assert _faults(tmp_path, page) == [
        "",
        "planted.md:7: other output",
        "planted.md:7: exit code 3",
        "",
        "planted.md:26: exit code 5",
        "planted.md:30: exit code 1",
    ]


def test_outputs_are_compared_line_by_line() -> None:
    """Another number, a missing line and a surplus line are seen; `...` stands for any lines."""
    assert same("a 1\nb 2\n", "a 1\nb 2")
    assert not same("a 1\nb 2\n", "a 1\nb 3")
    assert not same("a 1\n", "a 1\nb 2")
    assert not same("a 1\nb 2\n", "a 1")
    assert same("a 1\nx\ny\nb 2\n", "a 1\n...\nb 2")


def test_figures_that_vary_are_compared_by_their_place() -> None:
    """Numbers, units and verdicts may differ; words, columns and their order may not."""
    shown = "arm      median   ratio\nfused    1.02 ms  0.89 [0.88, 0.90]  faster"
    assert same("arm   median  ratio\nfused  970 µs  1.11 [1.1, 1.2]  slower\n", shown, varies=Varies.FIGURES)
    assert not same("arm   ratio  median\nfused  970 µs  1.11 [1.1, 1.2]  slower\n", shown, varies=Varies.FIGURES)
    assert not same("arm   median  ratio\nplain  970 µs  1.11 [1.1, 1.2]  slower\n", shown, varies=Varies.FIGURES)


def test_sentences_that_vary_leave_the_headings() -> None:
    """A sentence with figures may be another one; a heading that is gone is seen."""
    shown = "The file is faster: 0.8 x.\nTime of a call\narm    median\n-----  -------\ntorch  1.2 ms\n..."
    actual = "Nothing differs: 1 x.\nTime of a call\narm  median\n---  ------\ntorch  2 ms\n"
    assert same(actual, shown, varies=Varies.SENTENCES)
    assert not same(actual.replace("median", "mean"), shown, varies=Varies.SENTENCES)
