"""A trunk with everything that makes it do one task: what training gives and the store holds."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from afjax import metrics as task_metrics
from afjax import store
from afjax.architecture import Adapter, FusionConfig, HeadConfig
from afjax.config import TaskConfig, TrainConfig
from afjax.data.rows import Rows, rows_from_lists
from afjax.data.tokenise import tokenise
from afjax.dataclass_dicts import from_dict, to_dict
from afjax.errors import UserError
from afjax.evaluate import over_rows
from afjax.model.encoder import cast_trunk, unstack_layers
from afjax.model.model import Model
from afjax.trees import Tree, tree_digest
from afjax.trunk import Trunk


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What a task model says of rows, in their order.

    Attributes:
      logits: float32 ``[rows, num_outputs]``.
      probabilities: float32 ``[rows, num_labels]``, rows sum to one; for regression ``[rows, 0]``.
      labels: The likeliest label's name of every row; for regression the value itself.
      fusion_attention: Where asked for: ``{slot: [rows, num_layers, num_adapters]}``, the attention over adapters
        averaged over the row's tokens (padding left out).
    """

    logits: np.ndarray
    probabilities: np.ndarray
    labels: list[str] | list[float]
    fusion_attention: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskModel:
    """A trunk, the adapters and perhaps the fusion in it, and a head.

    Attributes:
      trunk: The encoder.
      model: What is computed.
      params: ``{"adapters", "fusion", "heads"}``: trees by name, on the host. The trunk has its own.
      task: The task it does.
      labels: Label names in the order of the outputs; empty for regression.
      metrics: Dev metrics of the training run.
      seed: Of that run.
      max_length: Tokens a row in that run.
    """

    trunk: Trunk
    model: Model
    params: Tree
    task: TaskConfig
    labels: tuple[str, ...]
    metrics: Mapping[str, float]
    seed: int
    max_length: int

    def predict(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        fusion_attention: bool = False,
    ) -> Predictions:
        """Predicts texts, or pairs of texts.

        Args:
          texts: Strings, or pairs of strings.
          batch_size: Rows a step.
          max_length: Tokens a row, longer ones are cut; None: as in training.
          fusion_attention: Whether to return the attention over adapters.

        Raises:
          UserError: Not a list of texts, a length the trunk cannot take, or no rows a step.
        """
        return self.predict_rows(
            rows_from_lists(texts),
            batch_size=batch_size,
            max_length=max_length,
            fusion_attention=fusion_attention,
        )

    def predict_rows(
        self, rows: Rows, *, batch_size: int = 32, max_length: int | None = None, fusion_attention: bool = False
    ) -> Predictions:
        """:meth:`predict` for rows that a file gave."""
        logits, attention = self._run(rows, batch_size, max_length, fusion_attention)
        if self.task.kind == "regression":
            return Predictions(logits, np.zeros((len(logits), 0), np.float32), logits[:, 0].tolist(), attention)
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        names = [self.labels[index] for index in logits.argmax(-1)]
        return Predictions(logits, shifted / shifted.sum(-1, keepdims=True), names, attention)

    def evaluate(self, rows: Rows, *, batch_size: int = 32, max_length: int | None = None) -> dict[str, float]:
        """Every metric of the task over labelled rows.

        Raises:
          UserError: The rows have no labels, or other label names than the head.
        """
        if rows.labels is None:
            raise UserError("These rows have no labels, so they cannot be scored; predict them instead.")
        if rows.label_names != self.labels:
            raise UserError(
                f'The rows have the labels {list(rows.label_names)}, but the head "{self.model.head_name}" was trained '
                f"for {list(self.labels)}; give a task with the same labels in the same order."
            )
        logits, _ = self._run(rows, batch_size, max_length, False)
        return task_metrics.scores(logits, rows.labels, self.task.kind)

    def _run(
        self, rows: Rows, batch_size: int, max_length: int | None, fusion_attention: bool
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        max_length = self.max_length if max_length is None else max_length
        check_length(max_length, self.trunk)
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1.")
        data = tokenise(rows, self._tokenizer, max_length=max_length, cache_dir=None)
        logits, attention = over_rows(
            functools.partial(_predict_step, self.model, fusion_attention),
            self._device_params,
            data,
            batch_size=batch_size,
            lengths=TrainConfig(max_length=max_length).lengths,
            pad_id=self.model.trunk.pad_id,
        )
        return logits if self.task.scale == 1.0 else logits * np.float32(self.task.scale), attention

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self.trunk.tokenizer()

    @functools.cached_property
    def _device_params(self) -> Tree:
        """All parameters on the device, in the form that predicts fastest."""
        trunk = cast_trunk(self.trunk.params, self.trunk.dtype)
        if not self.model.scan_layers:
            trunk = {**trunk, "layers": unstack_layers(trunk["layers"])}
        return self.model.fold(jax.tree.map(jnp.asarray, {"trunk": trunk, **self.params}))

    def save(self, store_folder: str | Path, *, overwrite: bool = False) -> None:
        """Saves what was trained: the fusion or the adapter, and the head.

        A fusion's adapters are not saved again: they are in the store it was trained from.

        Raises:
          UserError: The store holds one of these names (and not ``overwrite``), or cannot be written.
        """
        shared: dict[str, Any] = {
            "trunk": self.trunk.identity(),
            "task": to_dict(self.task),
            "labels": self.labels,
            "metrics": dict(self.metrics),
            "seed": self.seed,
            "overwrite": overwrite,
        }
        if self.model.fusion_name:
            name = self.model.fusion_name
            members = [
                {"name": member, "sha256": tree_digest(self.params["adapters"][member])}
                for member, _ in self.model.adapters
            ]
            tree, architecture = self.params["fusion"][name], to_dict(self.model.fusion)
            store.save(store_folder, "fusion", name, tree, config=architecture, adapters=members, **shared)
        else:
            for name, adapter in self.model.adapters:
                tree = self.params["adapters"][name]
                store.save(store_folder, "adapters", name, tree, config=to_dict(adapter), **shared)
        name = self.model.head_name
        architecture = {**to_dict(self.model.head), "num_outputs": self.num_outputs, "max_length": self.max_length}
        store.save(store_folder, "heads", name, self.params["heads"][name], config=architecture, **shared)

    @property
    def num_outputs(self) -> int:
        return len(self.labels) or 1

    def artefacts(self) -> list[tuple[str, str]]:
        """``(kind, name)`` of what :meth:`save` writes."""
        head = [("heads", self.model.head_name)]
        if self.model.fusion_name:
            return [("fusion", self.model.fusion_name), *head]
        return [("adapters", name) for name, _ in self.model.adapters] + head


# Compiled once for a model and a shape, however many calls and copies of the TaskModel there are.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _predict_step(
    model: Model, fusion_attention: bool, params: Tree, batch: Mapping[str, Any]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The logits, and the attention over adapters averaged over each row's tokens."""
    outputs = model(params, batch, fusion_attention=fusion_attention)
    if not fusion_attention:
        return outputs.logits, {}
    present = batch["mask"] / jnp.maximum(batch["mask"].sum(-1, keepdims=True), 1)
    means = {
        slot: jnp.einsum("lbtn,bt->bln", attention, present) for slot, attention in outputs.fusion_attention.items()
    }
    return outputs.logits, means


def load_task_model(
    store_folder: str | Path, trunk: Trunk, *, head: str, adapter: str = "", fusion: str = ""
) -> TaskModel:
    """Loads a head, and the adapter or the fusion under it, from a store.

    Args:
      store_folder: The store.
      trunk: The encoder they were trained on. It computes in the dtype it had then, whatever its own is.
      head: The head's name.
      adapter: An adapter's name; or
      fusion: a fusion's; neither: the head alone.

    Raises:
      UserError: A name that is not there, another trunk, a damaged file, a fusion whose adapters have changed since.
    """
    if adapter and fusion:
        raise UserError(f'Both the adapter "{adapter}" and the fusion "{fusion}" were given; give one of them.')
    loaded_head = store.load(store_folder, "heads", head, trunk_sha256=trunk.sha256)
    names = [adapter] if adapter else []
    params: Tree = {"adapters": {}, "fusion": {}, "heads": {head: loaded_head.params}}
    fusion_config = FusionConfig()
    if fusion:
        loaded = store.load(store_folder, "fusion", fusion, trunk_sha256=trunk.sha256)
        fusion_config = from_dict(FusionConfig, loaded.manifest.config, f'the config of fusion "{fusion}"')
        params["fusion"][fusion] = loaded.params
        changed = store.adapter_problems(store_folder, loaded.manifest)
        if changed:
            raise UserError(changed[0])
        names = [str(member["name"]) for member in loaded.manifest.adapters]
    adapters = load_adapters(store_folder, names, trunk)
    params["adapters"] = {name: tree for name, (_, tree) in adapters.items()}
    manifest = loaded_head.manifest
    values = dict(manifest.config)
    num_outputs, max_length = values.pop("num_outputs"), values.pop("max_length")
    bias = loaded_head.params["output"]["bias"]
    if bias.shape != (num_outputs,) or len(manifest.labels or "?") != num_outputs:
        raise UserError(
            f'The head "{head}" has {bias.shape[0]} outputs for the labels {list(manifest.labels)}; train it again.'
        )
    return TaskModel(
        # As it computed when the head was trained, so that scores are those of the training run.
        trunk=dataclasses.replace(trunk, dtype=manifest.trunk.get("dtype", "float32")),
        model=Model(
            trunk=trunk.config,
            head_name=head,
            head=from_dict(HeadConfig, values, f'the config of head "{head}"'),
            adapters=tuple((name, config) for name, (config, _) in adapters.items()),
            fusion_name=fusion,
            fusion=fusion_config,
        ),
        params=params,
        task=from_dict(TaskConfig, manifest.task, f'the task of head "{head}"'),
        labels=manifest.labels,
        metrics=manifest.metrics,
        seed=manifest.seed,
        max_length=max_length,
    )


def load_adapters(store_folder: str | Path, names: Sequence[str], trunk: Trunk) -> dict[str, tuple[Adapter, Tree]]:
    """Loads adapters from a store, each with its architecture.

    Raises:
      UserError: A name that is not there, another trunk, a damaged file.
    """
    adapters = {}
    for name in names:
        loaded = store.load(store_folder, "adapters", name, trunk_sha256=trunk.sha256)
        config = from_dict(Adapter, loaded.manifest.config, f'the config of adapter "{name}"')
        adapters[name] = (config, loaded.params)
    return adapters


def check_length(max_length: int, trunk: Trunk) -> None:
    """Raises UserError where rows of that length do not fit the trunk."""
    if not 4 <= max_length <= trunk.config.max_length:
        raise UserError(
            f"max_length is {max_length}; the trunk {trunk.name} takes rows of 4 to {trunk.config.max_length} tokens."
        )
