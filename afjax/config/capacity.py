"""The limits of a routed model."""

import dataclasses

from afjax.config.from_dict import check_fields, settings_repr
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """The limits of a :class:`RoutedModel`. They determine the shapes of its programs.

    Attributes:
      resident: The number of adapters, fusions or heads of the same form that are on the device at once. Others are in
        the host's memory, and the least recently used one makes room. None for as many as the given models have.
      batch_sizes: The numbers of rows that a batch can have. Rows are split into batches of similar lengths so that the
        estimated time is as short as possible. A batch that is not full gets empty rows.
      tasks_per_row: The number of tasks that ``predict_all`` computes at a time for each row.
      lengths: The padded lengths of batches. If empty, the quarters of the tasks' largest length in training.

    Raises:
      UserError: A field has the wrong type, is empty or not positive, or is not in ascending order.

    Example:
      >>> from afjax import Capacity
      >>> Capacity(resident=64, batch_sizes=(1, 32), lengths=(32, 128))
      Capacity(resident=64, batch_sizes=(1, 32), lengths=(32, 128))
    """

    resident: int | None = None
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    tasks_per_row: int = 16
    lengths: tuple[int, ...] = ()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "capacity")
        if self.resident is not None and self.resident < 1:
            raise UserError(f"capacity.resident is {self.resident}; it must be at least 1, or None.")
        if self.tasks_per_row < 1:
            raise UserError(f"capacity.tasks_per_row is {self.tasks_per_row}; it must be at least 1.")
        if not self.batch_sizes:
            raise UserError("capacity.batch_sizes is empty; give at least one number of rows, as in (8, 32).")
        for field in ("batch_sizes", "lengths"):
            values = getattr(self, field)
            if list(values) != sorted(set(values)) or min(values, default=1) < 1:
                raise UserError(f"capacity.{field} is {values}; give numbers from 1 in ascending order, as in (8, 32).")
