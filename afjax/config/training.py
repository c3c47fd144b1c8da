"""Training: optimizer, schedule, batches, task sampling, and the mesh of devices."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

from afjax.config.from_dict import MAX_INT, check_fields, settings_repr
from afjax.config.learning_rates import LEARNING_RATES
from afjax.config.values import Partition
from afjax.errors import UserError

Sampler = Literal["annealed", "square_root", "proportional", "round_robin"]
# Only ratios of class weights matter; float32 holds sums of weights in this range.
MIN_CLASS_WEIGHT, MAX_CLASS_WEIGHT = 1e-6, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run: optimizer, schedule, batches, when to look and when to stop.

    Attributes:
      learning_rate: Peak rate, which decays linearly to zero over the run. None: the default for what is trained
        (``LEARNING_RATES``).
      epochs: Passes over the train split.
      max_steps: Stops the schedule there instead, when above 0.
      batch_size: Rows a step.
      max_length: Tokens a row, special tokens included; longer rows are truncated.
      buckets: Padded lengths a batch may have, beside ``max_length``; empty: as few as keep padding below 15 % of the
        tokens, at most eight.
      warmup: Share of the steps in which the rate rises from zero.
      decay_from: Where the decay begins: at the peak, behind the ``warmup``; or at the ``start``, as in BERT's own
        optimizer, so that the rate falls from the peak to where it would be without a warm-up.
      weight_decay: AdamW's decoupled weight decay.
      weight_decay_on: Which leaves decay: ``kernels``, the matrices of linear layers; or ``weights``, everything except
        biases and LayerNorms, so embeddings and LHUC's scales too, as in BERT's own optimizer and the code of Houlsby
        2019 and of Stickland & Murray 2019.
      clip_norm: Largest norm of the trained leaves' gradients; 0: no clipping.
      clip_by: Whose norm that is: of all trained leaves together; or of each tensor, which is then clipped for itself,
        as in the optimizer of Stickland & Murray 2019's code (a layer's tensors are its own, stacked or not).
      adam_b1, adam_b2, adam_epsilon: Adam's own.
      adam_bias_correction: Whether Adam's moments are corrected for their start at zero. In BERT's own optimizer, which
        the code of Houlsby 2019 and of Stickland & Murray 2019 uses, they are not.
      dropout: Whether dropout acts in training.
      eval_every: Steps between looks at the dev split; 0: once an epoch.
      patience: Stops after this many looks without a better dev metric; 0: never. The best parameters
        are kept either way.
      checkpoint_every: Steps between checkpoints of the run; 0: at every look at the dev split.
      class_weights: How much each label of a classification task counts in the loss: ``{label: weight}``, where other
        labels have a weight of 1; or ``balanced``: a label with ``count`` of the ``n`` train rows gets
        ``n / (labels that occur * count)``, as in scikit-learn. Empty: all count alike. A batch's loss is divided by
        the sum of its rows' weights, as in ``torch.nn.CrossEntropyLoss(weight=...)``; a common factor of all weights
        therefore changes nothing. (scikit-learn adds up the weighted losses, where such a factor acts like a larger
        ``C``.)
      label_smoothing: Share of each classification target that is spread evenly over all labels, the right one
        included; at least 0 and below 1. Each label's term has that label's weight, as in
        ``torch.nn.CrossEntropyLoss(label_smoothing=...)``.
      prng: Generator of the dropout masks. ``rbg`` is made for one TPU chip; where several share a batch each of them
        draws the bits of all, and ``threefry2x32``, of which each draws its part, is the better. So it is on CPU.
    """

    learning_rate: float | None = None
    epochs: float = 10.0
    max_steps: int = 0
    batch_size: int = 32
    max_length: int = 128
    buckets: tuple[int, ...] = ()
    warmup: float = 0.0
    decay_from: Literal["warmup", "start"] = "warmup"
    weight_decay: float = 0.01
    weight_decay_on: Literal["kernels", "weights"] = "kernels"
    clip_norm: float = 1.0
    clip_by: Literal["all", "tensor"] = "all"
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_epsilon: float = 1e-8
    adam_bias_correction: bool = True
    dropout: bool = True
    eval_every: int = 0
    patience: int = 0
    checkpoint_every: int = 0
    # A mapping cannot be hashed; configs that are equal have equal hashes without it.
    class_weights: Mapping[str, float] | Literal["", "balanced"] = dataclasses.field(default="", hash=False)
    label_smoothing: float = 0.0
    prng: Literal["rbg", "threefry2x32"] = "threefry2x32"

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "train")
        for field, low in (("learning_rate", 0), ("epochs", 0), ("weight_decay", 0), ("clip_norm", 0)):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value >= low):
                raise UserError(f"train.{field} is {value}; it must be finite and at least {low}.")
        for field, least in (("batch_size", 1), ("max_length", 4)):
            if getattr(self, field) < least:
                raise UserError(f"train.{field} is {getattr(self, field)}; it must be at least {least}.")
        for field in ("max_steps", "eval_every", "patience", "checkpoint_every"):
            if getattr(self, field) < 0:
                raise UserError(f"train.{field} is {getattr(self, field)}; it must be 0 or more.")
        for field in ("adam_b1", "adam_b2"):
            if not 0 <= getattr(self, field) < 1:
                raise UserError(f"train.{field} is {getattr(self, field)}; it must be at least 0 and below 1.")
        if not (math.isfinite(self.adam_epsilon) and self.adam_epsilon > 0):
            raise UserError(f"train.adam_epsilon is {self.adam_epsilon}; it must be finite and above 0.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"train.warmup is {self.warmup}; it is a share of the steps, at least 0 and below 1.")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"train.label_smoothing is {self.label_smoothing}; it must be at least 0 and below 1.")
        if not self.class_weights:
            # An empty mapping says the same.
            object.__setattr__(self, "class_weights", "")
        elif isinstance(self.class_weights, Mapping):
            for label, weight in self.class_weights.items():
                if not MIN_CLASS_WEIGHT <= weight <= MAX_CLASS_WEIGHT:
                    raise UserError(
                        f'train.class_weights gives the label "{label}" a weight of {weight}; it must be from '
                        f"{MIN_CLASS_WEIGHT} to {MAX_CLASS_WEIGHT:.0f}."
                    )
        if any(not 0 < length <= self.max_length for length in self.buckets):
            raise UserError(f"train.buckets is {self.buckets}; each must be from 1 to max_length={self.max_length}.")

    def num_steps(self, steps_per_epoch: int) -> int:
        """The number of steps of a run: ``max_steps``, or else those of its ``epochs``.

        Raises:
          UserError: More steps than the devices can count.
        """
        if self.max_steps:
            return self.max_steps
        num_steps = self.epochs * steps_per_epoch
        if num_steps > MAX_INT:
            raise UserError(
                f"train.epochs is {self.epochs}, which makes {num_steps:.3g} steps of {steps_per_epoch} per epoch; "
                f"a run has at most {MAX_INT} steps."
            )
        return max(1, math.ceil(num_steps))

    def with_rate(self, trained: Partition) -> "TrainConfig":
        """Returns these settings with a learning rate: the given one, or the default for what is trained."""
        if self.learning_rate is not None:
            return self
        return dataclasses.replace(self, learning_rate=LEARNING_RATES[trained])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Padded lengths that do not look at rows: ``buckets`` or quarters, rising, the last of them ``max_length``."""
        quarters = (self.max_length * part // 4 for part in (1, 2, 3))
        return tuple(sorted({*(self.buckets or quarters), self.max_length}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Which task a multi-task step trains (Stickland & Murray 2019, section 4.1).

    Attributes:
      sampler: A task of N train rows is drawn with a probability proportional to N^α. ``proportional``: α = 1;
        ``square_root``: 0.5; ``annealed``: ``1 - 0.8 (e - 1) / (E - 1)`` in epoch e of E; ``round_robin``: each task
        in turn.
      steps_per_epoch: Steps of what is called an epoch; the train split is passed over as often as draws will have it.
    """

    sampler: Sampler = "annealed"
    steps_per_epoch: int = 2400

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "sampling")
        if self.steps_per_epoch < 1:
            raise UserError(f"sampling.steps_per_epoch is {self.steps_per_epoch}; it must be at least 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How many devices share what; the three sizes multiply to the number of devices.

    Attributes:
      data: Groups of devices that have all parameters, each with its own rows of a batch.
      fsdp: Devices that share the parameters and the optimizer's state, and gather them layer by layer; each has its
        own rows as well.
      tensor: Devices that share each layer's heads and inner units, and compute on the same rows.

    One of them may be -1: what the others leave.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "mesh")
        sizes = {"data": self.data, "fsdp": self.fsdp, "tensor": self.tensor}
        for axis, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{axis} is {size}; it must be at least 1, or -1 for what the others leave.")
        if list(sizes.values()).count(-1) > 1:
            raise UserError(f"The mesh {sizes} leaves more than one size open; give -1 once at most.")
