"""Formats the output of the ``afjax store`` commands."""

import json
import sys
from collections.abc import Sequence

from afjax import store
from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.display.tables import fitting_table, table_lines
from afjax.display.terminal import fitted, terminal_width
from afjax.errors import UserError
from afjax.storage.paths import AnyPath, is_temporary
from afjax.store import Manifest
from afjax.store.artifacts import check_is_store


def list_lines(path: AnyPath) -> list[str]:
    """Formats a table of a store's artifacts, with a header.

    Each artifact has one line, or several if the terminal is narrow.

    Raises:
      UserError: The store does not exist.
    """
    rows: list[tuple[str, ...]] = [
        ("kind", "name", "task", "metric", "parameters", "size", "trunk", "digest", "created")
    ]
    for kind, name in _artifacts(path):
        try:
            rows.append(_row(store.read_manifest(path, kind, name)))
        except UserError as error:
            if is_temporary(error):
                raise
            rows.append((kind, name, "damaged: see afjax store verify", "", "", "", "", "", ""))
    return fitting_table([_printable(row) for row in rows], terminal_width(sys.stdout), first=4)


def show_lines(path: AnyPath, name: str) -> list[str]:
    """Formats the manifests of all artifacts named ``name``, of any kind.

    Raises:
      UserError: The store does not exist, no artifact has the name (the message suggests the closest one), or a
        manifest is damaged.
    """
    lines: list[str] = []
    for kind in store.kinds_of(path, name):
        lines += [*([""] if lines else []), *_manifest_lines(store.read_manifest(path, kind, name))]
    return _printable(lines)


def verify_lines(path: AnyPath) -> tuple[list[str], bool]:
    """Verifies a store by reading every artifact in full.

    Returns:
      One line per artifact (``ok`` or its problems), and whether the whole store is intact.

    Raises:
      UserError: The store does not exist.
    """
    lines, all_intact = [], True
    for kind, name in _artifacts(path):
        problems = store.problems(path, kind, name)
        all_intact = all_intact and not problems
        lines.append(f"{kind}/{name}: {' '.join(problems) or 'ok'}")
    return _printable(lines) or ["The store is empty."], all_intact


def shared_lines(where: str, manifests: Sequence[Manifest], *, received: bool) -> list[str]:
    """Describes packed or unpacked artifacts, with a note if the head or a trained trunk is missing.

    Args:
      where: The subject and verb of the sentence, such as ``FILE contains``.
      received: True if the user received the artifacts, False if the user shares them.
      manifests: The manifests of all artifacts, with the main artifact last.
    """
    main, kinds = manifests[-1], {manifest.kind for manifest in manifests}
    size = _size(sum(manifest.num_bytes for manifest in manifests))
    parts = ", ".join(f"{manifest.kind}/{manifest.name}" for manifest in reversed(manifests))
    lines = [f"{where} {parts}, {size}, for the trunk {main.trunk.get('name', '-')} ({main.trunk.get('sha256')})."]
    if "heads" not in kinds:
        lines.append(
            f'No head "{main.name}" trained with {main.kind}/{main.name} is included, so it cannot predict by itself.'
        )
    if main.trunk.get("trained"):
        advice = "ask for its folder, and pass it as --trunk" if received else "share its folder too"
        lines.append(f"Its trunk was trained in the same run and is not included; {advice}.")
    return _printable(lines)


def _artifacts(path: AnyPath) -> list[tuple[str, str]]:
    artifacts = store.folders(path)
    if not artifacts:
        check_is_store(path)
    return artifacts


def _row(manifest: Manifest) -> tuple[str, ...]:
    return (
        manifest.kind,
        manifest.name,
        manifest.task.get("name", "-"),
        _main_metric(manifest),
        f"{manifest.num_parameters:,}",
        _size(manifest.num_bytes),
        manifest.trunk.get("name", "-"),
        manifest.digest[:12],
        manifest.created[:16].replace("T", " "),
    )


def _main_metric(manifest: Manifest) -> str:
    try:
        metric = from_dict(TaskConfig, manifest.task).main_metric
    except UserError:  # The artifact has no task, or its task has settings from a different version of afjax.
        return "-"
    return f"{metric} {_number(manifest.metrics[metric])}" if metric in manifest.metrics else "-"


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.2f} MB"


def _manifest_lines(manifest: Manifest) -> list[str]:
    task, trunk = manifest.task.get("name", "-"), manifest.trunk
    entries = [
        ("created", f"{manifest.created}, seed {manifest.seed}"),
        ("digest", manifest.digest),
        ("size", f"{manifest.num_parameters:,} parameters, {_size(manifest.num_bytes)}"),
        ("trunk", json.dumps({key: trunk[key] for key in trunk if key not in ("architecture", "tokenizer")})),
        ("config.json", json.dumps(trunk.get("architecture"))),
        ("tokenizer", json.dumps(trunk.get("tokenizer"))),
        ("task", f"{task}{': ' + json.dumps(manifest.task) if manifest.task else ''}"),
        ("labels", ", ".join(manifest.labels) or "-"),
        ("metrics", ", ".join(f"{key} {_number(value)}" for key, value in manifest.metrics.items()) or "-"),
        ("config", json.dumps(manifest.config)),
        ("versions", ", ".join(f"{key} {value}" for key, value in manifest.versions.items())),
    ]
    if manifest.kind == "heads":
        record = manifest.trained_with
        trained_with = f"{record['kind']}/{record['name']} {record['sha256'][:12]}" if record else "not recorded"
        entries.append(("trained with", trained_with))
    if manifest.run:
        entries.append(("run", manifest.run))
    entries += [("adapter", f"{adapter['name']} {adapter['sha256'][:12]}") for adapter in manifest.adapters]
    lines = [f"{manifest.kind}/{manifest.name}"]
    for name, text in entries:
        # The indent leaves room for a digest in 80 columns.
        lines += fitted(f"  {name:13}{text}", sys.stdout, " " * 8)
    leaves = [(f"  {'leaf':13}{path}", leaf["dtype"], str(leaf["shape"])) for path, leaf in manifest.leaves.items()]
    return lines + table_lines([_printable(leaf) for leaf in leaves], num_texts=3)


def _printable(texts: Sequence[str]) -> list[str]:
    """Replaces control characters, because metadata in shared artifacts is untrusted."""
    return ["".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text) for text in texts]
