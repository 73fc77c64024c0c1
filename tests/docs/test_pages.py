"""Every page is in the tree, its links lead somewhere, and its commands have the options that they name."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.pages import (
    DATA_LANGUAGES,
    PAGES,
    README,
    ROOT,
    RUN_LANGUAGES,
    anchors,
    blocks,
    inline_code,
    links,
)

README_LINES = 120


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link inside the repository names a file that exists, and a heading that is there."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    """Links, pictures and headings are found; code is none of them."""
    page = tmp_path / "page.md"
    page.write_text("# A `b` heading: 1.5\n\n[x](y.md#z) ![p](q.svg) `[no](link)`\n", encoding="utf-8")
    assert links(page) == ["y.md#z", "q.svg"]
    assert anchors(page) == {"a-b-heading-15"}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_is_run_or_says_why(page: Path) -> None:
    """A block has a language; commands and Python are run, or a comment in front of them has the reason."""
    for block in blocks(page):
        assert block.language in RUN_LANGUAGES | DATA_LANGUAGES, f"{block.place}: '{block.language}'"
        assert block.not_run != "", f"{block.place}: no reason"


def _commands(page: Path) -> list[str]:
    """Every call of ours on a page, in a block or inside a sentence."""
    texts = [block.text for block in blocks(page)] + [code for code in inline_code(page) if " " in code]
    joined = "\n".join(texts).replace("\\\n", " ")
    return re.findall(r"(?:^|[\s(])sdpa-onnx ([a-z]+(?: [^\n|#)]*)?)", joined)


def _options() -> dict[str, set[str]]:
    from typer.main import get_command

    from sdpa_onnx.cli.main import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in commands.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_and_options_exist(page: Path) -> None:
    """What a page tells a reader to type is a command of ours with the options that it has."""
    known = _options()
    wrong = []
    for text in _commands(page):
        command, *words = text.split()
        named = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} - {"--help"}
        if command not in known or not named <= known[command]:
            wrong.append(text)
    assert wrong == []


def test_a_wrong_option_would_be_seen(tmp_path: Path) -> None:
    """Commands are found in blocks and in sentences, over continued lines, without their comments."""
    page = tmp_path / "page.md"
    text = "Use `sdpa-onnx verify F.onnx --prove`.\n\n```sh\nsdpa-onnx export x \\\n  --wrong  # note\n```\n"
    page.write_text(text, encoding="utf-8")
    assert [" ".join(found.split()) for found in _commands(page)] == ["export x --wrong", "verify F.onnx --prove"]


def test_readme_is_short() -> None:
    """A README is read in one sitting; the rest is in docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_readme_is_a_page_of_the_docs() -> None:
    """Every page of docs/ can be reached from the README by links between pages."""
    reached: set[Path] = set()
    waiting = [README]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                waiting.append(target)
    assert [_name(page) for page in PAGES if page not in reached] == []


def test_readme_names_the_processor_of_its_picture() -> None:
    """Which arm wins depends on the processor: the README says on which one its reference run was made."""
    run = json.loads((ROOT / "reports" / "reference" / "run.json").read_text(encoding="utf-8"))
    text = " ".join(README.read_text(encoding="utf-8").split())
    versions = [f"{name} {run['versions'][name].partition('+')[0]}" for name in ("torch", "onnxruntime")]
    assert [name for name in (run["environment"]["cpu"], *versions) if name not in text] == []


def test_tutorial_has_the_module_of_the_readme() -> None:
    """Pages that start from block.onnx mean one module."""
    found = [
        block.text
        for page in (README, ROOT / "docs" / "tutorial.md")
        for block in blocks(page)
        if block.note("file") == "mymodel.py"
    ]
    assert len(found) == 2
    assert found[0] == found[1]
