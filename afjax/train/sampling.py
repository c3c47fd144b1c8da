"""Which task each step of a multi-task run trains (Stickland & Murray 2019, section 4.1)."""

import math
from collections.abc import Sequence

import numpy as np

from afjax.config.training import Sampler, SamplingConfig


def probabilities(sampler: Sampler, sizes: Sequence[int], *, epoch: int, num_epochs: int) -> np.ndarray:
    """The probability of each task, float64 ``[num_tasks]``.

    Args:
      sampler: Draws a task of N rows with a probability proportional to N^α; round robin gives every task its equal
        share, in turn.
      sizes: Train rows of each task, each at least 1.
      epoch: 1 to ``num_epochs``.
      num_epochs: Of the whole run. With one epoch, annealing stays at its start, α = 1.
    """
    assert min(sizes) > 0, "an empty task is refused when it is loaded"
    match sampler:
        case "round_robin":
            alpha = 0.0
        case "proportional":
            alpha = 1.0
        case "square_root":
            alpha = 0.5
        case "annealed":
            alpha = 1.0 - 0.8 * (epoch - 1) / max(1, num_epochs - 1)
    weights = np.asarray(sizes, np.float64) ** alpha
    return weights / weights.sum()


def draw_tasks(config: SamplingConfig, sizes: Sequence[int], *, num_steps: int, seed: int) -> np.ndarray:
    """The task of every step, int64 ``[num_steps]``; an epoch's draws depend on the seed and the epoch alone."""
    num_epochs = math.ceil(num_steps / config.steps_per_epoch)
    if config.sampler == "round_robin":
        return np.arange(num_steps) % len(sizes)
    draws = []
    for epoch in range(1, num_epochs + 1):
        share = probabilities(config.sampler, sizes, epoch=epoch, num_epochs=num_epochs)
        # The first number keeps these draws apart from those that shuffle rows.
        rng = np.random.default_rng([0x7A5C, seed, epoch])
        draws.append(rng.choice(len(sizes), size=config.steps_per_epoch, p=share))
    return np.concatenate(draws)[:num_steps]
