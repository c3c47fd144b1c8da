"""The fusion config."""

import dataclasses

from afjax.config.from_dict import Settings
from afjax.config.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, Proportion
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FusionConfig(Settings, name="fusion"):
    """Settings of AdapterFusion, an attention mechanism over adapters.

    Attributes:
      value: Whether to learn a value matrix V ("dynamic"). Without it, the attention averages the adapters' outputs
        directly ("static").
      dropout: Dropout rate for the attention scores. None uses the trunk's attention dropout.
      temperature: Divides the attention scores.
      init_scale: Standard deviation of the initial query and key kernels.
      value_init_scale: V is initialized to the identity plus noise with this standard deviation.
      regularization: Weight of ``sum over layers of ||V - I||²`` in the loss.
      subset: Number of adapters sampled at random for each training step; None for all adapters.
      kept: The adapters that remain after pruning, as indices for each slot and each layer with a fusion. All layers
        keep the same number. None for all adapters.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import FusionConfig
      >>> FusionConfig(value=False, temperature=2.0)  # without V, and with flatter attention
      FusionConfig(value=False, temperature=2.0)

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion*, section 3.2.
    """

    value: bool = True
    dropout: Proportion | None = None
    temperature: PositiveFloat = 1.0
    init_scale: NonNegativeFloat = 0.02
    value_init_scale: NonNegativeFloat = 1e-6
    regularization: NonNegativeFloat = 0.01
    subset: PositiveInt | None = None
    kept: tuple[tuple[tuple[int, ...], ...], ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = [layer_members for slot_layers in self.kept or () for layer_members in slot_layers]
        if self.kept is not None and (
            len({len(row) for row in rows}) != 1
            or any(len(set(row)) != len(row) or min(row, default=-1) < 0 for row in rows)
        ):
            raise UserError(
                f"fusion.kept is {self.kept}; every layer must have the same number of distinct adapter indices."
            )
