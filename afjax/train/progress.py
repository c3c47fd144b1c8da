"""Tracks a run's best parameters and decides when to stop early.

Each run has its own :class:`RunProgress`, even if several train in one process.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from afjax.errors import UserError
from afjax.trees import Tree


@dataclasses.dataclass
class RunProgress:
    """The progress of a run, in addition to its training state.

    Attributes:
      main_metric: The dev metric that selects the best parameters.
      patience: Number of evaluations without improvement after which the run stops. 0 disables early stopping.
      best_params: The trained tree with the best score so far.
      best_scores: All dev metrics of ``best_params``, and ``step``, the number of steps before the evaluation. Empty
        before the first evaluation.
      evals_since_best: Number of evaluations since the best one.
      stopped: Whether the run stops early.
    """

    main_metric: str
    patience: int
    best_params: Tree
    best_scores: dict[str, float] = dataclasses.field(default_factory=dict)
    evals_since_best: int = 0
    stopped: bool = False

    def record(self, step: int, scores: Mapping[str, float], params: Tree) -> None:
        """Records an evaluation.

        Args:
          step: Number of finished steps.
          scores: Every dev metric.
          params: The trained tree. The best one is copied, because the next step donates its buffers.
        """
        if not self.best_scores or scores[self.main_metric] > self.best_scores[self.main_metric]:
            self.best_params = copy_tree(params)
            self.best_scores, self.evals_since_best = {**scores, "step": step}, 0
        else:
            self.evals_since_best += 1
            self.stopped = 0 < self.patience <= self.evals_since_best

    def to_json(self) -> dict[str, Any]:
        """Returns the progress without the parameters, for a checkpoint."""
        return {"best": self.best_scores, "looks_since_best": self.evals_since_best, "stopped": self.stopped}

    def restore(self, values: Mapping[str, Any], best_params: Tree, where: str) -> None:
        """Restores the progress from a checkpoint.

        Args:
          values: The output of :meth:`to_json` stored in the checkpoint.
          best_params: The best parameters stored in the checkpoint.
          where: The folder with the checkpoints, for error messages.

        Raises:
          UserError: ``values`` does not have the form of :meth:`to_json`.
        """
        best = values.get("best")
        valid = (
            values.keys() == self.to_json().keys()
            and isinstance(best, dict)
            and all(isinstance(score, int | float | None) for score in best.values())
            and (not best or {self.main_metric, "step"} <= best.keys())
            and type(values["looks_since_best"]) is int
            and isinstance(values["stopped"], bool)
        )
        if not valid:
            raise UserError(
                f"The newest checkpoint in {where} is damaged (its progress record is invalid). Remove it to resume "
                "from the previous one."
            )
        self.best_params, self.best_scores = best_params, values["best"]
        self.evals_since_best, self.stopped = values["looks_since_best"], values["stopped"]


def copy_tree(tree: Tree) -> Tree:
    """Copies a tree into new buffers."""
    return jax.tree.map(jnp.copy, tree)
