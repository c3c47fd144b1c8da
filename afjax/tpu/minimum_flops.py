"""Computes the minimum number of operations in a training or evaluation step.

Only matrix products are counted, as two operations per multiply-add (MAC). A product of ``x [n, a]`` and ``W [a, b]``
takes ``n a b`` MACs. In training, the gradient with respect to ``W`` takes the same number again if ``W`` is trained or
computed from trained parameters, and so does the gradient with respect to ``x`` if ``x`` depends on trained parameters.
The backward pass through a frozen trunk therefore computes no weight gradients and ends at the lowest trained
parameters. Every function below walks the forward pass and tracks whether values depend on trained parameters ("live").

``d`` is the hidden size, ``n`` the number of tokens and ``T`` the number of tokens per row. Elementwise arithmetic,
softmax, LayerNorm, embedding lookups and the optimizer are not counted.
"""

import dataclasses
from typing import Literal, Self

from afjax.adapters.kind import CountedLayer
from afjax.adapters.kinds import adapter_layers, dense_kind, slot_kind, top_kind
from afjax.config.adapters import AdapterConfig, BesideLayers, DenseLayer, InDenseLayers, OnTop
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.fusion.checks import is_factored
from afjax.model.model import Model
from afjax.nn.disentangled_attention import RelativeBuckets
from afjax.tpu.fusion_counts import FusionCounts
from afjax.trunk.pre_norm_layer import layer_forms

# A preset of afjax.model.partition.preset, or "nothing" for evaluation.
Trained = Literal["adapter", "fusion", "head", "full", "adapter+trunk", "layernorm", "top_k", "nothing"]

QUERY_KEY_VALUE: tuple[DenseLayer, ...] = ("query", "key", "value")


def minimum_flops(
    model: Model, trained: Trained, *, batch_size: int, length: int, num_outputs: int, top_k: int = 0
) -> int:
    """Computes the minimum number of floating-point operations in one step.

    If there are several exact ways to compute a result, the cheapest known one counts. Examples are computing the last
    layer for the first token only (if the head uses nothing else), first-token attention without keys and values, and
    factored or folded fusion (:mod:`afjax.fusion.factored`). In evaluation, a fusion is folded and an adapter in dense
    layers is merged before the step.

    Args:
      model: The model.
      trained: The partition preset; ``nothing`` for an evaluation step.
      batch_size: Rows in the global batch. For multiple choice, the total number of choices.
      length: Number of tokens per row.
      num_outputs: The head's number of outputs.
      top_k: Number of upper layers trained by the preset ``top_k``.

    Raises:
      UserError: The preset is ``top_k``, and ``top_k`` is not between 1 and the trunk's number of layers.
    """
    num_layers = model.trunk.num_layers
    if trained == "top_k" and not 0 < top_k <= num_layers:
        raise UserError(f"top_k is {top_k}, but the trunk has {counted(num_layers, 'layer')}; use 1 to {num_layers}.")
    return 2 * _Step(model, trained, batch_size, length, num_outputs, top_k).count()


@dataclasses.dataclass
class _Step:
    """Walks a step's forward pass and counts its multiply-adds.

    Attributes:
      model, trained, length, num_outputs, top_k: As in :func:`minimum_flops`.
      rows: Rows in the batch.
      inside: The adapter in the dense layers of the encoder layer that is being counted, or None.
      macs: Multiply-adds counted so far.
    """

    model: Model
    trained: Trained
    rows: int
    length: int
    num_outputs: int
    top_k: int
    inside: InDenseLayers | None = None
    macs: int = 0

    def count(self) -> int:
        """Counts all MACs in the step."""
        model, trunk = self.model, self.model.trunk
        configs = [config for _, config in model.adapters]
        carried_norms = any(isinstance(config, AdapterConfig) and config.layer_norms for config in configs)
        # The embeddings and every layer have LayerNorms, so training them makes all activations live.
        norms = self.trained == "layernorm" or (carried_norms and self._trains_adapters())
        filled_layers = adapter_layers(configs[0], trunk.num_layers) if configs else ()

        trains_trunk = self.trained in ("full", "adapter+trunk")
        live = norms or trains_trunk
        if trunk.projects_embeddings:
            tokens = self.rows * self.length
            live = self.dense(tokens, trunk.input_size, trunk.hidden_size, trained=trains_trunk, live=live)
        for index in range(trunk.num_layers):
            first_token, filled = index == trunk.num_layers - 1 and model.first_token_only, index in filled_layers
            layer = dataclasses.replace(self, inside=self._in_dense_layers() if filled else None, macs=0)
            live = layer._layer(index, live, norms=norms, filled=filled, first_token=first_token)
            self.macs += layer.macs
        for config in configs:
            if isinstance(config, OnTop):
                count = top_kind(config).count
                first_token, trained = model.pools_first_token, self._trains_adapters()
                live = count(self, config, trunk, trained=trained, live=live, first_token=first_token)
        self._head(live)
        return self.macs

    # Products.

    def product(self, macs: int, *live: bool) -> bool:
        """Adds a matrix product.

        Args:
          macs: Multiply-adds in the forward pass.
          *live: Whether each factor is live.

        Returns:
          Whether the result is live.
        """
        self.macs += macs * (1 + sum(live))
        return any(live)

    def dense(self, n: int, inputs: int, outputs: int, *, trained: bool, live: bool) -> bool:
        """Adds a dense layer over ``n`` tokens; returns whether its result is live."""
        return self.product(n * inputs * outputs, trained, live)

    def add_cheapest(self, *ways: Self) -> None:
        """Adds the cheapest of several ways to compute a result.

        Each way is counted separately, with :meth:`fresh`.
        """
        self.macs += min(way.macs for way in ways)

    def fresh(self) -> Self:
        """Returns a copy of this step with the MAC count reset to 0."""
        return dataclasses.replace(self, macs=0)

    # Trained parameters.

    def _trains_layer(self, index: int) -> bool:
        lowest = self.model.trunk.num_layers - self.top_k
        return self.trained in ("full", "adapter+trunk") or (self.trained == "top_k" and index >= lowest)

    def _trains_adapters(self) -> bool:
        return self.trained in ("adapter", "adapter+trunk")

    # Parts of the model.

    def _layer(self, index: int, live: bool, *, norms: bool, filled: bool, first_token: bool) -> bool:
        """Adds one encoder layer with its slots; returns whether its output is live.

        Without the slots, a layer takes 4 d² + 2 T d (attention) and 8 d² (FFN of size 4 d) MACs per token. Local
        attention attends to fewer than T tokens, and a gated FFN has three matrices.
        """
        trunk = self.model.trunk
        layer_input = live
        trained = self._trains_layer(index)
        n = self.rows if first_token else self.rows * self.length
        size, heads = trunk.hidden_size, trunk.num_heads
        if trunk.encoder_family.layer == "pre_norm":
            # In all but the first layer, the attention's input comes from the layer's own LayerNorm, so it is live if
            # that LayerNorm is trained.
            inputs, reach = live or (trained and index > 0), self._reach(index)
            live = self.rotary_attention(size, heads, trained, inputs, first_token=first_token, reach=reach)
        else:
            live = self.attention(
                size,
                heads,
                trained,
                live,
                first_token=first_token,
                buckets=trunk.relative_buckets,
                positions_live=norms or self.trained in ("full", "adapter+trunk"),
            )
        live = self._dense_layer("attention_output", n, size, size, trained=trained, live=live) or norms
        if filled:
            live = self._slot("attention", n, live, layer_input, first_token=first_token) or live
        live = self._dense_layer("intermediate", n, size, trunk.intermediate_outputs, trained=trained, live=live)
        live = self._dense_layer("output", n, trunk.intermediate_size, size, trained=trained, live=live) or norms
        if filled:
            live = self._slot("ffn", n, live, layer_input, first_token=first_token) or live
        return live

    def attention(
        self,
        size: int,
        num_heads: int,
        trained: bool,
        live: bool,
        *,
        first_token: bool,
        buckets: RelativeBuckets | None = None,
        positions_live: bool = False,
    ) -> bool:
        """Adds attention without its output matrix; returns whether its result is live.

        The query, key and value matrices are ``[size, size]``. For the first token only, ``q · (K x)`` equals
        ``(Kᵀ q) · x``. The key and value matrices are then multiplied by only one vector per head and row, and every
        token is multiplied twice by ``num_heads`` vectors.

        Args:
          size: The size of queries, keys and values.
          num_heads: Number of heads.
          trained: Whether the matrices are trained.
          live: Whether the input is live.
          first_token: Whether only the first token's output is computed.
          buckets: Relative positions of disentangled attention, or None. Their products with queries and keys count
            once per pair of tokens.
          positions_live: Whether the relative position embeddings are live.
        """
        n = self.rows * self.length

        def project(step: "_Step", name: DenseLayer, n: int, live: bool = live) -> bool:
            return step._dense_layer(name, n, size, size, trained=trained, live=live)

        if not first_token:
            query, key, value = (project(self, name, n) for name in QUERY_KEY_VALUE)
            weights = self.product(n * self.length * size, query, key)
            if buckets is not None:
                used = buckets.used(self.length)
                num_positions = used.stop - used.start
                position_key = project(self, "key", num_positions, positions_live)
                position_query = project(self, "query", num_positions, positions_live)
                weights = self.product(n * self.length * size, query, position_key) or weights
                weights = self.product(n * self.length * size, key, position_query) or weights
            return self.product(n * self.length * size, weights, value)
        reordered, plain = self.fresh(), self.fresh()
        query = reordered._first_query(size, trained, live)
        key, value = (reordered._merged(name, size, trained=trained) for name in QUERY_KEY_VALUE[1:])
        projected = reordered.product(self.rows * size * size, key, query)  # Kᵀ q
        weights = reordered.product(n * num_heads * size, projected, live)
        num_positions = 0 if buckets is None else buckets.used_by_first_token(self.length).stop
        if num_positions:
            query_matrix = self.fresh()._merged("query", size, trained=trained)
            position_key = reordered.product(num_positions * size * size, key, positions_live)
            position_query = reordered.product(num_positions * size * size, query_matrix, positions_live)
            weights = reordered.product(n * size, query, position_key) or weights
            reordered.product(self.length * size, position_query, trained)  # times the key's bias
            projected = reordered.product(self.length * size * size, key, position_query)
            weights = reordered.product(n * num_heads * size, projected, live) or weights
        sums = reordered.product(n * num_heads * size, weights, live)  # sums of tokens
        context = reordered.product(self.rows * size * size, value, sums)
        query, key, value = project(plain, "query", self.rows), project(plain, "key", n), project(plain, "value", n)
        weights = plain.product(n * size, query, key)
        if num_positions:
            weights = plain.product(n * size, query, project(plain, "key", num_positions, positions_live)) or weights
            weights = plain.product(n * size, key, project(plain, "query", num_positions, positions_live)) or weights
        plain.product(n * size, weights, value)
        self.add_cheapest(reordered, plain)
        return context

    def _reach(self, index: int) -> int | None:
        """Returns the maximum distance of tokens that attend to each other in a layer.

        None means that attention is global.
        """
        config = self.model.trunk
        forms = layer_forms(config)
        assert forms is not None, "the family has local attention"
        assert config.window is not None, "the family has local attention"
        return config.window // 2 if forms.is_local[index] else None

    def rotary_attention(
        self, size: int, num_heads: int, trained: bool, live: bool, *, first_token: bool, reach: int | None = None
    ) -> bool:
        """Adds an attention block with rotary positions, without its output matrix.

        For the first token only, the value matrix is treated as in :meth:`attention`. Because keys depend on their
        position, the key matrix must be multiplied by every attended token.

        Args:
          size, num_heads, trained, live, first_token: As in :meth:`attention`.
          reach: Maximum distance between tokens that attend to each other, or None for global attention.

        Returns:
          Whether the result is live.
        """
        reach = self.length if reach is None else min(reach, self.length)
        positions = range(1 if first_token else self.length)
        read = [min(at + reach, self.length - 1) - max(at - reach, 0) + 1 for at in positions]
        pairs, queries = self.rows * sum(read), self.rows * len(read)
        n = self.rows * (read[0] if first_token else self.length)

        def project(step: "_Step", name: DenseLayer, n: int) -> bool:
            return step._dense_layer(name, n, size, size, trained=trained, live=live)

        query, key = project(self, "query", queries), project(self, "key", n)
        if not first_token:
            weights = self.product(pairs * size, query, key)
            return self.product(pairs * size, weights, project(self, "value", n))
        # With one query per row, the keys' gradient is an outer product, which needs no multiply-adds.
        weights = self.product(pairs * size, query) or key
        reordered, plain = self.fresh(), self.fresh()
        value = reordered._merged("value", size, trained=trained)
        sums = reordered.product(pairs * num_heads * size, weights, live)  # sums of tokens
        context = reordered.product(self.rows * size * size, value, sums)
        project(plain, "value", n)
        plain.product(pairs * size, weights)
        self.add_cheapest(reordered, plain)
        return context

    def _first_query(self, size: int, trained: bool, live: bool) -> bool:
        """Adds the query of each row's first token; returns whether it is live.

        An adapter in the dense layer is merged first if that is cheaper.
        """
        apart, merged = self.fresh(), self.fresh()
        query = apart._dense_layer("query", self.rows, size, size, trained=trained, live=live)
        matrix = merged._merged("query", size, trained=trained)
        merged.product(self.rows * size * size, matrix, live)
        self.add_cheapest(apart, merged)
        return query

    def _dense_layer(self, name: DenseLayer, n: int, inputs: int, outputs: int, *, trained: bool, live: bool) -> bool:
        """Adds a dense layer with its adapter; returns whether its output is live."""
        inside = self.inside
        if inside is None or name not in inside.target_modules:
            return self.dense(n, inputs, outputs, trained=trained, live=live)
        layer = CountedLayer(name, n, inputs, outputs, trained, live)
        return dense_kind(inside).count(self, inside, layer, trained=self._trains_adapters())

    def _merged(self, name: DenseLayer, size: int, *, trained: bool) -> bool:
        """Adds the merge of an attention matrix's adapter; returns whether the matrix is live.

        Nothing is added if the dense layer has no adapter.
        """
        if self.inside is None or name not in self.inside.target_modules:
            return trained
        count = dense_kind(self.inside).count_merge
        return count(self, self.inside, size, size, trained=self._trains_adapters()) or trained

    def _in_dense_layers(self) -> InDenseLayers | None:
        """Returns the adapter in the trunk's dense layers, or None.

        In evaluation there is none, because it has been merged into the layers.
        """
        config = self.model.adapters[0][1]
        return config if isinstance(config, InDenseLayers) and self.trained != "nothing" else None

    def _slot(self, slot: str, n: int, live: bool, layer_input: bool, *, first_token: bool) -> bool:
        """Adds the adapters or the fusion of a slot; returns whether its output is live.

        Args:
          slot: ``attention`` or ``ffn``.
          n: Number of tokens.
          live: Whether the sub-layer's output is live.
          layer_input: Whether the layer's input is live.
          first_token: Whether only the first token of each row is computed.
        """
        configs = [config for _, config in self.model.adapters]
        if slot not in configs[0].slots or isinstance(configs[0], InDenseLayers):
            return live
        if self.model.fusion_name:
            return self._fusion(n, live, layer_input, first_token=first_token)
        config = configs[0]
        assert isinstance(config, AdapterConfig | BesideLayers), "other kinds do not fill slots after sub-layers"
        trained, d = self._trains_adapters(), self.model.trunk.hidden_size
        units = self._units(config, n, live, layer_input, trained, first_token=first_token)
        size = slot_kind(config).size(config, d)
        return self.dense(n, size, d, trained=trained, live=units) if size else units

    def _units(
        self,
        config: AdapterConfig | BesideLayers,
        n: int,
        live: bool,
        layer_input: bool,
        trained: bool,
        *,
        first_token: bool,
    ) -> bool:
        """Adds an adapter's inner activations; returns whether they are live."""
        if isinstance(config, BesideLayers) and config.placement == "parallel":
            live = layer_input
        d = self.model.trunk.hidden_size
        count = slot_kind(config).count_units
        return count(self, config, d, n, trained=trained, live=live, first_token=first_token)

    def _fusion(self, n: int, live: bool, layer_input: bool, *, first_token: bool) -> bool:
        """Adds a fusion of frozen adapters; returns whether its output is live.

        The count includes the adapters' inner activations and the cheapest way to mix the adapters' outputs.
        """
        d, trained = self.model.trunk.hidden_size, self.trained == "fusion"
        configs = [config for config in self.model.fused_configs() if isinstance(config, AdapterConfig | BesideLayers)]
        units = live
        for config in configs:
            units = self._units(config, n, live, layer_input, False, first_token=first_token) or units
        sizes = tuple(slot_kind(config).size(config, d) for config in configs)
        fusion = FusionCounts(d, sizes, has_value=self.model.fusion.value, trained=trained)
        if not is_factored(configs):
            return fusion.textbook(self, n, live, units)
        factored, folded = self.fresh(), self.fresh()
        fusion.factored(factored, n, live, units)
        fusion.folded(folded, n, live, units)
        self.add_cheapest(factored, folded)
        return trained or live or units

    def _head(self, live: bool) -> None:
        """Adds the head: pooler, hidden layers and output layer.

        A pooled head runs once per row. A token-level head has no pooler and runs once per token.
        """
        d, trained, head = self.model.trunk.hidden_size, self.trained != "nothing", self.model.head
        pooled = self.model.reads == "pooled"
        rows = self.rows if pooled else self.rows * self.length
        if pooled and head.pooler != "none":
            pooler = trained if head.pooler == "head" else self.trained in ("full", "adapter+trunk", "top_k")
            live = self.dense(rows, d, d, trained=pooler, live=live)
        for _ in range(head.hidden_layers):
            live = self.dense(rows, d, d, trained=trained, live=live)
        self.dense(rows, d, self.num_outputs, trained=trained, live=live)
