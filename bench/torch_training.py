"""The training loop shared by the `adapters` worker scripts."""

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader


def train(
    model: Any,
    batches: DataLoader,
    settings: dict[str, Any],
    *,
    penalty: Callable[[], Any] | None = None,
    evaluate: Callable[[], None] | None = None,
) -> int:
    """Trains with AdamW and linear learning-rate decay.

    As in afjax, weight decay only applies to matrices.

    Args:
      model: The model. Only the parameters to train require gradients.
      batches: The batches of one epoch.
      settings: ``learning_rate``, ``weight_decay``, and ``epochs`` or ``steps``. ``evaluate`` also needs
        ``eval_every``.
      penalty: Computes a term that is added to the loss.
      evaluate: Is called after every ``eval_every`` steps.

    Returns:
      The number of steps.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": settings["weight_decay"]},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"])
    steps = settings.get("steps") or math.ceil(settings["epochs"] * len(batches))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, steps)
    model.train()
    done = 0
    while done < steps:
        for batch in batches:
            loss = model(**batch).loss
            if penalty is not None:
                loss = loss + penalty()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if evaluate is not None and done % settings["eval_every"] == 0:
                evaluate()
                model.train()
            if done == steps:
                break
    return done
