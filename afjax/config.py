"""What an experiment is made of: frozen dataclasses, made once from an ml_collections config.

Nothing deeper in the package sees a ConfigDict. :func:`from_dict` refuses unknown keys and wrong
types, so the rest of the code may trust its fields.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from afjax.errors import UserError, did_you_mean

Position = Literal["attention", "ffn", "both"]
LayerNormPlace = Literal["before", "after", "both", "none"]
Activation = Literal["relu", "leaky_relu", "swish", "gelu", "gelu_tanh", "tanh"]
Partition = Literal["adapter", "fusion", "head", "full", "layernorm", "top_k"]
TrunkDtype = Literal["float32", "bfloat16"]
TaskKind = Literal["classification", "regression"]
Metric = Literal["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled dataset and how it is scored.

    Attributes:
      name: The task's name; names of adapters and heads default to it. No ``/`` or comma.
      source: A folder with ``train``, ``dev`` and perhaps ``test`` files (``.jsonl``, ``.tsv``, ``.csv``,
        each also ``.gz``) and perhaps ``labels.json``; ``builtin:NAME``; or ``tfds:NAME``.
      train, dev, test: Files that take the place of the folder's (or names of TFDS splits).
      kind: Classification or regression.
      labels: Label names in order; empty: ``labels.json`` of the folder, else those of the train split.
      text_a, text_b, label: Column names; empty: ``text_a``/``text_b`` or ``text``, and ``label``.
      metric: The dev metric that early stopping follows; empty: accuracy, or Pearson for regression.
    """

    name: str
    source: str = ""
    train: str = ""
    dev: str = ""
    test: str = ""
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    metric: Metric | Literal[""] = ""

    def __post_init__(self) -> None:
        check_name(self.name, "task")

    @property
    def main_metric(self) -> str:
        return self.metric or ("accuracy" if self.kind == "classification" else "pearson")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """A bottleneck adapter: every choice of AdapterFusion's search (appendix A.2), and Houlsby's.

    Attributes:
      position: After which sub-layers an adapter sits.
      pretrained_layer_norm: Where the trunk's own LayerNorm of that sub-layer is applied: to the
        adapter's input, after the adapter, both, or not at all.
      new_layer_norm: Where a trained LayerNorm is added: before the down- and/or after the
        up-projection.
      residual_from: What the adapter's output is added to: the ``sublayer`` output before the layer's
        residual and LayerNorm, the ``sum`` of that output and the layer's residual, or the adapter's
        own ``input``.
      residual_before_new_layer_norm: Whether that residual is added before the new LayerNorm behind
        the up-projection (which only matters where there is one).
      reduction_factor: The bottleneck's size is ``max(1, hidden_size // reduction_factor)``.
      size: The bottleneck's size itself; takes the place of ``reduction_factor``.
      activation: Between the projections. ``gelu`` is the exact one, ``gelu_tanh`` its approximation.
      init: Distribution of the kernels at the start (truncated: at two standard deviations).
      init_scale: Standard deviation of that distribution. Biases start at zero.
      scaling: A constant factor on the up-projection's output.
      layer_norms: Whether the adapter carries trained copies of every LayerNorm of the trunk
        (Houlsby 2019, section 2.1), which replace the trunk's while the adapter is active.
      layers: Indices of the layers that have an adapter; None: all.
    """

    position: Position = "ffn"
    pretrained_layer_norm: LayerNormPlace = "both"
    new_layer_norm: LayerNormPlace = "none"
    residual_from: Literal["sublayer", "sum", "input"] = "sublayer"
    residual_before_new_layer_norm: bool = False
    reduction_factor: float = 16.0
    size: int | None = None
    activation: Activation = "relu"
    init: Literal["normal", "truncated_normal"] = "normal"
    init_scale: float = 0.02
    scaling: float = 1.0
    layer_norms: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UserError(f"adapter.size is {self.size}; it must be at least 1.")
        if not (math.isfinite(self.reduction_factor) and self.reduction_factor > 0):
            raise UserError(f"adapter.reduction_factor is {self.reduction_factor}; it must be above 0.")
        if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
            raise UserError(f"adapter.init_scale is {self.init_scale}; it must be finite and 0 or more.")
        if not math.isfinite(self.scaling):
            raise UserError(f"adapter.scaling is {self.scaling}; it must be finite.")
        if self.layers is not None:
            if not self.layers or len(set(self.layers)) != len(self.layers) or min(self.layers) < 0:
                raise UserError(
                    f"adapter.layers is {self.layers}; give distinct indices from 0 on, or None for all layers."
                )
            object.__setattr__(self, "layers", tuple(sorted(self.layers)))
        if self.residual_from == "sum" and self.pretrained_layer_norm not in ("before", "both"):
            raise UserError(
                'adapter.residual_from="sum" needs pretrained_layer_norm "before" or "both": only then is '
                "the layer's residual added in front of the adapter."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The sub-layers that hold an adapter, in the order they run."""
        return ("attention", "ffn") if self.position == "both" else (self.position,)

    def bottleneck_size(self, hidden_size: int) -> int:
        if self.size is not None:
            return self.size
        return max(1, int(hidden_size // self.reduction_factor))


ADAPTER_PRESETS: Mapping[str, AdapterConfig] = types.MappingProxyType(
    {
        # AdapterFusion, section 3.1 and appendix A.2 (the search's winner).
        "pfeiffer": AdapterConfig(),
        # Houlsby 2019, section 2.1 and 3.1; size 64 is the default of the authors' code.
        "houlsby": AdapterConfig(
            position="both",
            pretrained_layer_norm="after",
            residual_from="sublayer",
            size=64,
            activation="gelu_tanh",
            init="truncated_normal",
            init_scale=1e-2,
            layer_norms=True,
        ),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """Attention over adapters (AdapterFusion, section 3.2).

    Attributes:
      value: Whether a value matrix is learnt ("dynamic"); without, the adapters' outputs are mixed as
        they are ("static").
      dropout: Dropout rate on the scores; None: the trunk's attention dropout.
      temperature: The scores are divided by it.
      init_scale: Standard deviation of the query and key kernels at the start.
      value_init_scale: Standard deviation of the noise added to the identity that V starts from.
      regularization: Weight of ``sum over layers of ||V - I||²`` in the loss.
    """

    value: bool = True
    dropout: float | None = None
    temperature: float = 1.0
    init_scale: float = 0.02
    value_init_scale: float = 1e-6
    regularization: float = 0.01

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UserError(f"fusion.temperature is {self.temperature}; it must be finite and above 0.")
        for field in ("init_scale", "value_init_scale", "regularization"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"fusion.{field} is {value}; it must be finite and 0 or more.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"fusion.dropout is {self.dropout}; it must be at least 0 and below 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The output layers of one task.

    Attributes:
      pooler: ``head``: the head has its own pooler (dense, tanh), started from the trunk's where it
        has one and trained with the head. ``trunk``: the trunk's pooler, shared by all tasks and as
        frozen or trained as the trunk is.
      dropout: Dropout rate in front of the output layer; None: the trunk's hidden dropout.
    """

    pooler: Literal["head", "trunk"] = "head"
    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise UserError(f"head.dropout is {self.dropout}; it must be at least 0 and below 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run: optimizer, schedule, batches, when to look and when to stop.

    Attributes:
      learning_rate: Peak rate; decays linearly to zero over the run.
      epochs: Passes over the train split.
      max_steps: Stops the schedule there instead, when above 0.
      batch_size: Rows a step.
      max_length: Tokens a row, special tokens included; longer rows are truncated.
      buckets: Padded lengths a batch may have; empty: a quarter, a half, three quarters and all of
        ``max_length``.
      warmup: Share of the steps in which the rate rises from zero.
      weight_decay: AdamW's, on kernels only (not on biases, LayerNorms or embeddings).
      clip_norm: Largest global norm of the trained leaves' gradients; 0: no clipping.
      adam_b1, adam_b2, adam_epsilon: Adam's own.
      dropout: Whether dropout acts in training.
      eval_every: Steps between looks at the dev split; 0: once an epoch.
      patience: Stops after this many looks without a better dev metric; 0: never. The best parameters
        are kept either way.
      checkpoint_every: Steps between checkpoints of the run; 0: at every look at the dev split.
      prng: Generator of the dropout masks. ``rbg`` is faster on TPU, ``threefry2x32`` on CPU.
    """

    learning_rate: float = 1e-4
    epochs: float = 10.0
    max_steps: int = 0
    batch_size: int = 32
    max_length: int = 128
    buckets: tuple[int, ...] = ()
    warmup: float = 0.0
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_epsilon: float = 1e-8
    dropout: bool = True
    eval_every: int = 0
    patience: int = 0
    checkpoint_every: int = 0
    prng: Literal["rbg", "threefry2x32"] = "threefry2x32"

    def __post_init__(self) -> None:
        for field, low in (("learning_rate", 0), ("epochs", 0), ("weight_decay", 0), ("clip_norm", 0)):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= low):
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
        if any(not 0 < length <= self.max_length for length in self.buckets):
            raise UserError(f"train.buckets is {self.buckets}; each must be from 1 to max_length={self.max_length}.")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The padded lengths, rising, the last of them ``max_length``."""
        quarters = (self.max_length * part // 4 for part in (1, 2, 3))
        return tuple(sorted({*(self.buckets or quarters), self.max_length}))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of a fusion: an adapter of the store, and how to train it where it is missing."""

    task: TaskConfig
    train: TrainConfig = TrainConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """All of one experiment.

    Attributes:
      recipe: ``single`` trains one partition on one task; ``fusion`` trains what is missing of its
        sources' adapters, then fuses them for the task.
      trunk: A Hugging Face id, a local folder, or ``minilm``.
      trunk_dtype: What the frozen trunk computes in. ``bfloat16`` halves its memory and is faster where the hardware
        multiplies it faster; what is trained stays float32.
      task: The (target) task.
      name: Under which name results enter the store; empty: the task's name, with ``-fusion`` behind
        it for the fusion recipe.
      seed: All randomness follows from it.
      partition: What the ``single`` recipe trains.
      top_k: Number of layers that the ``top_k`` partition trains.
      adapter: The adapters' architecture (of every source, for the fusion recipe).
      fusion, head, train: As their names say; ``train`` is that of the target's run.
      sources: The fusion recipe's source tasks.
      fused: Which of them are fused, by name; empty: all. The others are trained to compare with.
      scan_layers: Whether the layers are one compiled loop (compiles faster) or unrolled (runs faster
        on CPU).
    """

    recipe: Literal["single", "fusion"] = "single"
    trunk: str = "minilm"
    trunk_dtype: TrunkDtype = "float32"
    task: TaskConfig
    name: str = ""
    seed: int = 0
    partition: Partition = "adapter"
    top_k: int = 0
    adapter: AdapterConfig = AdapterConfig()
    fusion: FusionConfig = FusionConfig()
    head: HeadConfig = HeadConfig()
    train: TrainConfig = TrainConfig()
    sources: tuple[SourceConfig, ...] = ()
    fused: tuple[str, ...] = ()
    scan_layers: bool = False

    def __post_init__(self) -> None:
        if self.name:
            check_name(self.name, "experiment")
        if self.recipe == "fusion" and not self.sources:
            raise UserError("The fusion recipe needs config.sources: one {task, train} for every adapter to fuse.")
        names = [source.task.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"config.sources has two tasks named {', '.join(twice)}; give each its own name.")
        for name in self.fused:
            if name not in names:
                raise UserError(
                    f'config.fused names "{name}", which is no source; sources: {", ".join(names)}.'
                    f"{did_you_mean(name, names)}"
                )
        if len(set(self.fused)) != len(self.fused):
            raise UserError(f"config.fused is {self.fused}; name each source once.")
        if (self.partition == "top_k") != (self.top_k != 0) or self.top_k < 0:
            raise UserError(
                f'partition="{self.partition}" with top_k={self.top_k}: "top_k" and a top_k above 0 go together.'
            )

    @property
    def artefact_name(self) -> str:
        return self.name or self.task.name + ("-fusion" if self.recipe == "fusion" else "")


def check_name(name: str, kind: str) -> None:
    """Raises UserError unless ``name`` can be a folder's name and a key of a tree."""
    unusable = name.startswith(".") or any(sign in name for sign in "/\\,:") or not name.isprintable()
    if not name or unusable or name != name.strip():
        raise UserError(
            f'The {kind} name "{name}" cannot be used; take letters, digits, "_", "-" and "." (not in front), '
            'without "/", "\\", ":" or a comma.'
        )
