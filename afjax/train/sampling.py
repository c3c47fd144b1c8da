"""Task sampling for multi-task training (Stickland & Murray 2019, section 4.1)."""

import math
from collections.abc import Sequence

import numpy as np

from afjax.config.training import Sampler, SamplingConfig


def probabilities(sampler: Sampler, sizes: Sequence[int], *, epoch: int, num_epochs: int) -> np.ndarray:
    """Computes the sampling probability of each task, float64 ``[num_tasks]``.

    Args:
      sampler: The sampler. A task with N rows has a probability proportional to N^α. Round robin takes the tasks in
        turn, which corresponds to equal probabilities.
      sizes: Number of train rows of each task, at least 1.
      epoch: The current epoch, 1 to ``num_epochs``.
      num_epochs: Total number of epochs. With one epoch, annealing keeps its initial α = 1.
    """
    assert min(sizes) > 0, "loading rejects empty tasks"
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
    """Draws the task of every step, int64 ``[num_steps]``.

    The random draws of an epoch depend only on the seed and the epoch.
    """
    num_epochs = math.ceil(num_steps / config.steps_per_epoch)
    if config.sampler == "round_robin":
        return np.arange(num_steps) % len(sizes)
    draws = []
    for epoch in range(1, num_epochs + 1):
        share = probabilities(config.sampler, sizes, epoch=epoch, num_epochs=num_epochs)
        # The constant makes these draws independent of the row order.
        rng = np.random.default_rng([0x7A5C, seed, epoch])
        draws.append(rng.choice(len(sizes), size=config.steps_per_epoch, p=share))
    return np.concatenate(draws)[:num_steps]
