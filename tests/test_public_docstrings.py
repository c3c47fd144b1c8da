"""Every public name has a complete docstring.

``test_docstring_examples.py`` runs the examples.
"""

import dataclasses
import functools
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("afjax", "afjax.store", "afjax.share", "afjax.interop.adapterhub", "afjax.interop.peft")
NAMES = [f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__]
# Values cannot have docstrings, so a comment above the definition describes them: ``{name: defining module}``.
CONSTANTS = {"afjax.ADAPTER_PRESETS": "afjax.config.adapters", "afjax.store.KINDS": "afjax.store.manifest"}
# Classes whose public methods also need complete docstrings. The class docstring has their examples.
CLASSES = ("afjax.Model", "afjax.Setup", "afjax.TaskModel", "afjax.Trunk")
# Names that implement a method from a paper. Only their docstrings have a Reference section.
FROM_PAPERS = {
    "afjax.AdapterConfig",
    "afjax.FusionConfig",
    "afjax.FusionMethod",
    "afjax.Ia3Config",
    "afjax.LoraConfig",
    "afjax.Method",
    "afjax.MultitaskMethod",
    "afjax.PalConfig",
    "afjax.SamplingConfig",
    "afjax.TaskModel.merged",
    "afjax.Trunk.embed",
    "afjax.bottleneck",
    "afjax.fuse",
    "afjax.fusion_setup",
    "afjax.make_optimizer",
    "afjax.pal",
    "afjax.train_fusion",
    "afjax.train_multitask",
    "afjax.train_single",
}
# Names whose examples have lines that tests skip, because they need a pretrained trunk or the Hugging Face hub.
SKIPPED = {
    "afjax.Trunk.embed",
    "afjax.load_trunk",
    "afjax.share.pull",
    "afjax.share.push",
    "afjax.train_fusion",
    "afjax.train_many",
    "afjax.train_multitask",
    "afjax.train_sequential",
    "afjax.train_single",
}
ORDER = ["Attributes", "Args", "Yields", "Returns", "Raises", "Example", "Reference"]


def public(name: str) -> Any:
    """Resolves a dotted public name."""
    package = max((package for package in PACKAGES if name.startswith(f"{package}.")), key=len)
    return functools.reduce(getattr, name.removeprefix(f"{package}.").split("."), importlib.import_module(package))


def methods() -> list[str]:
    """Returns the dotted names of the public methods and properties of ``CLASSES``."""
    return [
        f"{name}.{method}"
        for name in CLASSES
        for method, value in vars(public(name)).items()
        if (method == "__call__" or not method.startswith("_"))
        and (inspect.isfunction(value) or isinstance(value, classmethod | property))
    ]


METHODS = methods()


def sections(docstring: str) -> dict[str, list[str]]:
    """Splits a docstring's lines by section. The lines before the first section have the title ``""``."""
    found: dict[str, list[str]] = {"": []}
    title = ""
    for line in docstring.splitlines():
        if line.removesuffix(":") in ORDER:
            title = line.removesuffix(":")
            found[title] = []
        else:
            found[title].append(line)
    return found


def entries(lines: list[str]) -> list[str]:
    """Returns the names described in a section. An entry such as ``a, b: ...`` describes several."""
    matches = [re.match(r"  (\**\w+(?:, \**\w+)*): \S", line) for line in lines]
    return [name.strip("*") for match in matches if match for name in match[1].split(", ")]


def signature_of(value: Any) -> inspect.Signature:
    return inspect.signature(value.fget if isinstance(value, property) else value)


def parameters(value: Any) -> list[str]:
    return [name for name in signature_of(value).parameters if name != "self"]


def fields(value: type) -> list[str]:
    """Returns the public fields of a dataclass or named tuple, without the fields that Flax adds to modules."""
    if not dataclasses.is_dataclass(value):
        return list(getattr(value, "_fields", ()))
    names = [field.name for field in dataclasses.fields(value) if not field.name.startswith("_")]
    return [name for name in names if name not in ("parent", "name") or not issubclass(value, nn.Module)]


def raises_user_error(value: Any) -> bool:
    """Whether a function or a class's ``__post_init__`` raises UserError, directly or in a check that it calls."""
    if inspect.isclass(value):
        bodies = [vars(cls)["__post_init__"] for cls in value.__mro__ if "__post_init__" in vars(cls)]
    else:
        bodies = [value.fget if isinstance(value, property) else value]
    return any(re.search(r"\braise UserError\b|\bcheck_\w+\(", inspect.getsource(body)) for body in bodies)


def problems(name: str) -> list[str]:
    """Lists what is missing from a public name's docstring."""
    value, docstring = public(name), inspect.getdoc(public(name)) or ""
    found, is_class, is_property = sections(docstring), inspect.isclass(value), isinstance(value, property)
    lines = docstring.splitlines() or [""]
    missing = []
    if not lines[0].endswith(".") or lines[0].endswith("..") or len(lines[0]) > 80:
        missing.append(f"summary: {len(lines[0])} characters, or no full stop: {lines[0]}")
    if len(lines) > 1 and lines[1]:
        missing.append("summary: no blank line follows")
    titles = [title for title in found if title]
    if titles != sorted(titles, key=ORDER.index):
        missing.append(f"order of sections: {titles}")
    if is_class:
        described, wanted = entries(found.get("Attributes", [])), fields(value)
    else:
        described, wanted = entries(found.get("Args", [])), [] if is_property else parameters(value)
    if sorted(described) != sorted(wanted):
        missing.append(f"described: {described}, but there are: {wanted}")
    if not (is_class or is_property):
        generator = inspect.isgeneratorfunction(value)
        returns = signature_of(value).return_annotation is not None
        if ("Yields" in found, "Returns" in found) != (generator, returns and not generator):
            missing.append("Returns or Yields")
    if raises_user_error(value) and not any(line.startswith("  UserError: ") for line in found.get("Raises", [])):
        missing.append("Raises")
    if name in NAMES and not any(line.startswith("  >>> ") for line in found.get("Example", [])):
        missing.append("Example")
    if ("+SKIP" in docstring) != (name in SKIPPED):
        missing.append("SKIPPED does not list exactly the names with skipped lines")
    if (name in FROM_PAPERS) != ("Reference" in found):
        missing.append("FROM_PAPERS does not list exactly the names with a Reference")
    if "Reference" in found and not re.search(
        r"\b(19|20)\d\d\b.*\b(sections?|algorithm) \S", " ".join(found["Reference"])
    ):
        missing.append("Reference: no year, or no section")
    return missing


@pytest.mark.parametrize("name", [name for name in (*NAMES, *METHODS) if name not in CONSTANTS])
def test_docstring_is_complete(name: str) -> None:
    assert problems(name) == []


@pytest.mark.parametrize(
    "name", [name for name in (*NAMES, *METHODS) if inspect.isfunction(public(name)) or inspect.ismethod(public(name))]
)
def test_function_has_at_most_7_parameters(name: str) -> None:
    assert len(parameters(public(name))) <= 7


@pytest.mark.parametrize("name", CONSTANTS)
def test_comment_describes_constant(name: str) -> None:
    source = inspect.getsource(importlib.import_module(CONSTANTS[name]))
    assert re.search(rf"^# .+\.\n{name.rpartition('.')[2]}\b.* = ", source, re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_summary_and_example(package: str) -> None:
    found = sections(inspect.getdoc(importlib.import_module(package)) or "")
    summary, blank = found[""][:2]
    assert summary.endswith(".")
    assert len(summary) <= 80
    assert not blank
    assert any(line.startswith("  >>> ") for line in found["Example"])


def test_packages_are_those_of_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(afjax\.[a-z]+)`", page)) <= set(PACKAGES)


def test_literal_sets_name_public_names() -> None:
    assert set(CONSTANTS) <= set(NAMES)
    assert {*FROM_PAPERS, *SKIPPED} <= {*NAMES, *METHODS}
