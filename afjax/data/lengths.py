"""Chooses the padded lengths of batches.

More lengths reduce padding, but each length needs another compiled program.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch, bucket_of, eval_groups, padding_share
from afjax.data.tokenization import TokenizedRows

# Maximum number of padded lengths per run.
MOST = 8
# A single-task run may pad all rows to ``max_length`` if the extra padding costs at most this fraction of compiling a
# program. Runs on other tasks with the same ``max_length`` can then reuse the program. The fraction is small because
# every run pays for the padding, but the program is compiled only once.
COMMON_LENGTH = 0.05
# To limit memory use, this only applies to batches of at most this many tokens.
COMMON_TOKENS = 32 * 128
# Cost of compiling a program in :func:`inference_lengths`, in tokens; see ProgramTokens.
INFERENCE_PROGRAM_TOKENS = 100_000
# Step between candidate lengths: 2 up to length 24, 4 up to 48, and so on. Candidates are sparse, so that different
# tasks are likely to share compiled programs.
STEPS = {0: 2, 24: 4, 48: 8, 80: 16, 128: 32, 256: 64, 512: 128}


@dataclasses.dataclass(frozen=True)
class PaddedLengths:
    """Padded lengths of a run's batches, in ascending order.

    The last fits the longest row.

    Attributes:
      train: Padded lengths of training batches.
      dev: Padded lengths of dev batches.
    """

    train: tuple[int, ...]
    dev: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """The rows, steps and evaluations of a run.

    Attributes:
      train: The train split of each task.
      dev: The dev split of each task.
      config: Provides ``max_length``, ``buckets`` and ``batch_size``.
      num_steps: Number of training steps.
      num_evaluations: Number of evaluations on the dev split.
      shares: Fraction of training rows sampled from each split of ``train``. If empty, proportional to its size.
    """

    train: Sequence[TokenizedRows]
    dev: Sequence[TokenizedRows]
    config: TrainConfig
    num_steps: int
    num_evaluations: int
    shares: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class RunTokens:
    """Number of tokens that a run computes, including padding.

    Attributes:
      train: Tokens of all training steps.
      dev: Tokens of all evaluations.
    """

    train: float
    dev: float


@dataclasses.dataclass(frozen=True)
class ProgramTokens:
    """Cost of compiling a program for one more padded length.

    The unit is the number of tokens that the device processes in the same time. An additional length is only worth it
    if it removes at least this many padding tokens over the run.

    Attributes:
      train: Cost of compiling a training step.
      dev: Cost of compiling an evaluation step.
    """

    train: float
    dev: float


def choose_lengths(work: Workload, cost: ProgramTokens, *, common: bool = False) -> PaddedLengths:
    """Chooses the padded lengths of a run, unless ``buckets`` sets them.

    Args:
      work: The rows and steps of the run.
      cost: Cost of compiling a program.
      common: Whether runs on other tasks can share the programs. If so, all rows may be padded to ``max_length`` if
        that costs little; see :data:`COMMON_LENGTH`.
    """
    config = work.config
    return PaddedLengths(
        train_lengths(work.train, config, cost.train, num_steps=work.num_steps, shares=work.shares, common=common),
        eval_lengths(work.dev, config, cost.dev, num_evaluations=work.num_evaluations, common=common),
    )


def train_lengths(
    train: Sequence[TokenizedRows],
    config: TrainConfig,
    program_tokens: float,
    *,
    num_steps: int,
    shares: Sequence[float] = (),
    common: bool = False,
) -> tuple[int, ...]:
    """Chooses padded lengths of training batches.

    They minimize the run's total cost of padding and compilation. There are at most ``MOST`` lengths, and at most one
    per two batches of an epoch, because only rows of the same padded length share a batch.

    Args:
      train, config, num_steps, shares: See :class:`Workload`.
      program_tokens: Number of padding tokens that an additional length must remove.
      common: See :func:`choose_lengths`.
    """
    if config.buckets:
        return config.lengths
    rates = np.array(
        [share / len(data) for data, share in zip(train, shares, strict=True)] if shares else [1.0] * len(train)
    )
    counts = [np.bincount(data.lengths, minlength=config.max_length + 1) for data in train]
    longest = max(int(data.lengths.max()) for data in train)
    max_lengths = max(1, sum(batches_per_epoch(len(data), config.batch_size) for data in train) // 2)
    weights = np.sum([split * rate for split, rate in zip(counts, rates, strict=True)], 0)
    options = _cheapest(weights, np.array(ladder(longest, config.max_length)))[: min(MOST, max_lengths)]
    options += _common_options(train, config) if common else []
    # Mean number of tokens per row, without padding.
    tokens = float((weights * np.arange(len(weights))).sum() / weights.sum())
    per_run = num_steps * config.batch_size * max(data.num_choices for data in train) * tokens

    def cost(lengths: tuple[int, ...]) -> float:
        padding = _padding(train, rates, lengths, config.batch_size)
        return per_run / (1 - padding) + program_tokens * _programs(lengths, config, common)

    return min(options, key=cost)


def eval_lengths(
    splits: Sequence[TokenizedRows],
    config: TrainConfig,
    program_tokens: float,
    *,
    num_evaluations: int = 1,
    common: bool = False,
) -> tuple[int, ...]:
    """Chooses padded lengths of evaluation batches.

    They also minimize the total cost of padding and compilation.

    Args:
      splits: Splits that are evaluated with the same compiled programs.
      config: Provides ``max_length``, ``buckets`` and ``batch_size``. If ``buckets`` is set, it is used instead.
      program_tokens: Number of padding tokens that an additional length must remove.
      num_evaluations: Number of evaluations of each split.
      common: See :func:`choose_lengths`.
    """
    if config.buckets:
        return config.lengths
    weights = np.zeros(config.max_length + 1)
    for data in splits:
        longest_rows = [data.lengths[rows].max() for rows in eval_groups(data.lengths, config.batch_size)]
        np.add.at(weights, longest_rows, num_evaluations * config.batch_size * data.num_choices)
    longest = max(int(data.lengths.max()) for data in splits)
    allowed = np.array(ladder(longest, config.max_length))

    def cost(lengths: tuple[int, ...]) -> float:
        padded = np.asarray(lengths)[np.searchsorted(lengths, np.arange(longest + 1))]
        return float((weights[: longest + 1] * padded).sum()) + program_tokens * _programs(lengths, config, common)

    options = _cheapest(weights, allowed) + (_common_options(splits, config) if common else [])
    return min(options, key=cost)


def run_tokens(work: Workload, lengths: PaddedLengths) -> RunTokens:
    """Counts the tokens that a run computes with some padded lengths if it does not stop early."""
    batch_size = work.config.batch_size
    per_step = np.array(
        [
            float(data.offsets[-1])
            / (1 - padding_share(data, batch_size=batch_size, lengths=lengths.train))
            / batches_per_epoch(len(data), batch_size)
            for data in work.train
        ]
    )
    per_evaluation = sum(
        float(data.offsets[-1]) / (1 - padding_share(data, batch_size=batch_size, lengths=lengths.dev, training=False))
        for data in work.dev
    )
    weights = np.array(work.shares or [len(data) for data in work.train], np.float64)
    return RunTokens(
        train=work.num_steps * float((weights * per_step).sum() / weights.sum()),
        dev=work.num_evaluations * per_evaluation,
    )


def _common_options(splits: Sequence[TokenizedRows], config: TrainConfig) -> list[tuple[int, ...]]:
    """Returns ``max_length`` as the only option for the padded lengths.

    If a batch of this length has more than ``COMMON_TOKENS`` tokens, the result is empty.
    """
    tokens = config.batch_size * config.max_length * max(data.num_choices for data in splits)
    return [(config.max_length,)] if tokens <= COMMON_TOKENS else []


def _programs(lengths: tuple[int, ...], config: TrainConfig, common: bool) -> float:
    """Counts the programs to compile.

    The count is reduced by :data:`COMMON_LENGTH` if the only program can be shared with other runs.
    """
    return len(lengths) - (COMMON_LENGTH if common and lengths == (config.max_length,) else 0.0)


def inference_lengths(data: TokenizedRows, *, batch_size: int, max_length: int) -> tuple[int, ...]:
    """Chooses the padded lengths for a single prediction or evaluation pass.

    For small inputs, these are always multiples of a quarter of ``max_length``, so that later calls can reuse the
    compiled programs. For large inputs, they are adapted to the rows.

    Raises:
      UserError: A row is longer than ``max_length``.
    """
    config = TrainConfig(max_length=max_length, batch_size=batch_size)
    bucket_of(data.lengths, config.lengths)
    if len(data) * data.num_choices * max_length < 10 * INFERENCE_PROGRAM_TOKENS:
        return config.lengths
    return eval_lengths([data], config, INFERENCE_PROGRAM_TOKENS)


def ladder(longest: int, max_length: int) -> list[int]:
    """Lists the candidate lengths: 2, 4, ..., 24, 28, ..., 48, 56, and so on.

    The list ends with the first length that fits the longest row, clipped to ``max_length``.
    """
    lengths = [0]
    while lengths[-1] < longest:
        step = STEPS[max(begin for begin in STEPS if begin <= lengths[-1])]
        lengths.append(min(lengths[-1] + step, max_length))
    return lengths[1:]


def _padding(train: Sequence[TokenizedRows], rates: np.ndarray, lengths: Sequence[int], batch_size: int) -> float:
    """Computes the :func:`padding_share` of several splits.

    The splits are weighted by how often their rows are sampled.
    """
    tokens = rates * [float(data.offsets[-1]) for data in train]
    shares = np.array([padding_share(data, batch_size=batch_size, lengths=lengths) for data in train])
    return 1 - float(tokens.sum() / (tokens / (1 - shares)).sum())


def _cheapest(weights: np.ndarray, allowed: np.ndarray) -> list[tuple[int, ...]]:
    """Finds the best 1, 2, ..., ``MOST`` padded lengths.

    They minimize the total number of tokens.

    Every choice includes the longest allowed length. Uses dynamic programming over the number of lengths.
    """
    upto = np.cumsum(weights)[allowed]  # Weight of the rows that fit into each length.
    # tokens[i, j]: the number of tokens if the rows that fit into allowed[j] but not into allowed[i - 1] are padded to
    # allowed[j].
    below = np.concatenate([[0.0], upto[:-1]])
    tokens = np.where(np.tri(len(allowed)).T > 0, (upto[None] - below[:, None]) * allowed[None], np.inf)
    cost, chosen = tokens[0], [[(int(length),) for length in allowed]]
    for _ in range(min(MOST, len(allowed)) - 1):
        # The last length is allowed[j], and the length before it is allowed[i - 1].
        options = cost[:-1, None] + tokens[1:]
        predecessors = options.argmin(0)
        previous = chosen[-1]
        chosen.append([(*previous[predecessors[j]], int(length)) for j, length in enumerate(allowed)])
        cost = options.min(0)
    return [lengths[-1] for lengths in chosen]
