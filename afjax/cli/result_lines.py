"""Formats the table of an experiment's results."""

import math
from collections.abc import Sequence

from etils import epath

from afjax.config.experiment import ExperimentConfig
from afjax.display.tables import table_lines
from afjax.train.results import Result


def result_lines(config: ExperimentConfig, results: Sequence[Result], store_folder: epath.Path) -> list[str]:
    """Formats a table of an experiment's dev metrics, followed by the store's path."""
    rows = [("trained", "on", "dev metric")]
    for result in results:
        value = result.metrics.get(result.main_metric, math.nan)
        score = f"{result.main_metric} {'-' if math.isnan(value) else f'{value:.4f}'}"
        rows.append((f"{result.name} ({result.kind})", result.task, score))
    if config.recipe == "multitask":
        mean = sum(result.metrics[result.main_metric] for result in results) / len(results)
        rows.append(("mean over the tasks", "", f"{mean:.4f}"))
    return ["", *table_lines(rows, num_texts=2), "", f"Store: {store_folder}"]
