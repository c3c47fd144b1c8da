"""Executes the documentation's notebooks and stores their outputs.

python docs/notebooks/execute.py [PATH ...]

Without paths, all notebooks in this folder are executed. The documentation shows the stored outputs, so run this after
changing a notebook. It needs the extra ``docs`` of afjax, pandas, and several minutes per notebook. Each notebook runs
in an empty temporary folder. If a cell fails, or an output has a warning or an absolute path, the notebook is not
changed and the exit status is 1.
"""

import argparse
import base64
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

FOLDER = Path(__file__).parent
# A terminal escape sequence, for example one that moves the cursor.
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# A tqdm progress bar, such as "entail:  10%|█         | 25/250 [00:03<00:27]".
BAR = re.compile(r"(^|\s)\d+%\|.*\|")
# A warning, or an absolute path, which differs on other machines. Closing HTML tags and URLs do not match.
PROBLEM = re.compile(r"Warning|(?<![\w/:.<~])/[\w.-]+/")
TIMEOUT_SECONDS = 3600
# Page width in pixels, and the number of colors in a stored picture.
PAGE_WIDTH = 1100
NUM_COLORS = 64


def main(paths: list[Path]) -> int:
    """Executes notebooks and returns the exit status."""
    failed = False
    for path in paths or sorted(FOLDER.glob("*.ipynb")):
        print(f"{path.name} ...", file=sys.stderr)
        notebook = nbformat.read(path, as_version=4)
        try:
            problems = execute(notebook)
        except CellExecutionError as error:
            problems = [str(error)]
        for problem in problems:
            print(f"{path.name}: {problem}", file=sys.stderr)
        if problems:
            failed = True
        else:
            path.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def execute(notebook: Any) -> list[str]:
    """Executes and cleans a notebook, and returns the problems in its outputs.

    The notebook runs in a temporary folder.

    Raises:
      CellExecutionError: A cell failed.
    """
    # tqdm warns if ipywidgets is not installed. The Hugging Face libraries use tqdm.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore:IProgress not found"}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT_SECONDS, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    clean(notebook)
    return [*find_problems(notebook)]


def clean(notebook: Any) -> None:
    """Removes progress bars and volatile metadata, and shrinks pictures."""
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            cell.outputs = [output for output in join_streams(cell.outputs) if output.get("text") != ""]
            for output in cell.outputs:
                if picture := output.get("data", {}).get("image/png"):
                    output["data"]["image/png"] = shrink(picture)


def join_streams(outputs: list[Any]) -> list[Any]:
    """Joins adjacent outputs to the same stream, and removes progress bars."""
    joined: list[Any] = []
    for output in outputs:
        is_stream = output.output_type == "stream"
        if is_stream and joined and joined[-1].get("name") == output.name:
            joined[-1]["text"] += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output["text"] = without_bars(output.text)
    return joined


def without_bars(text: str) -> str:
    """Removes progress bars from a text.

    Example:
      >>> without_bars("start\\r 10%|#    | 1/10\\r            \\rstep 5\\n")
      'start\\nstep 5\\n'
    """
    lines = [CONTROL.sub("", line).rstrip() for line in re.split(r"[\r\n]+", text)]
    return "".join(f"{line}\n" for line in lines if line and not BAR.search(line))


def shrink(picture: str) -> str:
    """Reduces the colors of a base64-encoded PNG, and its size if it is too wide.

    A picture that is wider than a page is halved.
    """
    opened = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    file = io.BytesIO()
    opened.reduce(2 if opened.width > PAGE_WIDTH else 1).quantize(NUM_COLORS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def find_problems(notebook: Any) -> Iterator[str]:
    """Yields a message for each output line with a warning or an absolute path."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            for text in (output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")):
                for line in text.splitlines():
                    if PROBLEM.search(line):
                        yield f"An output of the cell {cell.id} has a warning or a path: {line.strip()}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    sys.exit(main(parser.parse_args().paths))
