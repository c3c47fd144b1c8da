"""Modules import only from lower packages, every module can be imported, and ``import afjax`` is fast."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "afjax"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
# Packages from lowest to highest. A module imports only from its own package and from lower ones.
LAYERS = (
    "errors",
    "trees",
    "display",
    "config",
    "storage",
    "distributed",
    "nn",
    "data",
    "tasks",
    "trunk",
    "adapters",
    "fusion",
    "store",
    "model",
    "serve",
    "train",
    "share",
    "interop",
    "analysis",
    "tpu",
    "bench",
    "cli",
    "__main__",
)
HEAVY = (
    "beartype",
    "datasets",
    "huggingface_hub",
    "matplotlib",
    "orbax",
    "pyarrow",
    "scipy",
    "sklearn",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
    "transformers",
)


def part(module: str) -> str:
    """Returns the package of a module: ``fusion`` for ``afjax.fusion.factored``."""
    return module.split(".")[1]


def imported(module: str) -> Iterator[tuple[int, str]]:
    """Yields the line and full name of every afjax import in a module, including imports inside functions."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "afjax")


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part(module) for module in MODULES if module != "afjax"}
    assert parts == set(LAYERS)


def test_package_root_has_few_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 6


@pytest.mark.parametrize("module", [module for module in MODULES if module != "afjax"])
def test_modules_import_only_lower_packages(module: str) -> None:
    here = part(module)
    upward = [
        f"{module}:{line} imports {name}"
        for line, name in imported(module)
        if name != "afjax.__version__" and part(name) != here and LAYERS.index(part(name)) >= LAYERS.index(here)
    ]
    assert upward == []


def test_architecture_page_names_existing_packages_and_modules() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.partition("|---|")[2].partition("\n\n")[0]
    named = [name for row in rows.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named == [name for name in LAYERS if name != "__main__"]
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page):
        assert (PACKAGE / name).exists() or (PACKAGE.parent / name).exists(), name


@pytest.mark.parametrize("module", [module for module in MODULES if module != "afjax.__main__"])
def test_every_module_imports(module: str) -> None:
    importlib.import_module(module)


def run_python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def test_import_is_fast() -> None:
    # Measure CPU time, because it does not depend on other programs on the machine.
    seconds = [float(run_python("import time, afjax; print(time.process_time())")) for _ in range(3)]
    assert min(seconds) < 2


@pytest.mark.parametrize("code", ["import afjax", "import afjax; [getattr(afjax, name) for name in afjax.__all__]"])
def test_import_loads_no_heavy_modules(code: str) -> None:
    loaded = run_python(f"{code}; import sys; print(*sys.modules)").split()
    assert "afjax" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_every_public_name_exists_and_has_a_docstring() -> None:
    import afjax

    for name in afjax.__all__:
        public = getattr(afjax, name)
        assert name == "ADAPTER_PRESETS" or public.__doc__, f"afjax.{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'adaptor'"):
        _ = afjax.adaptor
