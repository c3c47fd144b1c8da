"""``afjax submit``: writes test-set predictions as files for a benchmark's server."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from afjax import store
from afjax.cli.submit_plan import Job
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.data.sources.official import OFFICIAL
from afjax.data.splits import AnyRows
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.storage.paths import error_text
from afjax.storage.writing import write_output
from afjax.tasks.best_answers import Answer
from afjax.tasks.submissions import first_label, glue_text, null_odds_text, squad_text, super_glue_text
from afjax.trunk.pretrained import Trunk, check_length


def write(
    benchmark: str,
    jobs: Sequence[Job],
    models: dict[str, TaskModel],
    *,
    output: Path,
    batch_size: int,
    max_length: int | None,
) -> list[str]:
    """Predicts and writes every file of a submission.

    GLUE and SuperGLUE also get an archive of all files. Each file is written atomically.

    Args:
      benchmark: ``glue``, ``superglue`` or ``squad``.
      jobs: The files to write.
      models: ``{head's name: model}``. A model is removed after its last file, to free its memory.
      output: The folder for the files.
      batch_size: Rows per step.
      max_length: Maximum number of tokens per row; None for the length used in training.

    Returns:
      One line per file, with its number of rows and the model that predicted it, and one line for the archive.

    Raises:
      UserError: The length or batch size is out of range, or the folder cannot be written.
    """
    check_value(PositiveInt, batch_size, "batch_size")
    if max_length is not None:
        for model in models.values():
            check_length(max_length, model.trunk)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output} cannot be created ({error_text(error)}); choose a different --output.") from None
    lines: list[str] = []
    files: dict[str, str] = {}
    for number, job in enumerate(jobs, 1):
        if job.head:
            print_line(f"[{number}/{len(jobs)}] {job.entry.file}: {counted(len(job.rows), 'row')}")
            labels, answers = predict(models[job.head], job.rows, batch_size=batch_size, max_length=max_length)
        else:
            labels, answers = [first_label(job.entry.head)] * len(job.rows), []
        predictor = _described(models[job.head]) if job.head else "the first label for every row"
        for name, text in _contents(benchmark, job, labels, answers).items():
            write_output(output / name, text)
            files[name] = text
            lines.append(f"{output / name}: {counted(len(job.rows), 'row')}, {predictor}")
        if all(later.head != job.head for later in jobs[number:]):
            models.pop(job.head, None)
    if benchmark != "squad":
        write_output(output / "submission.zip", _archive(files))
        lines.append(f"{output / 'submission.zip'}: {counted(len(files), 'file')}")
    return lines


def submitted_model(store_folder: str, trunk: Trunk, name: str, *, allow_mismatch: bool = False) -> TaskModel:
    """Loads a head with the fusion or else the adapter of the same name, if any."""
    fusion = name if name in store.names(store_folder, "fusion") else ""
    adapter = name if not fusion and name in store.names(store_folder, "adapters") else ""
    return load_task_model(
        store_folder, trunk, head=name, adapter=adapter, fusion=fusion, allow_mismatch=allow_mismatch
    )


def predict(
    task_model: TaskModel, rows: AnyRows, *, batch_size: int, max_length: int | None
) -> tuple[list[str | float], list[list[Answer]]]:
    """Predicts every row's label, and the answers for span."""
    predictions = task_model.predict_rows(rows, batch_size=batch_size, max_length=max_length)
    labels = [label for label in predictions.labels if not isinstance(label, list)]
    return labels, predictions.answers or []


def _described(task_model: TaskModel) -> str:
    model = task_model.model
    if model.fusion_name:
        return f"fusion and head {model.head_name}"
    return f"{'adapter and ' if model.adapters else ''}head {model.head_name}"


def _contents(
    benchmark: str, job: Job, labels: Sequence[str | float], answers: Sequence[list[Answer]]
) -> dict[str, str]:
    """Returns the contents of a job's files: ``{name: text}``."""
    if benchmark == "glue":
        return {job.entry.file: glue_text(job.entry, job.ids, labels)}
    if benchmark == "superglue":
        return {job.entry.file: super_glue_text(job.ids, labels)}
    odds = {"null_odds.json": null_odds_text(job.ids, answers)} if OFFICIAL[job.entry.task].no_answer else {}
    return {job.entry.file: squad_text(job.ids, answers), **odds}


def _archive(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            # ZipInfo's constant default date makes the archives of equal predictions identical.
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
