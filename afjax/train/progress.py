"""The bookkeeping of one run: its best parameters, and whether it stops early.

A loop that trains several runs in one program has one :class:`RunProgress` per run.
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
    """How far a run has come, besides its training state.

    Attributes:
      main_metric: The dev metric that decides which parameters are best.
      patience: The number of evaluations without a better score after which the run stops; 0 for never.
      best_params: The trained tree with the best score so far.
      best_scores: Every dev metric of that tree, and ``step``, after which it was evaluated; empty before the first
        evaluation.
      evals_since_best: The number of evaluations since then.
      stopped: Whether the run stops early.
    """

    main_metric: str
    patience: int
    best_params: Tree
    best_scores: dict[str, float] = dataclasses.field(default_factory=dict)
    evals_since_best: int = 0
    stopped: bool = False

    def record(self, step: int, scores: Mapping[str, float], params: Tree) -> None:
        """Takes an evaluation into account.

        Args:
          step: The number of finished steps.
          scores: Every dev metric.
          params: The trained tree. It is copied if it is the best, because the next step donates its buffers.
        """
        if not self.best_scores or scores[self.main_metric] > self.best_scores[self.main_metric]:
            self.best_params = copy_tree(params)
            self.best_scores, self.evals_since_best = {**scores, "step": step}, 0
        else:
            self.evals_since_best += 1
            self.stopped = 0 < self.patience <= self.evals_since_best

    def to_json(self) -> dict[str, Any]:
        """The progress without the parameters, as checkpoints store it."""
        return {"best": self.best_scores, "looks_since_best": self.evals_since_best, "stopped": self.stopped}

    def restore(self, values: Mapping[str, Any], best_params: Tree, where: str) -> None:
        """Continues from a checkpoint.

        Args:
          values: What :meth:`to_json` returned.
          best_params: The best parameters at that time.
          where: The checkpoints' folder, for error messages.

        Raises:
          UserError: The values are not what :meth:`to_json` returns.
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
                f"The newest checkpoint in {where} is damaged (its progress is not what afjax writes). Remove it to "
                "resume from the previous one."
            )
        self.best_params, self.best_scores = best_params, values["best"]
        self.evals_since_best, self.stopped = values["looks_since_best"], values["stopped"]


def copy_tree(tree: Tree) -> Tree:
    """The same tree in buffers of its own."""
    return jax.tree.map(jnp.copy, tree)
