"""``afjax plot activations`` and ``afjax plot spans``: figures of stored models."""

import argparse
import sys
from pathlib import Path

from afjax import store
from afjax.analysis.activation_figures import check_layers, draw_activations, draw_token_activations
from afjax.analysis.activations import mean_activations, token_activations
from afjax.analysis.figures import check_output
from afjax.analysis.spans import draw_spans, score_spans
from afjax.cli.stored_model import load_recorded_trunk, rows_of
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.stored import recorded_head
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import check_metric


def activations(arguments: argparse.Namespace) -> list[str]:
    """Draws what fusions listen to; returns what to print."""
    check_output(arguments.output)
    fusions = arguments.fusion.split(",")
    for name in fusions:
        if fusions.count(name) > 1:
            raise UserError(f'--fusion names "{name}" twice; give each fusion once.')
    given_heads = _one_each(arguments.head, fusions, "--head")
    sources = _one_each(arguments.source or "", fusions, "--source")
    layers = _layers(arguments.layers)
    if arguments.text is None and arguments.text_b is not None:
        raise UserError("--text_b is the second text of a pair; give --text as well.")
    if arguments.text is not None and (len(fusions) > 1 or arguments.by_label):
        raise UserError("A text is shown for one fusion and has no label; give one --fusion, and no --by_label.")
    for flag, text in (("--text", arguments.text), ("--text_b", arguments.text_b)):
        if text is not None and not text.strip():
            raise UserError(f"{flag} is blank; give it words, whose tokens the figure shows.")
    heads = given_heads or [recorded_head(arguments.store, "fusion", name) for name in fusions]
    for name in fusions:
        # Before a head is loaded, so that the message about a wrong name says that no fusion has it.
        store.read_manifest(arguments.store, "fusion", name)
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, "fusion", fusions[0])
    check_layers(layers, trunk.config.num_layers)
    models = [
        load_task_model(arguments.store, trunk, head=head, fusion=fusion, allow_mismatch=arguments.allow_mismatch)
        for head, fusion in zip(heads, fusions, strict=True)
    ]
    if arguments.text is not None:
        found = token_activations(models[0], arguments.text, arguments.text_b)
        written = _written(draw_token_activations(found, arguments.output, layers=layers))
        if len(found.tokens) < found.num_tokens:
            told = f"The text was cut to {len(found.tokens)} of its {found.num_tokens} tokens, as in training."
            print(told, file=sys.stderr)
        return written
    splits: list[AnyRows] = []
    for index, model in enumerate(models):
        source = sources[index] if sources else model.task.source
        own = argparse.Namespace(source=source, data_dir=arguments.data_dir)
        splits.append(rows_of(model, own, arguments.split))
    means = [
        mean_activations(model, rows, by_label=arguments.by_label, batch_size=arguments.batch_size)
        for model, rows in zip(models, splits, strict=True)
    ]
    return _written(draw_activations(means, arguments.output, layers=layers))


def spans(arguments: argparse.Namespace, task_model: TaskModel, rows: AnyRows) -> list[str]:
    """Draws what is lost without the adapters of each span of layers; returns what to print."""
    metric = arguments.metric or task_model.task.main_metric
    check_metric(metric, task_model.task.kind, len(task_model.labels))
    scores = score_spans(task_model, rows, batch_size=arguments.batch_size)
    whole = f"{metric} {scores.whole[metric]:.4f} with all adapters, {len(scores.without)} spans"
    title = arguments.fusion or arguments.adapter
    return [whole, *_written(draw_spans(scores, metric, arguments.output, title=title))]


def _one_each(given: str, fusions: list[str], flag: str) -> list[str]:
    words = given.split(",") if given else []
    if words and len(words) != len(fusions):
        raise UserError(f"{flag} names {len(words)} and --fusion {len(fusions)}; give one for each fusion, in order.")
    return words


def _layers(given: str) -> list[int]:
    words = given.split(",") if given else []
    if not all(word.strip().isdecimal() and len(word) < 10 for word in words):
        raise UserError(f"--layers is {given}; give layers by their numbers, as in 0,1,2.")
    return [int(word) for word in words]


def _written(paths: list[Path]) -> list[str]:
    return [f"Written: {', '.join(map(str, paths))}"]
