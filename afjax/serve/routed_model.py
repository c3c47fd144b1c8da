"""Serves many tasks with one trunk.

Each row has its own adapter or fusion, and its own head.
"""

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from afjax.config.capacity import Capacity
from afjax.config.training import TrainConfig
from afjax.display.words import counted
from afjax.distributed.sharding import local_mesh
from afjax.errors import UserError, did_you_mean
from afjax.model.task_model import TaskModel
from afjax.serve.bank import Bank
from afjax.serve.batching import RoutedBatch, estimate_tokens_per_call, num_fitting, routed_batches
from afjax.serve.forms import HeadForm, SlotForm, head_entry, head_form, slot_entry, slot_form, widest_slot_form
from afjax.serve.program import RoutedPlan
from afjax.serve.requests import (
    Sequences,
    ServedTask,
    SharedSequences,
    UnknownTaskError,
    check_rows,
    fusion_attention_of,
    grouped,
    groups_with_equal_tokens,
    predict_groups,
    predict_parts,
    read_rows,
)
from afjax.serve.runner import ProgramKind, Runner
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.pretrained import Trunk


class RoutedModel:
    """Serves many tasks with one trunk and one compiled program.

    Each row in a batch has its own adapter or fusion, and its own head. Tasks can differ in their kind, their number of
    classes, and the kind and size of their adapters. Up to rounding, the results match each task's own
    :class:`~afjax.TaskModel`. Tasks can be added and removed without recompilation. The methods are thread-safe.

    Example:
      >>> import jax
      >>> from afjax import Method, RoutedModel, TaskConfig, TaskModel, load_trunk, rows_from_lists, single_setup
      >>> trunk = load_trunk("minilm")
      >>> models = {}
      >>> for number, name in enumerate(("reviews", "news")):
      ...     setup = single_setup(Method(), trunk.config, name=name, reads="pooled", num_outputs=2)
      ...     params = setup.init(jax.random.key(number), trunk.params)
      ...     rows = rows_from_lists(["Far too long.", "A fine film."], ["no", "yes"])
      ...     models[name] = TaskModel.from_params(
      ...         setup.model, params, trunk, TaskConfig(name=name), rows, max_length=32
      ...     )
      >>> routed = RoutedModel(trunk, models)
      >>> predictions = routed.predict(["A fine day.", "It rained.", "A fine film."], ["news", None, "reviews"])
      >>> [sorted(prediction) for prediction in predictions]
      [['label', 'logits', 'probabilities'], ['embedding'], ['label', 'logits', 'probabilities']]
    """

    def __init__(self, trunk: Trunk, models: Mapping[str, TaskModel], capacity: Capacity = Capacity()) -> None:
        """Starts with the given tasks.

        They determine which tasks can be added later: the adapters, fusions and heads of added tasks must have the same
        forms as the initial ones, and must not be larger than the largest of them.

        Args:
          trunk: The encoder.
          models: ``{task name: model}``. :func:`afjax.load_routed_model` loads them from a store.
          capacity: The limits of the program's shapes.

        Raises:
          UserError: ``models`` is empty, a model has a different trunk or dtype, or the padded lengths are too long for
            the trunk or too short for a model.
        """
        if not models:
            raise UserError("models is empty; pass at least one model.")
        for name, model in models.items():
            _check_trunk(name, model, trunk)
        self.trunk = trunk
        mesh = local_mesh()
        self._batch_sizes = _whole_batches(capacity.batch_sizes, mesh.size)
        # Devices compute the rows of a batch in parallel, so the fixed cost per batch corresponds to more tokens.
        self._tokens_per_call = mesh.size * estimate_tokens_per_call(mesh.devices.flat[0].platform)
        longest = max(model.max_length for model in models.values())
        self._lengths = capacity.lengths or TrainConfig(max_length=longest).lengths
        if self._lengths[-1] > trunk.config.max_length:
            raise UserError(
                f"capacity.lengths ends with {self._lengths[-1]}, but the trunk {trunk.name} supports at most "
                f"{trunk.config.max_length} tokens per row."
            )
        embedding = trunk.embedding_config()
        max_length = min(embedding.max_length or trunk.config.max_length, self._lengths[-1])
        self._embedding = dataclasses.replace(embedding, max_length=max_length)
        self._plan = RoutedPlan(
            trunk=trunk.config,
            slots=tuple(_slot_forms(models.values())),
            heads=tuple(_head_forms(models.values())),
            pooling=embedding.pooling,
            normalize=embedding.normalize,
        )
        self._numbers = itertools.count()
        self._tasks = {name: self._task(name, model) for name, model in models.items()}
        # Banks of adapters and fusions come first, then banks of heads.
        banks = []
        for number in range(len(self._plan.slots) + len(self._plan.heads)):
            entries = [task.entries[number] for task in self._tasks.values() if number in task.entries]
            banks.append(Bank(entries[0], capacity.resident or len(entries), mesh))
        self._runner = Runner(
            self._plan,
            trunk.device_params(scan=False),
            banks,
            mesh,
            tasks_per_row=min(capacity.tasks_per_row, max(bank.places.num_places for bank in banks)),
        )
        for name, task in self._tasks.items():
            self._runner.check(name, task.entries)
        self._tokenizer = trunk.tokenizer()
        # Turn off padding and truncation, or each call would do this in a copy of the tokenizer.
        self._tokenizer.backend_tokenizer.no_padding()
        self._tokenizer.backend_tokenizer.no_truncation()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<RoutedModel {counted(len(self._tasks), 'task')}, trunk {self.trunk.name}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the served tasks."""
        return tuple(self._tasks)

    @property
    def max_batch(self) -> int:
        """The maximum number of rows that are computed at once."""
        return self._batch_sizes[-1]

    def add(self, name: str, model: TaskModel) -> None:
        """Adds a task without recompilation.

        Args:
          name: The task's name, which must not be in use.
          model: The task's model.

        Raises:
          UserError: The name is in use, the model has a different trunk or dtype, or it exceeds the capacity. The other
            tasks are not affected.
        """
        _check_trunk(name, model, self.trunk)
        task = self._task(name, model)
        self._runner.check(name, task.entries)
        with self._lock:
            if name in self._tasks:
                raise UserError(f'"{name}" is already in service; remove it first, or choose a different name.')
            self._tasks = {**self._tasks, name: task}

    def remove(self, name: str) -> None:
        """Removes a task.

        Args:
          name: The task's name.

        Raises:
          UserError: There is no task with this name.
        """
        with self._lock:
            self._check_names([name])
            self._tasks = {other: task for other, task in self._tasks.items() if other != name}

    def predict(
        self, rows: Iterable[Any], adapters: Iterable[str | None], *, fusion_attention: bool = False
    ) -> list[dict[str, Any]]:
        """Predicts rows, each with its own task.

        Args:
          rows: Each row as input for its task, as in :meth:`afjax.TaskModel.predict`. Rows without a task are strings
            or pairs of strings.
          adapters: Each row's task name, or None for the trunk's embedding of the row.
          fusion_attention: Whether to return the attention over adapters for rows with a fusion.

        Returns:
          The predictions in the order of the rows: ``logits``, ``label`` and ``probabilities`` (see
          :meth:`afjax.Predictions.as_json`), or ``embedding``, a list of numbers. With ``fusion_attention``, rows with
          a fusion also have ``fusion_attention``: ``{slot: {"layers", "adapters", "attention"}}``, with the layer
          indices and, for each layer, the names of its adapters and the attention, averaged over the row's tokens.

        Raises:
          UserError: There are no rows, the numbers of names and rows differ, a name is unknown, a row does not have the
            form that its task requires, or a task's outputs are NaN or infinite. Names are checked before anything is
            computed.
        """
        rows, adapters = list(rows), list(adapters)
        tasks = self._check_names([name for name in adapters if name is not None])
        parts = self.read(rows, [None if name is None else tasks[name] for name in adapters])
        attention = self.attention(parts) if fusion_attention else None
        return predict_parts(parts, self.outputs(parts), len(rows), attention)

    def read(self, rows: Iterable[Any], tasks: Iterable[ServedTask | None]) -> list[Sequences]:
        """Checks and tokenizes rows, for :meth:`outputs`.

        Args:
          rows: As in :meth:`predict`.
          tasks: Each row's task, as returned by :meth:`task`, or None for the trunk's embedding.

        Returns:
          The sequences of each task, and the sequences for embeddings. Single texts and pairs are in separate items.

        Raises:
          UserError: There are no rows, the numbers of tasks and rows differ, or a row does not have the form that its
            task requires.
        """
        rows, tasks = list(rows), list(tasks)
        if not rows or len(rows) != len(tasks):
            raise UserError(
                f"There are {counted(len(rows), 'row')} and {counted(len(tasks), 'name')}; pass at least one row, "
                "and one name (or None) per row."
            )
        # Single texts and pairs are tokenized separately, even if they are for the same task.
        groups = grouped(range(len(rows)), lambda number: (tasks[number], isinstance(rows[number], str)))
        parts = []
        for numbers in groups:
            parts.append(self._read(tasks[numbers[0]], [rows[number] for number in numbers], numbers))
        return parts

    def predict_all(self, rows: Iterable[Any], names: Iterable[str] | None = None) -> list[dict[str, dict[str, Any]]]:
        """Predicts each row with several tasks.

        The layers below the first adapter of any served task are computed only once per row.

        Args:
          rows: The rows. Each row must be valid input for all of the tasks.
          names: The task names. Defaults to all served tasks.

        Returns:
          For each row, ``{task name: prediction}``, with predictions as in :meth:`predict`.

        Raises:
          UserError: There are no rows or names, a name is unknown or repeated, a row does not have the form that a task
            requires, or a task's outputs are NaN or infinite.
        """
        rows, names = list(rows), list(self._tasks if names is None else names)
        tasks = self._check_names(names)
        groups = self.read_all(rows, [tasks[name] for name in names])
        predictions = predict_groups(groups, [self.outputs_of_all(group) for group in groups], len(rows))
        return [{name: row[name] for name in names} for row in predictions]

    def read_all(self, rows: Iterable[Any], tasks: Iterable[ServedTask]) -> list[SharedSequences]:
        """Checks and tokenizes rows for several tasks, for :meth:`outputs_of_all`.

        Args:
          rows: As in :meth:`predict_all`.
          tasks: The tasks, as returned by :meth:`task`.

        Returns:
          The sequences for each group of tasks that use the same token ids.

        Raises:
          UserError: There are no rows or tasks, a task is repeated, or a row does not have the form that a task
            requires.
        """
        rows, tasks = list(rows), list(tasks)
        if not rows or not tasks or len(set(tasks)) < len(tasks):
            raise UserError(
                f"There are {counted(len(rows), 'row')} and {counted(len(tasks), 'name')}; pass at least one row and "
                "at least one name, and each name only once."
            )
        groups = []
        for group in groups_with_equal_tokens(tasks):
            # As in read, single texts and pairs are tokenized separately.
            for numbers in grouped(range(len(rows)), lambda number: isinstance(rows[number], str)):
                own = [rows[number] for number in numbers]
                first = self._read(group[0], own, numbers)
                for task in group[1:]:
                    check_rows(task, own, numbers)
                groups.append(SharedSequences(tuple(group), first.data, first.rows))
        return groups

    def outputs(self, parts: Sequence[Sequences]) -> list[np.ndarray]:
        """Computes the outputs of tokenized sequences.

        Args:
          parts: Each task's sequences, from one or several requests.

        Returns:
          One float32 array per part: the embeddings ``[sequences, hidden_size]``, or the head's outputs ``[sequences,
          num_outputs]`` (``[sequences, length, num_outputs]`` for token heads).
        """
        return self._outputs_in(self._batches(parts), parts)

    def _outputs_in(self, batches: Sequence[RoutedBatch], parts: Sequence[Sequences]) -> list[np.ndarray]:
        """Computes :meth:`outputs` in the given batches."""
        outputs = [self._empty_outputs(part) for part in parts]
        jobs = [(batch, [parts[number].task for number, _ in batch.members]) for batch in batches]
        for (batch, tasks), results in zip(jobs, self._runner.run(parts, jobs), strict=True):
            for row, ((number, index), task) in enumerate(zip(batch.members, tasks, strict=True)):
                self._store(outputs[number][index], task, results, (row,))
        return outputs

    def attention(self, parts: Sequence[Sequences]) -> list[dict[str, np.ndarray]]:
        """Computes the attention over adapters for tokenized sequences.

        Args:
          parts: As in :meth:`outputs`.

        Returns:
          For each part, ``{slot: [sequences, layers, adapters]}`` in float32, averaged over each sequence's tokens, or
          an empty dict if the part's task has no fusion.
        """
        numbers = [number for number, part in enumerate(parts) if part.task and part.task.model.model.fusion_name]
        fused = [parts[number] for number in numbers]
        found: list[dict[str, np.ndarray]] = [{} for _ in parts]
        batches = self._batches(fused) if fused else []
        jobs = [(batch, [fused[number].task for number, _ in batch.members]) for batch in batches]
        for (batch, tasks), results in zip(jobs, self._runner.run(fused, jobs, "attention"), strict=True):
            for row, ((number, index), task) in enumerate(zip(batch.members, tasks, strict=True)):
                assert task is not None, "tasks without a fusion are left out"
                own = found[numbers[number]]
                for slot, attention in fusion_attention_of(task, self._plan, results).items():
                    shape = (len(fused[number]), *attention.shape[1:])
                    own.setdefault(slot, np.zeros(shape, np.float32))[index] = attention[row]
        return found

    def outputs_of_all(self, group: SharedSequences) -> list[np.ndarray]:
        """Computes the outputs of several tasks for the same sequences.

        Args:
          group: The sequences and their tasks.

        Returns:
          One array per task, as in :meth:`outputs`.
        """
        parts = group.parts
        batches = self._batches(parts[:1])
        chunks = list(self._fitting_chunks(group.tasks))
        # An "all" program shares the lower layers between tasks, but always computes the upper layers for tasks_per_row
        # tasks. With few tasks, one row per sequence and task can be faster.
        num_layers, num_shared = self.trunk.config.num_layers, self._plan.num_shared_layers
        layers_of_all = num_shared + self._runner.tasks_per_row * (num_layers - num_shared)
        time_of_all = len(chunks) * self._time(batches, layers_of_all)
        # This cheap check ignores padding. It often makes it unnecessary to split many sequences into batches.
        if len(parts) * len(group.data.tokens) * num_layers < time_of_all:
            by_rows = self._batches(parts)
            if self._time(by_rows, num_layers) < time_of_all:
                return self._outputs_in(by_rows, parts)
        outputs = [self._empty_outputs(part) for part in parts]
        number_of = {task: number for number, task in enumerate(group.tasks)}
        jobs = [(batch, chunk) for batch in batches for chunk in chunks]
        for (batch, tasks), results in zip(jobs, self._runner.run(parts, jobs, "all"), strict=True):
            for row, (_, index) in enumerate(batch.members):
                for place, task in enumerate(tasks):
                    self._store(outputs[number_of[task]][index], task, results, (row, place))
        return outputs

    def _fitting_chunks(self, tasks: Sequence[ServedTask]) -> Iterator[Sequence[ServedTask]]:
        """Splits tasks into chunks that an "all" program can compute."""
        while tasks:
            count = num_fitting(tasks[: self._runner.tasks_per_row], self._runner.num_places)
            yield tasks[:count]
            tasks = tasks[count:]

    def warm_up(self, *, all_tasks: bool = False, fusion_attention: bool = False) -> None:
        """Compiles the programs for all batch sizes and padded lengths.

        Later calls of :meth:`predict` do not compile anything.

        Args:
          all_tasks: Whether to also compile the programs for :meth:`predict_all`.
          fusion_attention: Whether to also compile the programs for the attention over adapters, if there is a fusion.
        """
        kinds: list[ProgramKind] = ["rows"]
        kinds += ["all"] if all_tasks else []
        kinds += ["attention"] if fusion_attention and self._plan.num_fused else []
        self._runner.compile(self._batch_sizes, self._lengths, kinds)

    def bytes_per_task(self, name: str) -> int:
        """Computes the memory in bytes that a task takes on each device.

        This includes its adapter or fusion, and its head.

        Args:
          name: The task's name.

        Raises:
          UserError: There is no task with this name.
        """
        return self._runner.bytes_per_task(self.task(name))

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per row or, for span and tagging tasks, per window."""
        return self._lengths[-1]

    @property
    def plan(self) -> RoutedPlan:
        """The static part of the programs."""
        return self._plan

    def params(self) -> Tree:
        """Returns the programs' arrays on the device.

        Returns:
          ``{"trunk": the trunk, "banks": the list of banks}``; see :func:`afjax.serve.program.routed_outputs`. Later
          calls to other methods may replace the arrays.
        """
        return self._runner.params()

    def place_all(self) -> dict[str, list[int]]:
        """Copies the parameters of all tasks to the device.

        Returns:
          ``{task name: the task's place in each bank}``.

        Raises:
          UserError: There are more tasks than places.
        """
        tasks = list(self._tasks.values())
        return {task.name: row for task, row in zip(tasks, self._runner.place(tasks), strict=True)}

    def task(self, name: str) -> ServedTask:
        """Looks up a task by name.

        Args:
          name: The task's name.

        Returns:
          The task, for :meth:`outputs`.

        Raises:
          UserError: There is no task with this name.
        """
        return self._check_names([name])[name]

    def _check_names(self, names: Sequence[str]) -> Mapping[str, ServedTask]:
        """Returns the served tasks, or raises UnknownTaskError if a name is unknown."""
        tasks = self._tasks
        for name in names:
            if not (isinstance(name, str) and name in tasks):
                some = ", ".join(list(tasks)[:10]) + (", ..." if len(tasks) > 10 else "")
                raise UnknownTaskError(f'"{name}" is not in service (it has: {some}).{did_you_mean(str(name), tasks)}')
        return tasks

    def _task(self, name: str, model: TaskModel) -> ServedTask:
        """Prepares a model for serving: converts its parameters to bank entries."""
        if model.max_length > self._lengths[-1]:
            raise UserError(
                f'"{name}" has rows of {model.max_length} tokens, but the routed model only supports '
                f"{self._lengths[-1]}; create it with {model.max_length} or more at the end of capacity.lengths."
            )
        entries: dict[int, Tree] = {}
        form = slot_form(model.model)
        if form is not None:
            number = _first_that_takes(name, form, self._plan.slots)
            entries[number] = slot_entry(self._plan.slots[number], model.model, model.params, dtype=self.trunk.dtype)
        number = _first_that_takes(name, head_form(model.model, model.num_outputs), self._plan.heads)
        head = model.params["heads"][model.model.head_name]
        head_bank = len(self._plan.slots) + number
        entries[head_bank] = head_entry(self._plan.heads[number], head)
        # The entries replace the parameters. Keeping both would take twice the memory.
        return ServedTask(next(self._numbers), name, dataclasses.replace(model, params={}), head_bank, entries)

    def _read(self, task: ServedTask | None, texts: Sequence[Any], numbers: Sequence[int]) -> Sequences:
        return read_rows(task, texts, numbers, self._tokenizer, self._embedding)

    def _empty_outputs(self, part: Sequences) -> np.ndarray:
        if part.task is None:
            return np.empty((len(part), self.trunk.config.hidden_size), np.float32)
        model = part.task.model
        shape: tuple[int, ...] = (len(part), model.num_outputs)
        if TASK_KINDS[model.task.kind].reads == "tokens":
            shape = (len(part), self._lengths[-1], model.num_outputs)
        return np.full(shape, np.finfo(np.float32).min, np.float32)

    def _store(self, target: np.ndarray, task: ServedTask | None, results: Any, where: tuple[int, ...]) -> None:
        """Copies one sequence's outputs into ``target``."""
        if task is None:
            target[:] = results["embedding"][where]
            return
        logits = results["heads"][task.head_bank - len(self._plan.slots)][where]
        # The logits are padded for the bank's largest head, and the target for the longest sequence.
        target[tuple(map(slice, logits.shape))] = logits[..., : target.shape[-1]]

    def _time(self, batches: Sequence[RoutedBatch], layers_per_row: int) -> int:
        """Estimates the time for batches, in units of one token in one layer."""
        calls = len(batches) * self._tokens_per_call * self.trunk.config.num_layers
        return calls + layers_per_row * sum(batch.num_tokens for batch in batches)

    def _batches(self, parts: Sequence[Sequences]) -> list[RoutedBatch]:
        return routed_batches(
            parts,
            batch_sizes=self._batch_sizes,
            lengths=self._lengths,
            num_places=self._runner.num_places,
            tokens_per_call=self._tokens_per_call,
        )


def _check_trunk(name: str, model: TaskModel, trunk: Trunk) -> None:
    if model.trunk.sha256 != trunk.sha256:
        raise UserError(
            f'"{name}" was trained on the trunk {model.trunk.name} (SHA-256 {model.trunk.sha256[:12]}), not on '
            f"{trunk.name} ({trunk.sha256[:12]}); all tasks of a routed model must have the same trunk."
        )
    if model.trunk.dtype != trunk.dtype:
        raise UserError(
            f'"{name}" was trained with a {model.trunk.dtype} trunk, but the trunk has the dtype {trunk.dtype}; load '
            f'the trunk with dtype="{model.trunk.dtype}", or train the task again with {trunk.dtype}.'
        )


def _whole_batches(batch_sizes: Sequence[int], num_devices: int) -> tuple[int, ...]:
    """Rounds batch sizes up to a multiple of the number of devices."""
    return tuple(sorted({-(-size // num_devices) * num_devices for size in batch_sizes}))


def _first_that_takes(name: str, form: Any, bank_forms: Sequence[Any]) -> int:
    """Finds the first bank that takes a form, or raises UserError if there is none."""
    for number, bank_form in enumerate(bank_forms):
        if bank_form.takes(form):
            return number
    raise UserError(
        f'"{name}" needs room for {form}, but there is only room for {"; ".join(map(str, bank_forms)) or "none"}. '
        "Create the routed model with a task of this form."
    )


def _slot_forms(models: Iterable[TaskModel]) -> list[SlotForm]:
    forms = [form for model in models if (form := slot_form(model.model)) is not None]
    return [widest_slot_form(group) for group in grouped(forms, SlotForm.key)]


def _head_forms(models: Iterable[TaskModel]) -> list[HeadForm]:
    forms = [head_form(model.model, model.num_outputs) for model in models]
    return [max(group, key=lambda form: form.num_outputs) for group in grouped(forms, HeadForm.key)]
