"""The documentation's notebooks run with a tiny trunk and few steps, and their stored outputs are complete."""

import ast
import base64
import io
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from afjax.data.sources.builtin import GRAMMARS

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
EXECUTE = runpy.run_path(str(FOLDER / "execute.py"))
PNG = b"\x89PNG\r\n"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


# A notebook's variables, and the value of each cell that ends with an expression.
Result = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_trunk_folder: Path) -> Callable[..., Any]:
    """Returns a function that runs a notebook in this process, with a tiny trunk and two steps per run."""
    monkeypatch.chdir(tmp_path)

    def run_notebook(name: str) -> Result:
        variables: dict[str, Any] = {}
        shown: dict[str, Any] = {}
        for cell in code_cells(FOLDER / name):
            *body, last = ast.parse(cell.source).body
            value = last.value if isinstance(last, ast.Expr) else None
            exec(compile(ast.Module(body if value else [*body, last], []), cell.id, "exec"), variables)
            if value:
                shown[cell.id] = eval(compile(ast.Expression(value), cell.id, "eval"), variables)
            if "parameters" in cell.metadata.get("tags", ()):
                variables |= {name: 2 for name in variables if name.endswith("_STEPS")}
                variables["TRUNK"] = str(tiny_trunk_folder)
        return variables, shown

    return run_notebook


def test_adapter_and_fusion(run: Callable[[str], Result], capsys: pytest.CaptureFixture[str]) -> None:
    variables, shown = run("adapter_and_fusion.ipynb")
    frames = variables["frames"]
    assert shown["counts"].groupby("task").sum().loc["target"].tolist() == [200, 600, 600]
    assert 0 <= variables["scores"]["accuracy"] <= 1
    assert shown["evaluate"].counts.sum() == len(frames["entail"]["test"])
    mistakes = variables["mistakes"]
    assert len(mistakes) == len(frames["entail"]["test"]) - np.trace(shown["evaluate"].counts)
    assert (mistakes.predicted != mistakes.relation).all()
    assert list(shown["save"].index) == ["entail", "paraphrase"]
    assert shown["fuse"].metrics["accuracy"] == variables["loaded"].metrics["accuracy"]
    comparison = variables["comparison"]
    assert comparison.metrics["accuracy"].first == variables["own"].evaluate(frames["target"]["test"])["accuracy"]
    assert comparison.num_rows == len(frames["target"]["test"])
    assert variables["loaded"].predict(variables["new"]).labels == variables["fused"].predict(variables["new"]).labels
    np.testing.assert_allclose(shown["attention"].sum(axis=1), 1, atol=0.011)
    assert "600 rows of target" in capsys.readouterr().out


def test_fusion_activations(run: Callable[[str], Result]) -> None:
    variables, shown = run("fusion_activations.ipynb")
    np.testing.assert_allclose(variables["attention"].sum(-1), 1, atol=1e-3)
    assert variables["attention"].shape == (600, 2, 3)
    for group in variables["found"].means["ffn"].values():
        np.testing.assert_allclose(group.sum(-1), 1, atol=1e-3)
    for name in ("means", "relations", "tokens-quantifier", "tokens-voice", "layers"):
        assert shown[name].data.startswith(PNG), name
    accuracy = variables["fused"].evaluate(variables["rows"]["dev"])["accuracy"]
    removed = shown["without"]
    assert removed.shape == (7, 8)
    assert variables["accuracy"]["all adapters"] == accuracy
    assert shown["prune"].loc[3, "accuracy"] == pytest.approx(accuracy, abs=1e-3)
    assert variables["spans"].whole["accuracy"] == pytest.approx(accuracy, abs=1e-3)
    assert list(shown["summary"].index) == ["entail", "paraphrase", "shuffled"]


def test_relations_of_the_target_task_are_named_in_order() -> None:
    """Checks the relation names in the activations notebook, which relies on the order of built-in rows."""
    source = "".join(cell.source for cell in code_cells(FOLDER / "fusion_activations.ipynb"))
    (relations,) = re.findall(r"RELATIONS = (\(.*?\))", source)
    assert list(ast.literal_eval(relations)) == [relation.__name__ for relation, _ in GRAMMARS["target"].relations]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_stored_notebook_is_complete_and_clean(path: Path) -> None:
    assert path.stat().st_size < 400_000
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.colab.name == path.name
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        assert bool(cell.outputs) != ("parameters" in cell.metadata.get("tags", ())), cell.id
        assert "execution" not in cell.metadata, cell.id
        assert all(output.output_type in ("stream", "execute_result") for output in cell.outputs), cell.id
    assert not [*EXECUTE["find_problems"](notebook)]


def test_progress_bars_and_execution_times_are_removed() -> None:
    bar = "\rentail:  50%|████▌    | 1/2 [00:01<00:01,  1.2s/step, loss=1.0]"
    outputs = [
        new_output("stream", name="stderr", text=f"a: begins\n{bar}"),
        new_output("stream", name="stderr", text=f"\r{' ' * 60}\x1b[A\ra: step 1 of 2, dev accuracy 50%\n{bar}\n"),
        new_output("stream", name="stdout", text="done\n"),
        new_output("stream", name="stderr", text=bar),
    ]
    cell = new_code_cell("", outputs=outputs, metadata={"execution": {"iopub.execute_input": "2026"}, "tags": ["x"]})
    notebook = new_notebook(cells=[cell], metadata={"language_info": {"name": "python", "version": "3.11"}})
    EXECUTE["clean"](notebook)
    assert [(output.name, output.text) for output in cell.outputs] == [
        ("stderr", "a: begins\na: step 1 of 2, dev accuracy 50%\n"),
        ("stdout", "done\n"),
    ]
    assert cell.metadata == {"tags": ["x"]}
    assert notebook.metadata == {"language_info": {"name": "python"}}


def test_large_pictures_are_halved() -> None:
    sizes = {}
    for width in (EXECUTE["PAGE_WIDTH"], 2 * EXECUTE["PAGE_WIDTH"]):
        file = io.BytesIO()
        Image.effect_noise((width, 10), 50).save(file, "PNG")
        small = EXECUTE["shrink"](base64.b64encode(file.getvalue()).decode())
        sizes[width] = Image.open(io.BytesIO(base64.b64decode(small))).size
    assert sizes == {1100: (1100, 10), 2200: (1100, 5)}


def test_notebooks_with_a_failing_cell_or_a_path_are_not_changed(tmp_path: Path) -> None:
    sources = {
        "good": "print('fine')",
        "failing": "1 / 0",
        "path": "from pathlib import Path; Path.cwd()",
        "warning": "import warnings; warnings.warn('slow')",
    }
    before = {}
    for name, source in sources.items():
        before[name] = nbformat.writes(new_notebook(cells=[new_code_cell(source, id=name)]))
        (tmp_path / f"{name}.ipynb").write_text(before[name])
    command = [sys.executable, str(FOLDER / "execute.py"), *(str(tmp_path / f"{name}.ipynb") for name in sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    for name in ("failing", "path", "warning"):
        assert (tmp_path / f"{name}.ipynb").read_text() == before[name]
        assert f"{name}.ipynb:" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert read(tmp_path / "good.ipynb").cells[0].outputs[0].text == "fine\n"
