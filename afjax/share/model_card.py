"""Writes model cards for shared artifacts.

A model card is a README.md with front matter for the Hugging Face hub. Names of labels, tasks and folders are untrusted
text. Control characters are removed, and names in the body are code spans, so that a name cannot end a line, create a
link or become HTML.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.share.provenance import hub_id
from afjax.store.manifest import Manifest
from afjax.tasks.kind import KindSpec
from afjax.tasks.kinds import TASK_KINDS

_NOUNS = {"adapters": "An adapter", "fusion": "A fusion of adapters", "heads": "A head"}
# The hub's tags, by kind of artifact.
_HUB_TAGS = {"adapters": "adapter", "fusion": "adapterfusion"}
# The hub's names for metrics, if they differ from ours.
_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}


def model_card(manifests: Sequence[Manifest], *, repository: str = "", license: str = "") -> str:
    """Writes the model card for an artifact and its dependencies.

    Args:
      manifests: The manifests of all shared artifacts, with the main artifact's last. They must not contain local
        paths, see :mod:`afjax.share.provenance`.
      repository: The repository on the Hugging Face hub. Empty for an archive.
      license: An identifier such as ``apache-2.0``. Empty if unknown.
    """
    sections = [_summary(manifests, license), _scores(manifests[-1]), _usage(manifests, repository), _parts(manifests)]
    return "\n".join([*_front_matter(manifests, license), "", *(line for lines in sections for line in lines)])


def code_span(text: str) -> str:
    """Formats ``text`` as a Markdown code span, so that markup is not interpreted."""
    line = _printable(text) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    # Markdown strips one space from each end.
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _front_matter(manifests: Sequence[Manifest], license: str) -> list[str]:
    """Builds the card's metadata, with the scores in the hub's fields."""
    # Imported here because the import takes a third of a second.
    from huggingface_hub import EvalResult, ModelCardData

    main = manifests[-1]
    kinds = {manifest.kind for manifest in manifests}
    base, task, tag = hub_id(_text(main.trunk.get("name"))), _text(main.task.get("name")), _pipeline_tag(main)
    scores = [
        EvalResult(
            task_type=tag,
            dataset_type=_printable(task),
            dataset_name=_printable(task),
            dataset_split="dev",
            metric_type=_printable(_METRICS.get(metric, metric)),
            metric_value=score,
        )
        for metric, score in _finite(main.metrics)
        if task and tag
    ]
    data = ModelCardData(
        library_name="afjax",
        license=_printable(license) or None,
        base_model=base or None,
        base_model_relation="adapter" if base and "adapters" in kinds else None,
        pipeline_tag=tag or None,
        tags=["afjax", *(name for kind, name in _HUB_TAGS.items() if kind in kinds)],
        model_name=_printable(main.name) if scores else None,
        eval_results=scores or None,
    )
    return ["---", *data.to_yaml().split("\n"), "---"]


def _pipeline_tag(manifest: Manifest) -> str:
    kind = _task_kind(manifest)
    return kind.text.pipeline_tag if kind else ""


def _summary(manifests: Sequence[Manifest], license: str) -> list[str]:
    main = manifests[-1]
    trunk, task = main.trunk, main.task
    name, heads = _text(trunk.get("name")), [manifest for manifest in manifests if manifest.kind == "heads"]
    note = "" if hub_id(name) else " (a local folder on the authors' machine, not included)"
    sizes = ", ".join(
        f"{key} {trunk[key]}" for key in ("family", "hidden_size", "num_layers", "dtype") if _is_plain(trunk.get(key))
    )
    total = sum(manifest.num_parameters for manifest in manifests)
    lines = [
        f"# {code_span(main.name)}",
        "",
        f"{_NOUNS[main.kind]}{' with a head' if heads and main.kind != 'heads' else ''} for a BERT-family encoder, "
        "created with afjax (JAX).",
        "",
        f"- Trunk: {code_span(name)}{note}{f': {code_span(sizes)}' if sizes else ''}",
        f"- SHA-256 of the trunk's weights: {code_span(_text(trunk.get('sha256')))}; other trunks cannot be used",
        f"- Parameters: {total:,}, in addition to the trunk's",
    ]
    if task.get("name"):
        kind = _task_kind(main)
        lines.append(f"- Task: {code_span(_text(task['name']))}{f', {code_span(kind.name)}' if kind else ''}")
    if source := _text(task.get("source")):
        local = " (a local folder on the authors' machine)" if "./" in source else ""
        lines.append(f"- Data: {code_span(source)}{local}")
    if main.labels:
        lines.append(f"- Labels, in the order of the outputs: {', '.join(map(code_span, main.labels))}")
    if main.adapters:
        lines.append(f"- Fused adapters: {', '.join(code_span(member['name']) for member in main.adapters)}")
    lines.append(f"- Trained: {code_span(main.created[:10])}, seed {main.seed}")
    return [*lines, f"- License: {code_span(license) if license else 'unknown, ask the authors'}", ""]


def _scores(main: Manifest) -> list[str]:
    scores = [f"- {code_span(metric)}: {score:.4f}" for metric, score in _finite(main.metrics)]
    return ["## Scores on the dev split", "", *scores, ""] if scores else []


def _usage(manifests: Sequence[Manifest], repository: str) -> list[str]:
    main, kinds = manifests[-1], {manifest.kind: manifest for manifest in manifests}
    trunk = _text(main.trunk.get("name"))
    trunk = trunk if hub_id(trunk) else "PATH/OF/THE/TRUNK"
    get = f"pull {repository}" if repository else f"unpack {shlex.quote(f'{main.name}.tar')}"
    lines = ["## Usage", "", "```bash", f"afjax store {get} --store=store"]
    needed = dict(kinds["heads"].trained_with) if main.kind == "heads" else {}
    if "heads" not in kinds:
        command = f"afjax store show {shlex.quote(main.name)} --store=store"
        advice = "Train one, or fuse the adapter with others." if main.kind == "adapters" else "Train one."
        return [*lines, command, "```", "", f"It has no head. {advice}", ""]
    # A head that is shared by itself may need the adapter or fusion that it was trained with.
    under = {"adapters": "adapter", "fusion": "fusion"}.get(_text(needed.get("kind")) if needed else main.kind)
    member = _text(needed.get("name")) if needed else main.name
    flags = [f"--{under}={member}"] if under else []
    flags += [f"--head={main.name}", "--input=rows.jsonl", "--output=predictions.jsonl"]
    arguments = ["afjax", "predict", "--store=store", f"--trunk={trunk}", *flags]
    kind_text = (_task_kind(main) or TASK_KINDS["classification"]).text
    row, texts = kind_text.examples(kinds["heads"].config.get("text_columns"))
    chosen = f"head={_quoted(main.name)}" + (f", {under}={_quoted(member)}" if under else "")
    note = []
    if needed and under:
        digest = code_span(_text(needed.get("sha256")))
        note = [f"It needs the {under} {code_span(member)} (SHA-256 {digest}), which is not included.", ""]
    return [
        *lines,
        shlex.join(arguments),
        "```",
        "",
        *note,
        f"Rows are {code_span(row)}, one per line. From Python:",
        "",
        "```python",
        "import afjax",
        "",
        f"trunk = afjax.load_trunk({json.dumps(trunk)})",
        f'model = afjax.load_task_model("store", trunk, {chosen})',
        f"predictions = model.predict({texts}",
        "print(predictions.labels, predictions.probabilities)",
        "```",
        "",
    ]


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _parts(manifests: Sequence[Manifest]) -> list[str]:
    lines = ["## Contents", ""]
    for manifest in manifests:
        lines.append(
            f"- {code_span(f'{manifest.kind}/{manifest.name}')}: {manifest.num_parameters:,} parameters, SHA-256 "
            f"{code_span(manifest.digest)}"
        )
    return [
        *lines,
        "",
        "Each is a folder with a `manifest.json` and an Orbax checkpoint of its parameters, which Orbax can load "
        "without afjax. Together they are an afjax store.",
        "",
    ]


def _task_kind(manifest: Manifest) -> KindSpec | None:
    """Returns the kind of the artifact's task.

    None if the artifact has no task, or if this version of afjax does not support the task.
    """
    try:
        return TASK_KINDS[from_dict(TaskConfig, manifest.task).kind] if manifest.task else None
    except UserError:
        return None


def _finite(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for metric, score in metrics.items():
        # The metrics include the step of the evaluation, which is not a score.
        if metric != "step" and isinstance(score, int | float) and math.isfinite(score):
            yield metric, float(score)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _printable(text: str) -> str:
    """Converts ``text`` to one line without control characters."""
    plain = text.encode("utf-8", "replace").decode()
    return " ".join("".join(sign if sign.isprintable() else " " for sign in plain).split())
