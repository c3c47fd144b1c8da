"""What an experiment is made of: frozen dataclasses, made once from an ml_collections config.

Nothing deeper in the package sees a ConfigDict. Every class checks the types and ranges of its fields when it is made,
from a file or in Python, so the rest of the code may trust them.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from afjax.config.architecture import Adapter, AdapterConfig, FusionConfig, HeadConfig
from afjax.config.from_dict import MAX_INT, check_fields, check_value, settings_repr, shown
from afjax.errors import UserError, did_you_mean

Partition = Literal["adapter", "adapter+trunk", "fusion", "head", "full", "layernorm", "top_k"]
# The default of train.learning_rate for each partition (docs/defaults.md).
LEARNING_RATES: Mapping[Partition, float] = types.MappingProxyType(
    {
        "head": 1e-3,
        "adapter": 1e-3,
        "fusion": 1e-3,
        "layernorm": 1e-3,
        "full": 5e-5,
        "top_k": 5e-5,
        "adapter+trunk": 1e-4,
    }
)
TrunkDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "matmuls", "layers"]
TaskKind = Literal["classification", "regression", "multiple_choice", "span"]
Sampler = Literal["annealed", "square_root", "proportional", "round_robin"]
Metric = Literal["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "exact_match"]

# The main metric of each kind of task, where the task names none.
MAIN_METRICS: Mapping[TaskKind, Metric] = types.MappingProxyType(
    {"classification": "accuracy", "regression": "pearson", "multiple_choice": "accuracy", "span": "f1"}
)


# File systems take names of 255 bytes. The longest that is made of an artefact's name is that of its reservation,
# "adapters-NAME.json.part".
MAX_NAME_BYTES = 236

# Only ratios of class weights matter; float32 holds sums of weights in this range.
MIN_CLASS_WEIGHT, MAX_CLASS_WEIGHT = 1e-6, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanConfig:
    """How answers are found in long contexts (BERT's SQuAD set-up, which Houlsby 2019 follows).

    Attributes:
      doc_stride: A context longer than a row is read in windows; tokens from one window's beginning to the next's. (The
        ``stride`` of Hugging Face's tokenizers is what two windows share.)
      max_question_length: Longer questions are cut to as many tokens, and to half of a row.
      max_answer_length: Tokens an answer may have.
      no_answer: Whether a question may have no answer (SQuAD v2).
      no_answer_threshold: A question has none where the score of "no answer" is above the best answer's by more.
      num_best: How many answers a prediction lists.
    """

    doc_stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    no_answer: bool = False
    no_answer_threshold: float = 0.0
    num_best: int = 20

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "span")
        for field in ("doc_stride", "max_question_length", "max_answer_length", "num_best"):
            if getattr(self, field) < 1:
                raise UserError(f"A task's span.{field} is {getattr(self, field)}; it must be at least 1.")
        if not math.isfinite(self.no_answer_threshold):
            raise UserError(f"A task's span.no_answer_threshold is {self.no_answer_threshold}; it must be finite.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled dataset and how it is scored.

    Attributes:
      name: The task's name; names of adapters and heads default to it. No ``/`` or comma.
      source: A folder with ``train`` and optionally ``dev`` and ``test`` files (``.jsonl``, ``.tsv``, ``.csv``, each
        also ``.gz``) and ``labels.json``; one such file, which holds the train rows; ``official:NAME:FOLDER``, the
        folder that holds the benchmarks' own downloads; ``builtin:NAME``; or ``tfds:NAME``. A folder, a file, and the
        folder of a prepared TFDS dataset may be on ``gs://``; they are copied to the cache.
      train, dev, test: Files to use in place of the folder's, relative to it (or names of TFDS splits).
      dev_share: The share of the train rows that becomes the dev split if the task has none. A hash of a row's texts
        decides, so equal rows are in the same split, and neither the order of the rows nor other rows matter. 0: no
        dev split is made, and the task is refused.
      kind: Classification; regression; multiple choice (rows of a context and its choices); or span (rows of a question
        and the context that its answer is cut from).
      labels: Label names in order; empty: ``labels.json`` of the folder, else those of the train split. Those of
        multiple choice name the first, second, ... choice.
      text_a, text_b, label: Column names; empty: ``text_a``/``text_b`` or ``text``, and ``label``. Of multiple choice
        and span ``text_a`` is the context (``context``), ``text_b`` the question (``question``; multiple choice need
        not have one) and ``label`` of span the answers (``answers``).
      choices: Columns of multiple choice: one that holds a list, or one for each choice; empty: ``choices``.
      train_rows: Trains on as many of the train rows, evenly spaced; 0: on all.
      metric: The dev metric that early stopping follows; empty: accuracy, Pearson for regression, F1 for span.
      span: Windows and answers of a span task.
      scale: Regression learns labels divided by it, and predictions are multiplied by it. Stickland & Murray 2019 have
        5 for STS-B, so that its loss is of the size of the other tasks'.
    """

    name: str
    source: str = ""
    train: str = ""
    dev: str = ""
    test: str = ""
    dev_share: float = 0.1
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    choices: tuple[str, ...] = ()
    train_rows: int = 0
    metric: Metric | Literal[""] = ""
    scale: float = 1.0
    span: SpanConfig = SpanConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "task")
        check_name(self.name, "task")
        for label in self.labels:
            if not label.strip() or self.labels.count(label) > 1:
                raise UserError(
                    f"The task {self.name} has the label names {list(self.labels)}; give different names that are not "
                    "blank."
                )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"The task {self.name}'s scale is {self.scale}; it must be finite and above 0.")
        if self.scale != 1.0 and self.kind != "regression":
            raise UserError(f"The task {self.name} has a scale of {self.scale}, which only regression tasks can have.")
        if not 0 <= self.dev_share < 1:
            raise UserError(
                f"The task {self.name}'s dev_share is {self.dev_share}; it is a share of the train rows, at least 0 "
                "and below 1."
            )
        if self.train_rows < 0:
            raise UserError(f"The task {self.name}'s train_rows is {self.train_rows}; it must be 0 or more.")
        if self.choices and self.kind != "multiple_choice":
            raise UserError(
                f'The task {self.name} names choices, but its kind is "{self.kind}", not "multiple_choice".'
            )
        if self.span != SpanConfig() and self.kind != "span":
            raise UserError(f'The task {self.name} has span settings, but its kind is "{self.kind}", not "span".')

    @property
    def main_metric(self) -> str:
        return self.metric or MAIN_METRICS[self.kind]


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
class SourceConfig:
    """One source of a fusion: an adapter of the store, and how to train it where it is missing."""

    task: TaskConfig
    train: TrainConfig = TrainConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "source")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """All of one experiment.

    Attributes:
      recipe: ``single`` trains one partition on one task. ``fusion`` trains what is missing of its sources' adapters,
        then fuses them for the task. ``multitask`` trains one partition on several tasks, a step on one of them.
        ``sequential`` trains it on one task after the other, and scores the earlier ones each time.
      trunk: A Hugging Face id, a folder (local or ``gs://``), or ``minilm``.
      trunk_dtype: What the trunk computes in, and is kept in where it is frozen. ``bfloat16`` halves its memory and is
        faster where the hardware multiplies it faster; what is trained is kept, and updated, in float32.
      task: The task of ``single``, the target of ``fusion``.
      tasks: Those of ``multitask`` and ``sequential``, the latter in this order.
      name: Under which name results enter the store; empty: the task's name, with ``-fusion`` behind it for the fusion
        recipe. With several tasks each has its own name behind it: ``NAME-TASK``.
      seed: All randomness follows from it.
      partition: What is trained, but for the ``fusion`` recipe.
      top_k: Number of layers that the ``top_k`` partition trains.
      adapter: The adapters' architecture (of every source, for the fusion recipe; of every task's, for multitask).
      fusion, head, train, sampling: As their names say; ``train`` is that of the target's run.
      sources: The fusion recipe's source tasks.
      fused: Which of them are fused, by name; empty: all. The others are trained to compare with.
      scan_layers: Whether the layers are one compiled loop (compiles in less than half the time) or unrolled (runs
        faster on CPU and TPU v5p; docs/scaling.md).
      remat: What the backward pass computes again instead of keeping it: nothing, all but the results of ``matmuls``
        and dropout masks, or all but each layer's input (``layers``). Results are the same.
      mesh: How devices share the work.
    """

    recipe: Literal["single", "fusion", "multitask", "sequential"] = "single"
    trunk: str = "minilm"
    trunk_dtype: TrunkDtype = "float32"
    task: TaskConfig | None = None
    tasks: tuple[TaskConfig, ...] = ()
    name: str = ""
    seed: int = 0
    partition: Partition = "adapter"
    top_k: int = 0
    adapter: Adapter = AdapterConfig()
    fusion: FusionConfig = FusionConfig()
    head: HeadConfig = HeadConfig()
    train: TrainConfig = TrainConfig()
    sampling: SamplingConfig = SamplingConfig()
    sources: tuple[SourceConfig, ...] = ()
    fused: tuple[str, ...] = ()
    scan_layers: bool = False
    remat: Remat = "none"
    mesh: MeshConfig = MeshConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "config", unbounded=("seed",))
        check_seed(self.seed)
        if self.name:
            check_name(self.name, "experiment")
        several = self.recipe in ("multitask", "sequential")
        wanted, unwanted = ("tasks", "task") if several else ("task", "tasks")
        if not getattr(self, wanted):
            raise UserError(f"config.{wanted} is missing; the {self.recipe} recipe needs it.")
        if getattr(self, unwanted):
            raise UserError(f"config.{unwanted} is given, but the {self.recipe} recipe takes config.{wanted} alone.")
        if self.recipe != "fusion" and (self.sources or self.fused):
            raise UserError(
                f"config.sources and config.fused are the fusion recipe's; this is the {self.recipe} recipe."
            )
        if self.recipe == "fusion" and not self.sources:
            raise UserError("The fusion recipe needs config.sources: one {task, train} for every adapter to fuse.")
        names = [source.task.name for source in self.sources]
        _check_distinct("sources", names)
        _check_distinct("tasks", [task.name for task in self.tasks])
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
        check_partition(self.partition, self.adapter)
        for task in self.tasks or (self.target,):
            check_name(self.artefact_name(task), "experiment")
        # The workdir records the rates themselves, so that a run does not depend on later defaults.
        trained: Partition = "fusion" if self.recipe == "fusion" else self.partition
        object.__setattr__(self, "train", self.train.with_rate(trained))
        with_rates = (dataclasses.replace(source, train=source.train.with_rate("adapter")) for source in self.sources)
        object.__setattr__(self, "sources", tuple(with_rates))

    @property
    def target(self) -> TaskConfig:
        """The one task of ``single`` and ``fusion``."""
        assert self.task is not None, "__post_init__ sees to it"
        return self.task

    @property
    def has_adapter(self) -> bool:
        """Whether the partition trains adapters."""
        return self.partition in ("adapter", "adapter+trunk")

    @property
    def trains_trunk(self) -> bool:
        return self.recipe != "fusion" and self.partition in ("adapter+trunk", "full", "layernorm", "top_k")

    def artefact_name(self, task: TaskConfig) -> str:
        """Under which name what was trained for one of its tasks enters the store."""
        if self.tasks:
            return f"{self.name}-{task.name}" if self.name else task.name
        return self.name or task.name + ("-fusion" if self.recipe == "fusion" else "")


# jax.random.key makes the same key of seeds that differ by a multiple of this.
NUM_SEEDS = 2**32


def check_seed(seed: int) -> None:
    """Raises UserError unless the seed is an integer with a random key of its own: 0 to 4294967295."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < NUM_SEEDS:
        raise UserError(f"The seed is {shown(seed)}; it must be an int from 0 to {NUM_SEEDS - 1}.")


def check_partition(partition: Partition, adapter: Adapter) -> None:
    """Raises UserError where a partition cannot be trained, or not with this adapter."""
    check_value(Partition, partition, "The partition")
    if partition == "fusion":
        raise UserError('A fusion is trained by the fusion recipe, not by partition="fusion".')
    if partition == "adapter+trunk" and isinstance(adapter, AdapterConfig) and adapter.layer_norms:
        raise UserError(
            'partition="adapter+trunk" trains the trunk\'s own LayerNorms; an adapter with layer_norms=True would '
            "carry copies of them: set adapter.layer_norms=False."
        )


def _check_distinct(field: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"config.{field} has two tasks named {', '.join(twice)}; give each its own name.")


def check_name(name: str, kind: str) -> None:
    """Raises UserError unless ``name`` can be a folder's name and a key of a tree."""
    unusable = name.startswith(".") or any(sign in name for sign in "/\\,:") or not name.isprintable()
    if not name or unusable or name != name.strip():
        raise UserError(
            f'The {kind} name "{name}" cannot be used; take letters, digits, "_", "-" and "." (not in front), '
            'without "/", "\\", ":" or a comma.'
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise UserError(
            f'The {kind} name "{name[:40]}..." has {len(name.encode())} bytes; take a name of at most '
            f"{MAX_NAME_BYTES} bytes."
        )
