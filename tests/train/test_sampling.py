"""Multitask training draws tasks with the probabilities of its sampler."""

import numpy as np
import pytest

from afjax.config.training import SamplingConfig
from afjax.train.sampling import draw_tasks, probabilities

SIZES = (10_000, 400, 100)


@pytest.mark.parametrize(
    ("sampler", "epoch", "weights"),
    [
        ("round_robin", 1, (1, 1, 1)),
        ("proportional", 3, (10_000, 400, 100)),
        ("square_root", 3, (100, 20, 10)),
        # α is 1, 0.6 and 0.2 in epochs 1, 3 and 5 of 5.
        ("annealed", 1, (10_000, 400, 100)),
        ("annealed", 3, (10_000**0.6, 400**0.6, 100**0.6)),
        ("annealed", 5, (10_000**0.2, 400**0.2, 100**0.2)),
    ],
)
def test_probabilities_equal_hand_computed_values(sampler: str, epoch: int, weights: tuple[float, ...]) -> None:
    found = probabilities(sampler, SIZES, epoch=epoch, num_epochs=5)
    np.testing.assert_allclose(found, np.array(weights) / sum(weights), rtol=1e-14)


def test_annealing_over_one_epoch_equals_proportional_sampling() -> None:
    np.testing.assert_array_equal(
        probabilities("annealed", SIZES, epoch=1, num_epochs=1),
        probabilities("proportional", SIZES, epoch=1, num_epochs=1),
    )


@pytest.mark.parametrize("sampler", ["proportional", "square_root", "annealed"])
def test_draws_follow_the_probabilities_of_each_epoch(sampler: str) -> None:
    steps, epochs = 20_000, 3
    config = SamplingConfig(sampler=sampler, steps_per_epoch=steps)
    drawn = draw_tasks(config, SIZES, num_steps=epochs * steps, seed=0).reshape(epochs, steps)
    for epoch in range(epochs):
        share = probabilities(sampler, SIZES, epoch=epoch + 1, num_epochs=epochs)
        found = np.bincount(drawn[epoch], minlength=3) / steps
        # The tolerance is five standard deviations of a task's share of the draws.
        assert np.all(np.abs(found - share) < 5 * np.sqrt(share * (1 - share) / steps))


def test_round_robin_draws_every_task_in_turn() -> None:
    config = SamplingConfig(sampler="round_robin", steps_per_epoch=4)
    assert draw_tasks(config, SIZES, num_steps=7, seed=0).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_draws_depend_only_on_seed_and_epoch() -> None:
    config = SamplingConfig(sampler="square_root", steps_per_epoch=50)
    draws = draw_tasks(config, SIZES, num_steps=150, seed=0)
    assert len(draws) == 150
    np.testing.assert_array_equal(draw_tasks(config, SIZES, num_steps=120, seed=0), draws[:120])
    assert not np.array_equal(draws[:50], draws[50:100])
    assert not np.array_equal(draws, draw_tasks(config, SIZES, num_steps=150, seed=1))
