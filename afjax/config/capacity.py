"""Capacity limits of a routed model."""

import dataclasses

from afjax.config.from_dict import Settings
from afjax.config.ranges import PositiveInt
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Capacity(Settings, name="capacity"):
    """Capacity limits of a :class:`RoutedModel`.

    The limits determine the shapes of the model's compiled programs.

    Attributes:
      resident: Maximum number of adapters, fusions or heads of the same form on the device at once. The rest stay in
        host memory. When needed, they replace the least recently used model on the device. None makes room for all
        models passed to the constructor.
      batch_sizes: The allowed batch sizes. Rows of similar length are batched together to minimize the estimated time,
        and batches are padded with empty rows.
      tasks_per_row: Number of tasks that ``predict_all`` evaluates at a time for each row.
      lengths: The padded lengths of batches. If empty, multiples of a quarter of the largest ``max_length`` that the
        tasks were trained with.

    Raises:
      UserError: A field has the wrong type, or its values are empty, not positive, or not in ascending order.

    Example:
      >>> from afjax import Capacity
      >>> Capacity(resident=64, batch_sizes=(1, 32), lengths=(32, 128))
      Capacity(resident=64, batch_sizes=(1, 32), lengths=(32, 128))
    """

    resident: PositiveInt | None = None
    batch_sizes: tuple[PositiveInt, ...] = (1, 8, 32)
    tasks_per_row: PositiveInt = 16
    lengths: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.batch_sizes:
            raise UserError("capacity.batch_sizes is empty; set at least one batch size, for example (8, 32).")
        for field in ("batch_sizes", "lengths"):
            values = getattr(self, field)
            if list(values) != sorted(set(values)):
                raise UserError(
                    f"capacity.{field} is {values}; use distinct numbers in ascending order, such as (8, 32)."
                )
