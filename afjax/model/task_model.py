"""Task models: a trunk, a head and optional adapters, trained for one task."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from afjax.config.adapters import Adapter
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.config.tasks import TaskConfig
from afjax.config.values import Pooling
from afjax.data.batches import Batching
from afjax.data.dataframes import is_table
from afjax.data.lengths import inference_lengths
from afjax.data.over_rows import check_outputs, over_rows
from afjax.data.splits import AnyRows, check_same_form
from afjax.data.tokenization import TokenizedRows
from afjax.display.html import table
from afjax.distributed.sharding import local_mesh, shard
from afjax.errors import UserError
from afjax.model import editing
from afjax.model.facts import facts
from afjax.model.model import Model
from afjax.model.names import common_names, renamed, with_common_names
from afjax.model.saving import save_models
from afjax.model.setup import check_head, check_params
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists, rows_from_table
from afjax.tasks.metrics import confusion_matrix
from afjax.tasks.multi_label import with_best_threshold
from afjax.tasks.predictions import Predictions
from afjax.tasks.scores import split_scores
from afjax.tasks.tokenize import tokenize
from afjax.trees import Tree, tree_digest
from afjax.trunk.embedding import embed_texts
from afjax.trunk.hugging_face import without_unused
from afjax.trunk.layers import join_layers
from afjax.trunk.merged import merged_trunk
from afjax.trunk.pretrained import Trunk, check_length

# A jitted function ``step(model, params, batch)``, where ``model`` is static.
ModelStep = Callable[..., Any]


# Models are compared by identity, because comparing all parameters would be slow.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TaskModel:
    """A trained model for one task: a trunk, a head, and optional adapters.

    It can have no adapter, one adapter, or a fusion of several.

    Attributes:
      trunk: The encoder.
      model: The model, without its parameters.
      params: ``{"adapters", "fusion", "heads"}``, trees by name, on the host. The trunk's parameters are in ``trunk``.
      task: The task.
      labels: Label names in the order of the outputs, or the names of the choices. Empty for regression and span.
      metrics: Dev metrics of the training run. Empty if an edit has changed the outputs.
      seed: Random seed of the training run.
      max_length: Maximum number of tokens per row in the training run.
      head_record: None if the head was trained with this model's adapter, fusion or trunk. Otherwise, the adapter,
        fusion or trunk that it was trained with, as in ``Manifest.trained_with``; empty if unknown.
      text_columns: Whether the model was trained on single texts (1) or pairs (2); see ``Rows.text_columns``. Other
        rows are rejected. None if unknown.

    Example:
      >>> import jax
      >>> from afjax import Method, TaskConfig, TaskModel, Trunk, rows_from_lists, single_setup
      >>> from afjax.trees import tree_digest
      >>> from afjax.trunk.config import TrunkConfig
      >>> from afjax.trunk.encoder import init_trunk
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
      >>> trunk = Trunk(name="tiny", config=config, params=params, sha256=tree_digest(params), folder=None)
      >>> setup = single_setup(Method(), config, name="reviews", reads="pooled", num_outputs=2)
      >>> params, task = setup.init(jax.random.key(1), trunk.params), TaskConfig(name="reviews")
      >>> rows = rows_from_lists(["Far too long.", "A fine film."], ["bad", "good"])
      >>> model = TaskModel.from_params(setup.model, params, trunk, task, rows, max_length=16)
      >>> model
      <TaskModel task reviews, kind classification, 2 labels bad, good, adapter reviews, head reviews, trunk tiny, ...>
      >>> model.without_layers([0]).model.adapters
      (('reviews', AdapterConfig(layers=(1,))),)
    """

    trunk: Trunk
    model: Model
    params: Tree
    task: TaskConfig
    labels: tuple[str, ...]
    metrics: Mapping[str, float]
    seed: int
    max_length: int
    head_record: Mapping[str, str] | None = None
    text_columns: int | None = None

    @classmethod
    def from_params(
        cls, model: Model, params: Tree, trunk: Trunk, task: TaskConfig, rows: AnyRows, *, max_length: int
    ) -> "TaskModel":
        """Creates a task model from parameters that you trained with your own code.

        Args:
          model: The model, for example ``Setup.model``.
          params: The parameter tree, with the roots ``adapters``, ``fusion`` and ``heads``, and optionally ``trunk``.
          trunk: The encoder. If your code trained it, save it with ``save_trunk`` and load it with ``load_trunk``.
          task: The task.
          rows: The training rows, which determine the label names and whether inputs are single texts or pairs.
          max_length: Maximum number of tokens per row in training.

        Returns:
          The model, on the host, with seed 0 and without dev metrics.

        Raises:
          UserError: The trunk in ``params``, the model's architecture or an adapter does not match ``trunk``, the trunk
            does not support ``max_length``, or the head does not match the task's kind or the rows' labels.
        """
        given = without_unused(join_layers(params["trunk"]), trunk.config) if "trunk" in params else None
        if given is not None and tree_digest(given) != trunk.sha256:
            raise UserError(
                'params["trunk"] does not match the argument trunk, so it would be ignored. If your code trained it, '
                "pass trunk.with_params(...) as trunk, and save it with save_trunk. If only its dtype or form differs, "
                'remove params["trunk"].'
            )
        check_length(max_length, trunk)
        check_params(model, params, trunk.config, trunk.params)
        check_head(model, params, trunk.params, task, rows.label_names)
        return cls(
            trunk=trunk,
            model=model,
            params={root: jax.tree.map(np.asarray, params.get(root, {})) for root in ("adapters", "fusion", "heads")},
            task=task,
            labels=rows.label_names,
            metrics={},
            seed=0,
            max_length=max_length,
            text_columns=rows.text_columns,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickling and copying, without cached values such as copies on devices."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        return f"<TaskModel {', '.join(f'{name} {value}' for name, value in facts(self))}>"

    def _repr_html_(self) -> str:
        """Shows the model's summary as an HTML table in notebooks."""
        return table(["task model", self.model.head_name], [[name, value] for name, value in facts(self)]).html

    def predict(
        self,
        texts: Iterable[Any],
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        fusion_attention: bool = False,
    ) -> Predictions:
        """Predicts labels, values or answers for texts or text pairs.

        Args:
          texts: Strings or pairs of strings; for multiple choice, ``(context, list of choices)``; for span,
            ``(question, context)``; for tagging, lists of words or strings. Alternatively, a table (a DataFrame, a
            Dataset or a dictionary of columns) with the task's columns, or a split's rows.
          batch_size: Rows per step.
          max_length: Maximum number of tokens per row. Longer rows are truncated or, for span and tagging, split into
            windows. Defaults to the maximum in training.
          fusion_attention: Whether to return the attention over adapters.

        Returns:
          The predictions, in the order of the texts.

        Raises:
          UserError: A text does not have the form that the task requires, ``batch_size`` is less than 1, the trunk does
            not support ``max_length``, or the model's outputs are NaN or infinite.
        """
        rows: AnyRows
        if isinstance(texts, AnyRows):
            rows = texts
        elif is_table(texts):
            rows = rows_from_table(texts, self.task, label_names=self.labels, labeled=False, name="texts")
        else:
            rows = rows_from_lists(texts, kind=self.task.kind)
        return self.predict_rows(rows, batch_size=batch_size, max_length=max_length, fusion_attention=fusion_attention)

    def predict_rows(
        self, rows: AnyRows, *, batch_size: int = 32, max_length: int | None = None, fusion_attention: bool = False
    ) -> Predictions:
        """Predicts labels, values or answers for the rows of a split.

        Args:
          rows: Rows from ``load_split`` or ``rows_from_lists``. Labels are ignored.
          batch_size: Rows per step.
          max_length: Maximum number of tokens per row. Longer rows are truncated or, for span and tagging, split into
            windows. Defaults to the maximum in training.
          fusion_attention: Whether to return the attention over adapters.

        Returns:
          The predictions, in the order of the rows.

        Raises:
          UserError: ``rows`` is empty or differs in form from the training rows, ``batch_size`` is less than 1, the
            trunk does not support ``max_length``, ``fusion_attention`` is set but the model has no fusion, or the
            model's outputs are NaN or infinite.
        """
        if fusion_attention:
            editing.fused_adapters(self.model)
        data = self.tokenized(rows, max_length)
        logits, attention = self._run(data, batch_size, max_length, fusion_attention)
        predictions = TASK_KINDS[self.task.kind].predict(logits, data, self.task, self.labels)
        if not attention:
            return predictions
        names, layers = editing.attention_axes(self.model)
        return dataclasses.replace(
            predictions,
            fusion_attention={slot: data.per_row(values) for slot, values in attention.items()},
            fusion_adapters=names,
            fusion_layers=layers,
        )

    @overload
    def evaluate(
        self, rows: Any, *, batch_size: int = ..., max_length: int | None = ..., confusion: Literal[False] = ...
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self, rows: Any, *, batch_size: int = ..., max_length: int | None = ..., confusion: bool
    ) -> dict[str, Any]: ...
    def evaluate(
        self, rows: Any, *, batch_size: int = 32, max_length: int | None = None, confusion: bool = False
    ) -> dict[str, Any]:
        """Computes all of the task's metrics on labeled rows.

        Args:
          rows: Rows from ``load_split`` or ``rows_from_lists``. Alternatively, a table (a DataFrame, a Dataset or a
            dictionary of columns) with the task's columns.
          batch_size: Rows per step.
          max_length: Maximum number of tokens per row. Longer rows are truncated or, for span and tagging, split into
            windows. Defaults to the maximum in training.
          confusion: Whether to add ``confusion``, a :class:`afjax.tasks.metrics.ConfusionMatrix`, to the metrics.

        Returns:
          ``{metric: score}``, and ``confusion`` if it was requested.

        Raises:
          UserError: The rows are empty, have no labels, have label names that do not match the head's, or differ in
            form from the training rows; a column, text or label of a table is invalid; ``batch_size`` or ``max_length``
            is invalid; the model's outputs are NaN or infinite; or a confusion matrix was requested for a task other
            than classification.
        """
        if not isinstance(rows, AnyRows):
            # The labels are in the order of the head's outputs, so an integer label may be an index into them.
            rows = rows_from_table(rows, self.task, label_names=self.labels, listed=True, name="rows")
        self.check_labels(rows)
        if confusion and not TASK_KINDS[self.task.kind].has_classes:
            raise UserError(
                f"The task {self.task.name} is a {self.task.kind.replace('_', '-')} task. Only classification tasks "
                "have a confusion matrix; evaluate this task without one."
            )
        data = self.tokenized(rows, max_length)
        logits = self._run(data, batch_size, max_length, False)[0]
        scores: dict[str, Any] = split_scores(logits, data, self.task, self.labels)
        if confusion:
            scores["confusion"] = confusion_matrix(logits, np.asarray(rows.labels), self.labels)
        return scores

    def check_labels(self, rows: AnyRows) -> None:
        """Checks that the model can be evaluated on rows.

        Args:
          rows: Rows of a split.

        Raises:
          UserError: The rows have no labels, or their labels do not match the head's or do not fit the task.
        """
        if rows.labels is None:
            raise UserError("These rows have no labels, so they cannot be scored; use predict instead.")
        TASK_KINDS[self.task.kind].check_labels(rows, self.task, "these rows")
        if TASK_KINDS[self.task.kind].named_outputs and rows.label_names != self.labels:
            raise UserError(
                f'The rows have the labels {list(rows.label_names)}, but the head "{self.model.head_name}" was trained '
                f"for {list(self.labels)}; use a task with the same labels in the same order."
            )

    def check_form(self, rows: AnyRows) -> None:
        """Checks that rows have the same form as the training rows.

        Args:
          rows: Rows of a split.

        Raises:
          UserError: The head was trained on pairs but the rows are single texts, or vice versa.
        """
        head = f'The rows that the head "{self.model.head_name}" was trained on'
        check_same_form(self.text_columns, head, rows, "these rows", "use rows of the same form as in training")

    def tokenized(self, rows: AnyRows, max_length: int | None = None) -> TokenizedRows:
        """Tokenizes rows for :meth:`logits`.

        Args:
          rows: Rows of a split.
          max_length: Maximum number of tokens per row. Defaults to the maximum in training.

        Returns:
          The token ids of all rows. For span tasks and tagging, there is one entry per window.

        Raises:
          UserError: ``rows`` is empty or differs in form from the training rows, or the trunk does not support
            ``max_length``.
        """
        if not len(rows):
            raise UserError("The split is empty; it must have at least one row.")
        self.check_form(rows)
        max_length = self.max_length if max_length is None else max_length
        check_length(max_length, self.trunk)
        return tokenize(rows, self._tokenizer, self.task, max_length=max_length, training=False, cache_dir=None)

    def embed(
        self,
        texts: Sequence[Any],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> np.ndarray:
        """Computes embeddings of texts or text pairs.

        These are the encoder's pooled outputs, with the adapter or fusion but without the head.

        Args:
          texts: Strings, or pairs of strings.
          pooling: ``first`` for the first token's hidden state, ``mean`` for the mean over all tokens. Defaults to the
            setting in the trunk's files.
          normalize: Whether to scale embeddings to unit norm. Defaults to the setting in the trunk's files if
            ``pooling`` is None, and to False otherwise.
          batch_size: Rows per step.
          max_length: Maximum number of tokens per row; longer rows are truncated. Defaults to the maximum in training.

        Returns:
          float32 ``[rows, hidden_size]``, in the order of the texts.

        Raises:
          UserError: ``texts`` is empty, the trunk does not support ``max_length``, ``pooling`` or ``batch_size`` is
            invalid, the embedding settings in the trunk's files are damaged or not supported, or embeddings are NaN or
            infinite.
        """
        max_length = self.max_length if max_length is None else max_length
        config = self.trunk.embedding_config(pooling=pooling, normalize=normalize, max_length=max_length, prompt="")
        return embed_texts(
            texts,
            # The adapter was trained with unchanged texts.
            dataclasses.replace(config, lowercase=False),
            model=self._merged._inference_model,
            params=self._merged._device_params,
            tokenizer=self._tokenizer,
            mesh=self._mesh,
            batch_size=batch_size,
        )

    def logits(self, data: TokenizedRows, *, batch_size: int = 32, max_length: int | None = None) -> np.ndarray:
        """Computes the logits of each row or, for span and tagging, each window.

        Args:
          data: The result of :meth:`tokenized`.
          batch_size: Rows per step.
          max_length: The same ``max_length`` as for :meth:`tokenized`. Defaults to the maximum in training.

        Returns:
          float32 ``[rows, num_outputs]``; for multiple choice ``[rows, choices]``, for span ``[windows, length, 2]``,
          for tagging ``[windows, length, tags]``. Missing choices have the lowest float32. Entries after the end of a
          window are arbitrary. For regression, logits are in the units of the labels.

        Raises:
          UserError: ``batch_size`` is less than 1, or a logit is NaN or infinite.
        """
        return self._run(data, batch_size, max_length, False)[0]

    def flops_per_row(self) -> float:
        """Counts the floating-point operations for predicting a full-length row.

        Returns:
          XLA's count for a row of ``max_length`` tokens. For multiple choice, this is one choice of a row.
        """
        batch = {
            "tokens": jax.ShapeDtypeStruct((1, self.max_length), jnp.int32),
            "types": jax.ShapeDtypeStruct((1, self.max_length), jnp.int32),
            "mask": jax.ShapeDtypeStruct((1, self.max_length), bool),
        }
        # Compile straight-line code, because XLA counts the body of a loop only once.
        model = dataclasses.replace(self._merged._inference_model, scan_layers=False)
        analysis: Any = _predict_step.lower(model, False, self._merged._device_params, batch).cost_analysis()
        return float(analysis["flops"])

    def _run(
        self, data: TokenizedRows, batch_size: int, max_length: int | None, fusion_attention: bool
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        def step(model: Model, params: Tree, batch: Mapping[str, Any]) -> Any:
            return _predict_step(model, fusion_attention, params, batch)

        logits, attention = self._merged.over_rows(step, data, batch_size=batch_size, max_length=max_length)
        return self.in_label_units(logits, data), attention

    def in_label_units(
        self, logits: Float[np.ndarray, "rows ..."], data: TokenizedRows
    ) -> Float[np.ndarray, "rows ..."]:
        """Scales a head's outputs to the units of the task's labels.

        Args:
          logits: The head's outputs for all entries of ``data``.
          data: The result of :meth:`tokenized`.

        Returns:
          The scaled logits, as returned by :meth:`logits`.

        Raises:
          UserError: A scaled logit is NaN or infinite.
        """
        if self.task.scale == 1.0:
            return logits
        with np.errstate(over="ignore"):
            scaled = logits * np.float32(self.task.scale)
        check_outputs(scaled, data, {"trunk": self.trunk.params, **self.params})
        return scaled

    def over_rows(
        self, step: ModelStep, data: TokenizedRows, *, batch_size: int = 32, max_length: int | None = None
    ) -> Any:
        """Runs ``step(model, params, batch)`` over all rows.

        See :func:`afjax.data.over_rows.over_rows`.

        Args:
          step: A jitted function, where ``model`` is static. It is called with a model that has common names
            (:func:`afjax.model.names.with_common_names`), and any fusion is folded.
          data: The result of :meth:`tokenized`.
          batch_size: Rows per step.
          max_length: The same ``max_length`` as for :meth:`tokenized`. Defaults to the maximum in training.

        Returns:
          The step's outputs for all rows (for span and tagging, all windows), as a tree of NumPy arrays.

        Raises:
          UserError: ``batch_size`` is less than 1, or an output is NaN or infinite.
        """
        step = functools.partial(step, self._inference_model)
        check_value(PositiveInt, batch_size, "batch_size")
        devices = self._mesh.size
        # Round the batch size up, so that every device gets the same number of rows.
        batch_size = -(-batch_size // devices) * devices
        max_length = self.max_length if max_length is None else max_length
        lengths = inference_lengths(data, batch_size=batch_size, max_length=max_length)
        batching = Batching(batch_size, lengths, self.model.trunk.pad_id)
        return over_rows(step, self._device_params, data, batching=batching, mesh=self._mesh)

    def for_inference(self) -> tuple[Model, Tree]:
        """Returns the model and all its parameters for inference, on the host.

        A fusion is folded, and the adapter is merged into the trunk if :meth:`predict` would merge it. For regression,
        multiply the logits by the task's ``scale``.

        Returns:
          The model, with common names (:func:`afjax.model.names.with_common_names`), and its parameters as NumPy arrays
          in a tree with the roots ``trunk``, ``adapters``, ``fusion`` and ``heads``.
        """
        return self._merged._inference_model, jax.device_get(self._merged._device_params)

    def without_layers(self, layers: Collection[int]) -> "TaskModel":
        """Drops the adapter or the fusion from some layers (AdapterDrop).

        The model is not retrained.

        Args:
          layers: Indices of trunk layers.

        Returns:
          A copy of the model with this change, without metrics.

        Raises:
          UserError: The model has no adapter, one of the layers has no adapter, or no adapter would remain.
        """
        return self._edited(*editing.without_layers(self.model, self.params, layers))

    def without_adapters(self, names: Collection[str]) -> "TaskModel":
        """Removes adapters from the fusion without retraining it.

        In each layer, the softmax is then over the remaining adapters.

        Args:
          names: Names of fused adapters.

        Returns:
          A copy of the model with this change, without metrics.

        Raises:
          UserError: The model has no fusion, a name is not fused, no adapter would remain, or the fusion has been
            pruned.
        """
        return self._edited(editing.without_adapters(self.model, names), self.params)

    def with_adapters(self, added: Mapping[str, tuple[Adapter, Tree]]) -> "TaskModel":
        """Adds adapters to the fusion without retraining it.

        Args:
          added: ``{name: (architecture, tree)}``, with pairs as returned by :func:`afjax.load_adapter`.

        Returns:
          A copy of the model with this change, without metrics.

        Raises:
          UserError: The model has no fusion, the fusion has been pruned, a name is already fused, or an adapter does
            not fit the trunk or the others.
        """
        return self._edited(*editing.with_adapters(self.model, self.params, added, self.trunk.params))

    def with_adapter(self, adapter: tuple[Adapter, Tree]) -> "TaskModel":
        """Replaces the adapter without retraining the head.

        Args:
          adapter: An architecture and a tree, from :func:`afjax.average_adapters` or :func:`afjax.load_adapter`.

        Returns:
          A copy of the model with the new adapter and without metrics. The adapter's name does not change; use
          :meth:`renamed` before you save the model under a different name.

        Raises:
          UserError: The model has a fusion or no adapter, or the new adapter does not fit the trunk.
        """
        return self._edited(*editing.with_adapter(self.model, self.params, adapter, self.trunk.params))

    def with_kept(self, kept: tuple[tuple[tuple[int, ...], ...], ...]) -> "TaskModel":
        """Prunes the fusion so that each layer keeps only some adapters.

        Args:
          kept: The indices of the adapters to keep; see ``FusionConfig.kept``.

        Returns:
          A copy of the model with this change, without metrics.

        Raises:
          UserError: The model has no fusion, or ``kept`` is not valid for it.
        """
        return self._edited(editing.with_kept(self.model, kept), self.params)

    def merged(self) -> "TaskModel":
        """Merges a ``lora`` or ``ia3`` adapter into the trunk's weights.

        The merged model has the same outputs up to rounding, and costs no more than the trunk itself. With a float32
        trunk, prediction, evaluation and embedding use merged weights anyway. With a bfloat16 trunk, they only do so in
        the last layer if the head reads only the first token, because rounding the merged weights to bfloat16 can lose
        small changes.

        Returns:
          A merged copy of the model, without an adapter. To use its trunk in other libraries, save it with
          ``save_trunk(folder, model.trunk)``.

        Raises:
          UserError: The model has no adapter, or one of a different kind.

        Reference:
          Hu et al. 2022, *LoRA: Low-Rank Adaptation of Large Language Models*, section 4.1.
        """
        model, params, trunk_params = editing.merged(self.model, self.params, self.trunk.params)
        trunk = dataclasses.replace(
            self.trunk,
            name=f"{self.trunk.name} with {self.model.adapters[0][0]}",
            params=trunk_params,
            sha256=tree_digest(trunk_params),
            trained=False,
        )
        return dataclasses.replace(self, model=model, params=params, trunk=trunk, head_record=None)

    def tune_threshold(self, rows: AnyRows, *, batch_size: int = 32) -> "TaskModel":
        """Tunes a multi-label task's threshold on labeled rows.

        The candidates are 0.01, 0.02, ..., 0.99. They are compared by the task's main metric if it is ``micro_f1`` or
        ``macro_f1``, and by micro F1 otherwise.

        Args:
          rows: Labeled rows, usually the dev split.
          batch_size: Rows per step.

        Returns:
          A copy of the model with the threshold in ``task.multi_label``, which :meth:`save` stores, and with the scores
          on these rows in ``metrics``.

        Raises:
          UserError: The task is not a multi-label task; the rows are empty, have no labels, have labels that do not
            match the head's, or differ in form from the training rows; ``batch_size`` is less than 1; or a logit is NaN
            or infinite.
        """
        if self.task.kind != "multi_label":
            raise UserError(
                f"The task {self.task.name} is of the kind {self.task.kind}; only multi_label has a threshold."
            )
        self.check_labels(rows)
        data = self.tokenized(rows)
        logits = self.logits(data, batch_size=batch_size)
        task = with_best_threshold(self.task, logits, data.true_labels)
        scores = split_scores(logits, data, task, self.labels)
        return dataclasses.replace(self, task=task, metrics={**self.metrics, **scores})

    def renamed(self, name: str) -> "TaskModel":
        """Renames the head and the fusion or adapter.

        Fused adapters keep their names.

        Args:
          name: The new name.

        Returns:
          A renamed copy of the model, with its metrics.

        Raises:
          UserError: The name cannot be used.
        """
        model, params = editing.renamed(self.model, self.params, name)
        return dataclasses.replace(self, model=model, params=params)

    def _edited(self, model: Model, params: Tree) -> "TaskModel":
        """Returns a copy with an edited model.

        It has no metrics, because the edit changes the outputs.
        """
        return dataclasses.replace(self, model=model, params=params, metrics={})

    @functools.cached_property
    def _merged(self) -> "TaskModel":
        """The model used for inference.

        This is the merged model if the adapter can be merged and the trunk is float32. Otherwise, it is this model.
        """
        if not editing.can_merge(self.model) or self.trunk.dtype != "float32":
            return self
        model, params, trunk_params = editing.merged(self.model, self.params, self.trunk.params)
        return dataclasses.replace(self, model=model, params=params, trunk=merged_trunk(self.trunk, trunk_params))

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.trunk.tokenizer()

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return local_mesh()

    @functools.cached_property
    def _device_params(self) -> Tree:
        """All parameters on this host's devices, in the fastest form for inference."""
        trunk = self.trunk.device_params(scan=self.model.scan_layers)
        params = shard(renamed(self.params, common_names(self.model)), self._mesh)
        return self._inference_model.fold({"trunk": trunk, **params})

    @functools.cached_property
    def _inference_model(self) -> Model:
        """The model with common names, so that models share compiled programs."""
        # The trunk's weights already have its dtype, and inference has no backward pass to rematerialize for.
        return dataclasses.replace(with_common_names(self.model), dtype=None, remat="none")

    def save(self, store_folder: str | Path, *, overwrite: bool = False, run: str = "") -> None:
        """Saves the head, and the fusion or adapter.

        Either all of them are saved or none. A trained trunk is written to its own folder first. Fused adapters are not
        saved, because they are already in the store.

        Args:
          store_folder: The store, local or ``gs://``.
          overwrite: Whether existing artifacts with these names may be replaced.
          run: Identifier of the training run that saves them; see :func:`afjax.store.save_all`.

        Raises:
          UserError: The store already has one of these names and ``overwrite`` is False; the store lacks the
            fusion's adapters, or has others, for example because layers were dropped; or the store or a trained
            trunk's folder cannot be written.
        """
        save_models(store_folder, [self], overwrite=overwrite, run=run)

    @property
    def num_outputs(self) -> int:
        """The head's number of outputs."""
        return TASK_KINDS[self.task.kind].num_outputs(self.labels)


# This function is at module level, so that all TaskModels share its compiled programs.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict_step(
    model: Model, fusion_attention: bool, params: Tree, batch: Mapping[str, Any]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes logits and, averaged over each row's tokens, the fusion attention."""
    outputs = model(params, batch, fusion_attention=fusion_attention)
    return outputs.logits, outputs.row_attention(batch["mask"]) if fusion_attention else {}
