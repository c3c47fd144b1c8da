"""Compares a routed model on several devices with each task's own model.

Tests run ``routed.py TRUNK``.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from random_tasks import random_task

from afjax import Capacity, RoutedModel, load_trunk
from afjax.config.adapters import AdapterConfig, LoraConfig
from afjax.config.fusion import FusionConfig

TEXTS = ["all cats are small", "no dogs", "some small cats are not dogs", "no cats", "all dogs", "some dogs", "cats"]


def check(prediction: Any, expected: Any) -> None:
    np.testing.assert_allclose(prediction["logits"], expected.logits[0], rtol=2e-4, atol=2e-5)


trunk = load_trunk(sys.argv[1])
bottleneck = AdapterConfig(size=4)
models = {
    "bottleneck": random_task(trunk, "bottleneck", bottleneck),
    "lora": random_task(trunk, "lora", LoraConfig(rank=2)),
    "fused": random_task(trunk, "fused", bottleneck, bottleneck, fusion=FusionConfig()),
    "head": random_task(trunk, "head"),
}
# The batch sizes are rounded up to 4 and 8 rows, so that each of the 4 devices has the same number of rows.
capacity = Capacity(batch_sizes=(1, 6), lengths=(16,), tasks_per_row=4)
routed = RoutedModel(trunk, models, capacity)
routed.warm_up(all_tasks=True)
names = [*models, *models][: len(TEXTS)]
for text, name, prediction in zip(TEXTS, names, routed.predict(TEXTS, names), strict=True):
    check(prediction, models[name].predict([text]))
for text, row in zip(TEXTS, routed.predict_all(TEXTS), strict=True):
    for name, prediction in row.items():
        check(prediction, models[name].predict([text]))
kernel = routed.params()["trunk"]["layers"]["0"]["ffn"]["output"]["kernel"]
print(jax.device_count(), routed.max_batch, len(kernel.addressable_shards), kernel.sharding.is_fully_replicated)
