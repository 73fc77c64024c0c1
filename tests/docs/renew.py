"""Write what the commands of pages print today into the pages: `python -m tests.docs.renew README.md ...`.

Read the difference before you commit it. Of an output that ends with `...` as many lines are kept as there were; one
with `...` inside is left as it is. A command without output gets none; write `?` under it to get its output.
"""

import sys
import tempfile
from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.docs.session import Ran, Session


def renewed(text: str, ran: Ran) -> str:
    """The page with the output of one command replaced; of one that ends with `...`, as many lines as before."""
    shown = ran.shown.rstrip("\n").splitlines()
    if not shown or "..." in shown[:-1]:
        return text
    output = ran.output.rstrip("\n").splitlines()
    lines = [*output[: len(shown) - 1], "..."] if shown[-1] == "..." else output
    command = f"$ {ran.command}\n" if ran.from_console else ""
    return text.replace(command + "\n".join(shown), command + "\n".join(lines), 1)


def main(names: list[str]) -> int:
    failed = 0
    for name in names:
        page = (ROOT / name).resolve()
        with tempfile.TemporaryDirectory() as base:
            folder = Path(base) / "page"
            folder.mkdir()
            found = Session(page, folder, store=Path(base) / "store").run()
        text = page.read_text(encoding="utf-8")
        for ran in found:
            if ran.code != ran.expected_code:
                failed += 1
                sys.stderr.write(f"{ran.fault()}\n")
            else:
                text = renewed(text, ran)
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}: {len(blocks(page))} blocks, {len(found)} ran\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
