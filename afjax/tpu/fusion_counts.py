"""Counts the multiply-adds (MACs) of a fusion of frozen adapters.

The computation of the adapters' inner activations is not included. ``d`` is the hidden size, N the number of adapters
and R their total bottleneck size. See :mod:`afjax.tpu.minimum_flops` for "live".
"""

import dataclasses

from afjax.adapters.kind import MacCounter


@dataclasses.dataclass(frozen=True)
class FusionCounts:
    """Counts one layer's fusion in each of its forms.

    Attributes:
      d: The hidden size.
      sizes: Each adapter's number of inner activations; 0 if its output is not computed by a matrix.
      has_value: Whether the fusion has a value matrix.
      trained: Whether the fusion is trained.
    """

    d: int
    sizes: tuple[int, ...]
    has_value: bool
    trained: bool

    def factored(self, step: MacCounter, n: int, live: bool, units: bool) -> None:
        """Adds a factored fusion: ``3 d² + 2 (R + N) d`` MACs per token.

        Args:
          step: The counter.
          n: Number of tokens.
          live: Whether the sub-layer's output is live.
          units: Whether the adapters' inner activations are live.
        """
        projected = self._projected_query(step, n, live)
        step.dense(n, self.d, self._columns, trained=False, live=projected)
        mixture = step.dense(n, self._columns, self.d, trained=False, live=projected or units)
        if self.has_value:
            step.dense(n, self.d, self.d, trained=self.trained, live=mixture)

    def folded(self, step: MacCounter, n: int, live: bool, units: bool) -> None:
        """Adds a folded fusion.

        It takes ``2 (R + N) d`` MACs per token, and in training ``3 (R + N) d²`` once. In training, the folded matrices
        are computed from trained parameters and therefore have gradients.

        Args:
          step, n, live, units: As in :meth:`factored`.
        """
        if self.trained:
            step.dense(self.d, self.d, self._columns, trained=True, live=False)  # Kᵀ Wᵀ
            step.dense(self.d, self.d, self._columns, trained=True, live=True)  # Qᵀ (Kᵀ Wᵀ)
            if self.has_value:
                step.dense(self.d, self.d, self._columns, trained=True, live=False)  # W V
        scores = step.dense(n, self.d, self._columns, trained=self.trained, live=live)
        step.dense(n, self._columns, self.d, trained=self.trained and self.has_value, live=scores or units)

    def textbook(self, step: MacCounter, n: int, live: bool, units: bool) -> bool:
        """Adds a fusion of adapters that are not linear in their inner activations.

        It takes ``3 d²`` MACs per token, plus the adapters' output matrices, if any.

        Args:
          step, n, live, units: As in :meth:`factored`.

        Returns:
          Whether the fusion's output is live.
        """
        for size in filter(None, self.sizes):
            step.dense(n, size, self.d, trained=False, live=units)
        projected = self._projected_query(step, n, live)
        if self.has_value:
            step.dense(n, self.d, self.d, trained=self.trained, live=projected or units)
        return self.trained or live or units

    @property
    def _columns(self) -> int:
        """The number of inner activations of all adapters, plus one bias per adapter."""
        return sum(self.sizes) + len(self.sizes)

    def _projected_query(self, step: MacCounter, n: int, live: bool) -> bool:
        """Adds the product of the query with Q and K; returns whether it is live.

        It takes ``2 d²`` MACs per token. In training, multiplying Q and K first can be cheaper: ``d²`` per token and
        ``d³`` once.
        """
        d, trained = self.d, self.trained
        apart, joined = step.fresh(), step.fresh()
        apart.dense(n, d, d, trained=trained, live=apart.dense(n, d, d, trained=trained, live=live))
        if trained:
            joined.dense(d, d, d, trained=True, live=True)
            joined.dense(n, d, d, trained=True, live=live)
        step.add_cheapest(apart, *([joined] if trained else []))
        return trained or live
