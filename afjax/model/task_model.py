"""A trunk with everything that makes it do one task: what training gives and the store holds."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from afjax import store
from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import Adapter
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.config.values import Pooling
from afjax.data.batches import Batching
from afjax.data.dataframes import is_table
from afjax.data.lengths import inference_lengths
from afjax.data.over_rows import check_outputs, over_rows, sum_over_rows
from afjax.data.splits import AnyRows, check_same_form
from afjax.data.tokenise import TokenisedRows
from afjax.display.html import listed, table
from afjax.distributed.sharding import local_mesh, place
from afjax.errors import UserError, did_you_mean
from afjax.fusion.pruning import drop_layers, left_layers, take_layers
from afjax.model import partition
from afjax.model.model import Model
from afjax.model.predictions import Predictions
from afjax.tasks.best_answers import best_answers
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists, rows_from_table
from afjax.tasks.metrics import confusion_matrix
from afjax.tasks.scores import split_scores
from afjax.tasks.tokenize import tokenize
from afjax.tasks.windows import TokenisedSpans
from afjax.trees import Tree, tree_digest
from afjax.trunk.embedding import embed_texts
from afjax.trunk.encoder import cast_trunk
from afjax.trunk.layers import fastest_form
from afjax.trunk.pretrained import Trunk, check_length, write_if_trained

# ``step(model, parameters, batch)``.
ModelStep = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A trunk, the adapters and perhaps the fusion in it, and a head.

    Attributes:
      trunk: The encoder.
      model: What is computed.
      params: ``{"adapters", "fusion", "heads"}``: trees by name, on the host. The trunk has its own.
      task: The task it does.
      labels: Label names in the order of the outputs, or of choices; empty for regression and span.
      metrics: Dev metrics of the training run.
      seed: Of that run.
      max_length: Tokens a row in that run.
      head_record: What the head was trained with, as ``Manifest.trained_with`` has it, if that is not what is in this
        model; empty if it is not known; None if the head was trained with what is in this model.
      text_columns: The form of the rows in that run, 1 for single texts and 2 for pairs (see ``Rows.text_columns``);
        rows of another form are refused. None if it is not known.
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
        """Makes a task model of parameters that your own code trained.

        Args:
          model: What is computed, as ``Setup.model``.
          params: The tree with the roots ``adapters``, ``fusion`` and ``heads``, and perhaps ``trunk``.
          trunk: The encoder. If your code trained it, write it with ``save_trunk`` and load it with ``load_trunk``.
          task: The task.
          rows: The rows that it was trained on: their label names and their form are recorded.
          max_length: Tokens per row in training.

        Raises:
          UserError: The parameters have another trunk than ``trunk``, or the head has another number of outputs than
            the rows have labels.
        """
        if "trunk" in params and tree_digest(partition.join_layers(params["trunk"])) != trunk.sha256:
            raise UserError(
                'The trunk in params["trunk"] is not the trunk that was given, so it would not be used. If your code '
                "trained it, write it with save_trunk(folder, dataclasses.replace(trunk, params=...)), and give "
                'load_trunk(folder). If it only has another dtype or form, leave params["trunk"] out.'
            )
        outputs = params["heads"][model.head_name]["output"]["bias"].shape[0]
        needed = TASK_KINDS[task.kind].num_outputs(rows.label_names)
        if outputs != needed:
            raise UserError(
                f"The head has {outputs} outputs, but the task {task.name} needs {needed} "
                f"(labels: {', '.join(rows.label_names) or 'none'}). Set up the model with num_outputs={needed}."
            )
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

    def __repr__(self) -> str:
        return f"<TaskModel {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        """The model's facts as a table, for notebooks."""
        return table(["task model", self.model.head_name], [[name, value] for name, value in self._facts()]).html

    def _facts(self) -> list[tuple[str, str]]:
        adapters = [name for name, _ in self.model.adapters]
        facts = [("task", self.task.name), ("kind", self.task.kind.replace("_", " "))]
        if self.labels:
            facts.append((f"{len(self.labels)} labels", listed(self.labels)))
        if self.model.fusion_name:
            facts += [("fusion", self.model.fusion_name), (f"of {len(adapters)} adapters", listed(adapters))]
        elif adapters:
            facts.append(("adapter", adapters[0]))
        facts += [("head", self.model.head_name), ("trunk", self.trunk.name)]
        facts += [(f"dev {name}", f"{value:.4f}") for name, value in self.metrics.items() if name != "step"]
        return [*facts, ("seed", str(self.seed)), ("max_length", str(self.max_length))]

    def predict(
        self,
        texts: Iterable[Any],
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        fusion_attention: bool = False,
    ) -> Predictions:
        """Predicts texts, or pairs of texts.

        Args:
          texts: Strings, or pairs of strings; for multiple choice pairs of a context and its list of choices; for span
            pairs of a question and its context. Or a table, with the columns that the model's task names.
          batch_size: Rows a step.
          max_length: Tokens a row, longer ones are cut; None: as in training.
          fusion_attention: Whether to return the attention over adapters.

        Raises:
          UserError: Not a list of texts, a length the trunk cannot take, no rows a step, or a model whose outputs are
            NaN or infinite.
        """
        if is_table(texts):
            rows = rows_from_table(texts, self.task, label_names=self.labels, labelled=False, name="texts")
        else:
            rows = rows_from_lists(texts, kind=self.task.kind)
        return self.predict_rows(
            rows,
            batch_size=batch_size,
            max_length=max_length,
            fusion_attention=fusion_attention,
        )

    def predict_rows(
        self, rows: AnyRows, *, batch_size: int = 32, max_length: int | None = None, fusion_attention: bool = False
    ) -> Predictions:
        """:meth:`predict` for rows that a file gave."""
        data = self.tokenised(rows, max_length)
        logits, attention = self._run(data, batch_size, max_length, fusion_attention)
        if isinstance(data, TokenisedSpans):
            predictions = self._answers(logits, data, attention)
        elif self.task.kind == "regression":
            nothing = np.zeros((len(logits), 0), np.float32)
            predictions = Predictions(logits, nothing, logits[:, 0].tolist(), attention)
        else:
            names = [self.labels[index] if index < len(self.labels) else str(index) for index in logits.argmax(-1)]
            predictions = Predictions(logits, _softmax(logits), names, attention)
        return self._with_names(predictions) if attention else predictions

    def _with_names(self, predictions: Predictions) -> Predictions:
        """The predictions with the names of the adapters and layers of their attention."""
        members, first = self._members(), self.model.adapters[0][1]
        layers = tuple(adapter_layers(first, self.trunk.config.num_layers))
        slots = first.slots
        if (kept := self.model.fusion.kept) is None:
            names = dict.fromkeys(slots, (tuple(members),) * len(layers))
        else:
            names = {
                slot: tuple(tuple(members[number] for number in of_layer) for of_layer in of_slot)
                for slot, of_slot in zip(slots, kept, strict=True)
            }
        return dataclasses.replace(predictions, fusion_adapters=names, fusion_layers=layers)

    def _answers(self, logits: np.ndarray, data: TokenisedSpans, attention: Mapping[str, np.ndarray]) -> Predictions:
        answers = best_answers(logits, data, self.task.span)
        scores = np.full((len(answers), max(map(len, answers))), np.finfo(np.float32).min, np.float32)
        for row, of_row in enumerate(answers):
            scores[row, : len(of_row)] = [answer.score for answer in of_row]
        lengths, windows = data.lengths, np.bincount(data.row_of, weights=data.lengths)
        shares = (lengths / windows[data.row_of]).astype(np.float32)  # [windows]
        of_rows = {}
        for slot, of_windows in attention.items():
            of_rows[slot] = np.zeros((len(answers), *of_windows.shape[1:]), of_windows.dtype)
            np.add.at(of_rows[slot], data.row_of, of_windows * shares[:, None, None])
        return Predictions(scores, _softmax(scores), [best[0].text for best in answers], of_rows, answers)

    @overload
    def evaluate(
        self,
        rows: Any,
        *,
        batch_size: int = ...,
        max_length: int | None = ...,
        confusion: Literal[False] = ...,
    ) -> dict[str, float]: ...
    @overload
    def evaluate(
        self, rows: Any, *, batch_size: int = ..., max_length: int | None = ..., confusion: bool
    ) -> dict[str, Any]: ...
    def evaluate(
        self, rows: Any, *, batch_size: int = 32, max_length: int | None = None, confusion: bool = False
    ) -> dict[str, Any]:
        """Every metric of the task over labelled rows.

        Args:
          rows: Rows of ``load_split`` or ``rows_from_lists``; or a table (a DataFrame, or a dictionary of columns),
            with the columns that the model's task names.
          batch_size: Rows per step.
          max_length: Tokens per row; longer rows are truncated. None: as in training.
          confusion: Whether to add ``confusion``, a :class:`afjax.tasks.metrics.ConfusionMatrix`, to the metrics.

        Raises:
          UserError: The rows have no labels, or other label names than the head; or a confusion matrix of another
            task than a classification task.
        """
        if not isinstance(rows, AnyRows):
            # The head lists its labels in the order of its outputs, so an integer label may be an index into them.
            rows = rows_from_table(rows, self.task, label_names=self.labels, listed=True, name="rows")
        self.check_labels(rows)
        if confusion and self.task.kind != "classification":
            raise UserError(
                f"The task {self.task.name} is a {self.task.kind.replace('_', ' ')} task. Only classification tasks "
                "have a confusion matrix; evaluate it without one."
            )
        data = self.tokenised(rows, max_length)
        logits = self._run(data, batch_size, max_length, False)[0]
        scores: dict[str, Any] = self.scores(logits, data)
        if confusion:
            scores["confusion"] = confusion_matrix(logits, np.asarray(rows.labels), self.labels)
        return scores

    def scores(self, logits: np.ndarray, data: TokenisedRows) -> dict[str, float]:
        """Every metric of the task, from the logits of rows that :meth:`check_labels` has let pass."""
        return split_scores(logits, data, self.task)

    def check_labels(self, rows: AnyRows) -> None:
        """Raises UserError where rows have no labels, or other label names than the head."""
        if rows.labels is None:
            raise UserError("These rows have no labels, so they cannot be scored; predict them instead.")
        if self.task.kind == "classification" and rows.label_names != self.labels:
            raise UserError(
                f'The rows have the labels {list(rows.label_names)}, but the head "{self.model.head_name}" was trained '
                f"for {list(self.labels)}; give a task with the same labels in the same order."
            )

    def check_form(self, rows: AnyRows) -> None:
        """Raises UserError if the head was trained on pairs and the rows are single texts, or the reverse."""
        head = f'The rows that the head "{self.model.head_name}" was trained on'
        check_same_form(self.text_columns, head, rows, "these rows", "give rows of the form that it was trained on")

    def tokenised(self, rows: AnyRows, max_length: int | None = None) -> TokenisedRows:
        """Rows as :meth:`logits` takes them; ``max_length`` as in :meth:`predict`."""
        if not len(rows):
            raise UserError("The split is empty; give at least one row.")
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
        """Embeds texts, or pairs of texts, with the encoder and its adapter or fusion; the head is not used.

        Args:
          texts: Strings, or pairs of strings.
          pooling, normalize: As in :meth:`afjax.Trunk.embed`; None for the trunk's own.
          batch_size: Rows per step.
          max_length: Tokens per row; longer rows are truncated. None: as in training.

        Returns:
          float32 ``[rows, hidden_size]``, in the order of the texts.

        Raises:
          UserError: No texts, files of the trunk that cannot be used, or a length that the trunk cannot take.
        """
        max_length = self.max_length if max_length is None else max_length
        return embed_texts(
            texts,
            self.trunk.embedding_config(pooling=pooling, normalize=normalize, max_length=max_length),
            model=self._nameless,
            params=self._device_params,
            tokenizer=self._tokenizer,
            mesh=self._mesh,
            batch_size=batch_size,
        )

    def logits(self, data: TokenisedRows, *, batch_size: int = 32, max_length: int | None = None) -> np.ndarray:
        """The model's logits of every row (of span: of every window); for regression in the units of the labels."""
        return self._run(data, batch_size, max_length, False)[0]

    def flops_per_row(self) -> float:
        """Floating-point operations that predict a row of ``max_length`` tokens, by XLA's count."""
        batch = {
            "tokens": jax.ShapeDtypeStruct((1, self.max_length), jnp.int32),
            "types": jax.ShapeDtypeStruct((1, self.max_length), jnp.int32),
            "mask": jax.ShapeDtypeStruct((1, self.max_length), bool),
        }
        # Layers in straight-line code: XLA counts a loop's body once.
        model = dataclasses.replace(self._nameless, scan_layers=False)
        analysis: Any = _predict_step.lower(model, False, self._device_params, batch).cost_analysis()
        return float(analysis["flops"])

    def _run(
        self, data: TokenisedRows, batch_size: int, max_length: int | None, fusion_attention: bool
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        def step(model: Model, params: Tree, batch: Mapping[str, Any]) -> Any:
            return _predict_step(model, fusion_attention, params, batch)

        logits, attention = self.over_rows(step, data, batch_size=batch_size, max_length=max_length)
        if self.task.scale != 1.0:
            with np.errstate(over="ignore"):
                logits = logits * np.float32(self.task.scale)
            check_outputs(logits, data, self._device_params)
        return logits, attention

    def over_rows(
        self, step: ModelStep, data: TokenisedRows, *, batch_size: int = 32, max_length: int | None = None
    ) -> Any:
        """What ``step(model, params, batch)`` gives for every row, in order: :func:`afjax.data.over_rows.over_rows`.

        Args:
          step: Compiled, the model being static. It is given the model without its names, and a fusion folded.
          data: Of :meth:`tokenised`.
          batch_size, max_length: As in :meth:`predict`.
        """
        step = functools.partial(step, self._nameless)
        return over_rows(step, self._device_params, data, **self._batches(data, batch_size, max_length))

    def sum_over_rows(
        self,
        step: ModelStep,
        data: TokenisedRows,
        weights: np.ndarray,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> Any:
        """The sum of what a step gives for the batches of all rows: :func:`afjax.data.over_rows.sum_over_rows`.

        Args:
          step, data, batch_size, max_length: As in :meth:`over_rows`.
          weights: ``[rows, n]`` (of span: of windows), of which the step finds its batch's beside the tokens.
        """
        step = functools.partial(step, self._nameless)
        return sum_over_rows(step, self._device_params, data, weights, **self._batches(data, batch_size, max_length))

    def _batches(self, data: TokenisedRows, batch_size: int, max_length: int | None) -> dict[str, Any]:
        """Returns the arguments from which :mod:`afjax.data.over_rows` makes batches."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1.")
        devices = self._mesh.size
        # Every device gets the same number of rows.
        batch_size = -(-batch_size // devices) * devices
        max_length = self.max_length if max_length is None else max_length
        lengths = inference_lengths(data, batch_size=batch_size, max_length=max_length)
        return {"batching": Batching(batch_size, lengths, self.model.trunk.pad_id), "mesh": self._mesh}

    def for_inference(self) -> tuple[Model, Tree]:
        """What predicts: the model and all its parameters on the host, the trunk's included and a fusion folded.

        Of regression its logits are to be multiplied by the task's ``scale``.
        """
        return self._nameless, jax.device_get(self._device_params)

    def without_layers(self, layers: Collection[int]) -> "TaskModel":
        """The same model without the adapter, or the fusion and its adapters, of some layers (AdapterDrop).

        Args:
          layers: Indices of the trunk's layers.

        Raises:
          UserError: No adapter in the model, or in such a layer; or none left.
        """
        if not self.model.adapters:
            raise UserError(f'The head "{self.model.head_name}" is used without adapters: there are no layers to drop.')
        depth, params = self.trunk.config.num_layers, dict(self.params)
        configs, adapters = [], dict(self.params["adapters"])
        for name, config in self.model.adapters:
            adapters[name], smaller = drop_layers(adapters[name], config, layers, depth)
            configs.append((name, smaller))
        changes: dict[str, Any] = {"adapters": tuple(configs)}
        if name := self.model.fusion_name:
            left, kept = left_layers(self.model.adapters[0][1], layers, depth), self.model.fusion.kept
            params["fusion"] = {name: take_layers(self.params["fusion"][name], left)}
            if kept is not None:
                kept = tuple(tuple(of_slot[position] for position in left) for of_slot in kept)
                changes["fusion"] = dataclasses.replace(self.model.fusion, kept=kept)
        params["adapters"] = adapters
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **changes), params=params)

    def without_adapters(self, names: Collection[str]) -> "TaskModel":
        """The same fusion over fewer adapters: each layer's attention is shared out among those that are left.

        Raises:
          UserError: No fusion, a name that is not fused, none left, or a fusion that has been pruned.
        """
        members = self._members()
        unknown = sorted(set(names) - set(members))
        if unknown:
            raise UserError(
                f'"{unknown[0]}" is not fused; the fusion has {", ".join(members)}.{did_you_mean(unknown[0], members)}'
            )
        if self.model.fusion.kept is not None:
            raise UserError(
                "This fusion has been pruned layer by layer; leave adapters out of the one that it came from."
            )
        left = tuple((name, config) for name, config in self.model.adapters if name not in names)
        if not left:
            raise UserError("Every adapter of the fusion would be left out; leave at least one.")
        return dataclasses.replace(self, model=dataclasses.replace(self.model, adapters=left))

    def with_adapters(self, added: Mapping[str, tuple[Adapter, Tree]]) -> "TaskModel":
        """The same fusion over more adapters, of :func:`load_adapters`; it is not trained again.

        Raises:
          UserError: No fusion, one that has been pruned, a name that is fused already, or adapters that do not fit.
        """
        members = self._members()
        twice = sorted(set(added) & set(members))
        if twice:
            raise UserError(f'"{twice[0]}" is fused already; the fusion has {", ".join(members)}.')
        if self.model.fusion.kept is not None:
            raise UserError("This fusion has been pruned layer by layer; add adapters to the one that it came from.")
        configs = (*self.model.adapters, *((name, config) for name, (config, _) in added.items()))
        trees = {**self.params["adapters"], **{name: tree for name, (_, tree) in added.items()}}
        model = dataclasses.replace(self.model, adapters=configs)
        return dataclasses.replace(self, model=model, params={**self.params, "adapters": trees})

    def with_kept(self, kept: tuple[tuple[tuple[int, ...], ...], ...]) -> "TaskModel":
        """The same fusion with some adapters left in each layer; see ``FusionConfig.kept``.

        Raises:
          UserError: No fusion, or numbers that do not fit it.
        """
        self._members()
        fusion = dataclasses.replace(self.model.fusion, kept=kept)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, fusion=fusion))

    def renamed(self, name: str) -> "TaskModel":
        """The same model under another name: its head, and its fusion or its adapter. Fused adapters keep theirs."""
        head = self.params["heads"][self.model.head_name]
        params = {**self.params, "heads": {name: head}}
        changes: dict[str, Any] = {"head_name": name}
        if self.model.fusion_name:
            params["fusion"] = {name: self.params["fusion"][self.model.fusion_name]}
            changes["fusion_name"] = name
        elif self.model.adapters:
            ((adapter, config),) = self.model.adapters
            params["adapters"] = {name: self.params["adapters"][adapter]}
            changes["adapters"] = ((name, config),)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, **changes), params=params)

    def _members(self) -> list[str]:
        """The names of the fused adapters."""
        if not self.model.fusion_name:
            raise UserError(f'The head "{self.model.head_name}" is used without a fusion; give one.')
        return [name for name, _ in self.model.adapters]

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.trunk.tokenizer()

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return local_mesh()

    @functools.cached_property
    def _device_params(self) -> Tree:
        """All parameters on this host's devices, in the form that predicts fastest."""
        trunk = cast_trunk(self.trunk.params, self.trunk.dtype)
        trunk = {**trunk, "layers": fastest_form(trunk["layers"], scan=self.model.scan_layers)}
        mixed, head = self.model.fusion_name, self.model.head_name
        own = {
            "adapters": {str(i): self.params["adapters"][name] for i, (name, _) in enumerate(self.model.adapters)},
            "fusion": {"fusion": self.params["fusion"][mixed]} if mixed else {},
            "heads": {"head": self.params["heads"][head]},
        }
        return self._nameless.fold(place({"trunk": trunk, **own}, self._mesh))

    @functools.cached_property
    def _nameless(self) -> Model:
        """The model with numbers for names: models that differ in nothing else share their compiled programs."""
        adapters = tuple((str(number), config) for number, (_, config) in enumerate(self.model.adapters))
        mixed = "fusion" if self.model.fusion_name else ""
        # The trunk's weights are of its dtype already, and there is no backward pass.
        return dataclasses.replace(
            self.model, head_name="head", adapters=adapters, fusion_name=mixed, dtype=None, remat="none"
        )

    def save(self, store_folder: str | Path, *, overwrite: bool = False, run: str = "") -> None:
        """Saves what was trained, the fusion or the adapter and the head: all of it or nothing.

        A fusion's adapters are not saved again: they are in the store it was trained from.

        Args:
          store_folder, overwrite, run: As in :func:`save_models`.

        Raises:
          UserError: As in :func:`save_models`.
        """
        save_models(store_folder, [self], overwrite=overwrite, run=run)

    def drafts(self, store_folder: str | Path) -> list[store.Draft]:
        """The artefacts that :meth:`save` writes.

        Raises:
          UserError: The store has other adapters of a fusion's than these (as without some layers).
        """
        shared: dict[str, Any] = {
            "trunk": self.trunk.identity(),
            "task": to_dict(self.task),
            "labels": self.labels,
            "metrics": dict(self.metrics),
            "seed": self.seed,
        }
        drafts, fusion = [], self.model.fusion_name
        if fusion:
            members = [
                {"name": member, "sha256": tree_digest(self.params["adapters"][member])}
                for member, _ in self.model.adapters
            ]
            _check_members(members, store_folder)
            tree, config = self.params["fusion"][fusion], to_dict(self.model.fusion)
            drafts = [store.Draft(kind="fusion", name=fusion, params=tree, config=config, adapters=members, **shared)]
        else:
            for name, adapter in self.model.adapters:
                tree, config = self.params["adapters"][name], to_dict(adapter)
                drafts.append(store.Draft(kind="adapters", name=name, params=tree, config=config, **shared))
        head = self.model.head_name
        config = {
            **to_dict(self.model.head),
            "num_outputs": self.num_outputs,
            "max_length": self.max_length,
            "text_columns": self.text_columns,
        }
        record = self.beneath_head() if self.head_record is None else self.head_record
        draft = store.Draft(
            kind="heads", name=head, params=self.params["heads"][head], config=config, trained_with=record, **shared
        )
        return [*drafts, draft]

    def beneath_head(self) -> dict[str, str]:
        """What is between the trunk and the head, or the trunk, as ``Manifest.trained_with`` records it."""
        if self.model.fusion_name:
            kind, name = "fusion", self.model.fusion_name
        elif self.model.adapters:
            kind, name = "adapters", self.model.adapters[0][0]
        else:
            return {"kind": "trunk", "name": self.trunk.name, "sha256": self.trunk.sha256}
        return {"kind": kind, "name": name, "sha256": tree_digest(self.params[kind][name])}

    @property
    def num_outputs(self) -> int:
        return TASK_KINDS[self.task.kind].num_outputs(self.labels)

    def artefacts(self) -> list[tuple[str, str]]:
        """``(kind, name)`` of what :meth:`save` writes."""
        head = [("heads", self.model.head_name)]
        if self.model.fusion_name:
            return [("fusion", self.model.fusion_name), *head]
        return [("adapters", name) for name, _ in self.model.adapters] + head


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


# Compiled once for a model and a shape, however many calls and copies of the TaskModel there are.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict_step(
    model: Model, fusion_attention: bool, params: Tree, batch: Mapping[str, Any]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The logits, and the attention over adapters averaged over each row's tokens."""
    outputs = model(params, batch, fusion_attention=fusion_attention)
    return outputs.logits, outputs.row_attention(batch["mask"]) if fusion_attention else {}


def save_models(
    store_folder: str | Path, models: Sequence[TaskModel], *, overwrite: bool = False, run: str = ""
) -> None:
    """Saves models that were trained together, as :meth:`TaskModel.save` saves one: all of them or nothing.

    A trunk that the run has trained is written to its workdir first, because the store only records its name.

    Args:
      store_folder: The store.
      models: The models, of distinct names.
      overwrite: Whether any artefact of these names may be replaced.
      run: Identifier of the training run that saves them, see :func:`afjax.store.save_all`.

    Raises:
      UserError: The store holds one of these names (and not ``overwrite``), has other adapters of a fusion's than
        these (as without some layers), or cannot be written.
    """
    for trunk in {model.trunk.sha256: model.trunk for model in models}.values():
        write_if_trained(trunk)
    drafts = [draft for model in models for draft in model.drafts(store_folder)]
    store.save_all(store_folder, drafts, overwrite=overwrite, run=run)


def _check_members(members: Sequence[Mapping[str, str]], store_folder: str | Path) -> None:
    """Raises UserError if a store has other adapters under the names of a fusion's."""
    there = store.names(store_folder, "adapters")
    for name, digest in ((member["name"], member["sha256"]) for member in members):
        if name in there and store.read_manifest(store_folder, "adapters", name).digest != digest:
            raise UserError(
                f'The adapter "{name}" in the store {store_folder} is another than the fusion\'s (one without some of '
                "its layers, say); a stored fusion takes adapters as the store has them."
            )
