"""Training configs: optimizer, schedule, batches, task sampling and device mesh."""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal

from afjax.config.from_dict import MAX_INT, Settings
from afjax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Proportion, Range
from afjax.errors import UserError

Sampler = Literal["annealed", "square_root", "proportional", "round_robin"]
# Only the ratios of class weights matter. Within this range, float32 sums of weights are safe.
MIN_CLASS_WEIGHT, MAX_CLASS_WEIGHT = 1e-6, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TrainConfig(Settings, name="train"):
    """Settings of one training run.

    The settings cover the optimizer, its schedule, batches, evaluation and early stopping.

    Attributes:
      learning_rate: Peak learning rate, which decays linearly to zero over the run. None uses the trained partition's
        default (``LEARNING_RATES``).
      epochs: Passes over the train split. A run has at least one step, even if ``epochs`` is 0.
      max_steps: Number of training steps. If above 0, it overrides ``epochs``.
      batch_size: Rows per step.
      max_length: Maximum tokens per row, including special tokens; longer rows are truncated.
      buckets: Padded lengths of batches, in addition to ``max_length``. If empty, up to eight lengths are chosen based
        on the rows and the kind of device; see :func:`afjax.data.lengths.choose_lengths`.
      warmup: Fraction of the steps over which the learning rate increases linearly from zero.
      decay_from: Where the linear decay starts: ``warmup``, from the peak at the end of the warm-up; or ``start``, from
        step 0 as in BERT's optimizer. With ``start``, the rate drops at the end of the warm-up to the value it would
        have without a warm-up.
      weight_decay: AdamW's decoupled weight decay.
      weight_decay_on: The leaves to decay: ``kernels``, the linear layers' matrices; or ``weights``, all leaves except
        biases and LayerNorms, as in BERT's optimizer and the code of Houlsby 2019 and Stickland & Murray 2019.
        ``weights`` includes embeddings and the scales of LHUC and (IA)³. Decay pulls (IA)³'s scales, which start at 1,
        to 0.
      clip_norm: Maximum gradient norm; 0 for no clipping.
      clip_by: The norm to clip: the global norm over ``all`` trained leaves, or each ``tensor``'s norm, as in the code
        of Stickland & Murray 2019. Each layer's slice of a stacked leaf is a separate tensor.
      adam_b1, adam_b2, adam_epsilon: Adam's hyperparameters.
      adam_bias_correction: Whether to correct the bias of Adam's moments. BERT's optimizer, which Houlsby 2019 and
        Stickland & Murray 2019 use, does not.
      dropout: Whether dropout is active during training.
      eval_every: Steps between evaluations on the dev split; 0 to evaluate once per epoch.
      patience: Training stops after this many evaluations without a better dev metric; 0 to never stop early. The
        parameters with the best dev metric are kept in either case.
      checkpoint_every: Checkpoints are written at every evaluation and, if above 0, also every this many steps.
      class_weights: Weight of each label in the classification loss. Either ``{label: weight}``, with a default of 1
        for other labels, or ``balanced``, which weights a label by ``n / (labels that occur * count)`` if it occurs in
        ``count`` of the ``n`` train rows, as in scikit-learn. If empty, all labels have the same weight. A batch's loss
        is divided by the sum of its rows' weights, as in ``torch.nn.CrossEntropyLoss(weight=...)``, so scaling all
        weights has no effect. (scikit-learn sums the weighted losses, so scaling them acts like a larger ``C``.)
      label_smoothing: Probability mass of each classification target that is spread evenly over all labels, including
        the true one; at least 0 and below 1. Each label's term is multiplied by its class weight, as in
        ``torch.nn.CrossEntropyLoss(label_smoothing=...)``.
      prng: Random number generator for dropout masks. ``rbg`` suits a single TPU chip. ``threefry2x32`` is better on
        CPU, and also if several devices share a batch, because each device then generates only its own part of the
        random bits. With ``rbg``, every device generates all bits.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import TrainConfig
      >>> config = TrainConfig(learning_rate=2e-3, epochs=4, max_length=32)
      >>> config.num_steps(steps_per_epoch=250)
      1000
    """

    learning_rate: NonNegativeFloat | None = None
    epochs: NonNegativeFloat = 10.0
    max_steps: NonNegativeInt = 0
    batch_size: PositiveInt = 32
    max_length: Annotated[int, Range(least=4)] = 128
    buckets: tuple[int, ...] = ()
    warmup: Proportion = 0.0
    decay_from: Literal["warmup", "start"] = "warmup"
    weight_decay: NonNegativeFloat = 0.01
    weight_decay_on: Literal["kernels", "weights"] = "kernels"
    clip_norm: NonNegativeFloat = 1.0
    clip_by: Literal["all", "tensor"] = "all"
    adam_b1: Proportion = 0.9
    adam_b2: Proportion = 0.999
    adam_epsilon: PositiveFloat = 1e-8
    adam_bias_correction: bool = True
    dropout: bool = True
    eval_every: NonNegativeInt = 0
    patience: NonNegativeInt = 0
    checkpoint_every: NonNegativeInt = 0
    # Excluded from the hash, because mappings are not hashable. Equal configs still have equal hashes.
    class_weights: Mapping[str, float] | Literal["", "balanced"] = dataclasses.field(default="", hash=False)
    label_smoothing: Proportion = 0.0
    prng: Literal["rbg", "threefry2x32"] = "threefry2x32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.class_weights:
            # An empty mapping is equivalent to "".
            object.__setattr__(self, "class_weights", "")
        elif isinstance(self.class_weights, Mapping):
            for label, weight in self.class_weights.items():
                if not MIN_CLASS_WEIGHT <= weight <= MAX_CLASS_WEIGHT:
                    raise UserError(
                        f'train.class_weights has a weight of {weight} for the label "{label}"; it must be from '
                        f"{MIN_CLASS_WEIGHT} to {MAX_CLASS_WEIGHT:.0f}."
                    )
        if any(not 0 < length <= self.max_length for length in self.buckets):
            raise UserError(f"train.buckets is {self.buckets}; each must be from 1 to max_length={self.max_length}.")

    def num_steps(self, steps_per_epoch: int) -> int:
        """Returns the run's number of steps.

        This is ``max_steps`` if it is set. Otherwise, it is computed from ``epochs``.

        Raises:
          UserError: The number of steps exceeds the range of int32.
        """
        if self.max_steps:
            return self.max_steps
        num_steps = self.epochs * steps_per_epoch
        if num_steps > MAX_INT:
            raise UserError(
                f"train.epochs is {self.epochs}, which is {num_steps:.3g} steps at {steps_per_epoch} per epoch; "
                f"a run can have at most {MAX_INT} steps."
            )
        # The float product may be slightly too large: 0.07 * 100 is above 7.
        return max(1, math.ceil(Fraction(str(self.epochs)) * steps_per_epoch))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Data-independent padded lengths, in ascending order.

        These are ``buckets`` and ``max_length``, or multiples of a quarter of ``max_length`` if there are no buckets.
        """
        quarters = (self.max_length * part // 4 for part in (1, 2, 3))
        return tuple(sorted({*(self.buckets or quarters), self.max_length}))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SamplingConfig(Settings, name="sampling"):
    """Task sampling in multi-task training.

    Attributes:
      sampler: A task with N train rows (windows, for span and tagging) is sampled with probability proportional to N^α.
        ``proportional`` sets α = 1, ``square_root`` sets α = 0.5, and ``annealed`` sets
        ``α = 1 - 0.8 (e - 1) / (E - 1)`` in epoch e of E. ``round_robin`` cycles through the tasks instead.
      steps_per_epoch: Steps counted as one epoch. How often a task's rows are seen depends on the sampler.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import SamplingConfig
      >>> SamplingConfig(sampler="square_root", steps_per_epoch=100)
      SamplingConfig(sampler='square_root', steps_per_epoch=100)

    Reference:
      Stickland & Murray 2019, *BERT and PALs*, section 4.1.
    """

    sampler: Sampler = "annealed"
    steps_per_epoch: PositiveInt = 2400


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MeshConfig(Settings, name="mesh"):
    """Axis sizes of the device mesh. Their product is the number of devices.

    One size can be -1, in which case it is inferred from the others.

    Attributes:
      data: Data parallelism: number of parameter replicas, each processing different rows of a batch.
      fsdp: Fully sharded data parallelism: number of devices over which parameters and optimizer state are sharded.
        Parameters are gathered layer by layer, and each device processes different rows.
      tensor: Tensor parallelism: number of devices over which each layer's heads and hidden units are sharded. These
        devices process the same rows.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {"data": self.data, "fsdp": self.fsdp, "tensor": self.tensor}
        for axis, size in sizes.items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{axis} is {size}; it must be at least 1, or -1 for all remaining devices.")
        inferred = [f"mesh.{axis}" for axis, size in sizes.items() if size == -1]
        if len(inferred) > 1:
            raise UserError(f"{' and '.join(inferred)} are -1; set all but one of them to a number of devices.")
