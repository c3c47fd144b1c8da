"""Times one step of a method with random weights and synthetic tokens."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from afjax.config import methods
from afjax.config.adapters import ADAPTER_PRESETS, InDenseLayers
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition, TrunkDtype
from afjax.distributed.host_memory import peak_host_memory, return_freed_memory
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.tpu.program import count_work
from afjax.train.optimizer import make_optimizer, step_settings
from afjax.train.step import init_state, make_eval_step, make_train_step
from afjax.trees import Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import cast_trunk, init_trunk
from afjax.trunk.layers import loop_layers
from afjax.trunk.sizes import trunk_size

Method = Literal["adapter", "fusion", "full"]
Mode = Literal["train", "eval"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A compiled step.

    Attributes:
      run: Runs one step and waits for its result.
      compile_s: Seconds spent tracing and compiling.
      compiled: The compiled program.
    """

    run: Callable[[], None]
    compile_s: float
    compiled: jax.stages.Compiled

    @property
    def flops(self) -> float:
        """Number of floating-point operations in the program.

        NaN if the program has loops and calls libraries, as on a GPU with ``scan_layers``: XLA counts the operations of
        libraries, but the body of a loop only once.
        """
        text = self.compiled.as_text() or ""
        work = count_work(text)
        if not work.uncounted:
            return float(work.flops)
        analysis = self.compiled.cost_analysis()
        return float(analysis["flops"]) if analysis and " while(" not in text else math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A step to time.

    Attributes:
      trunk: The name of a size (``bert-base``), or a folder with a config.json.
      method: ``adapter`` (one adapter), ``fusion`` (of ``num_adapters`` adapters), or ``full`` fine-tuning.
      preset: The adapters' preset, a key of ``ADAPTER_PRESETS``.
      mode: ``train`` (forward, backward, update, with dropout) or ``eval`` (forward, without dropout).
      num_adapters: Number of fused adapters.
      batch_size: Rows per step.
      max_length: Number of tokens per row.
      scan_layers: Whether to compile all layers but the last as a loop.
      trunk_dtype: The dtype of the trunk's activations, and of its weights if they are frozen.
    """

    trunk: str
    method: Method
    mode: Mode
    num_adapters: int
    batch_size: int
    max_length: int
    preset: str = "pfeiffer"
    scan_layers: bool = False
    trunk_dtype: TrunkDtype = "float32"


def prepare(case: Case) -> Prepared:
    """Builds a model with random weights and compiles its step.

    Raises:
      UserError: The size is unknown, or a number is out of range.
    """
    config = trunk_size(case.trunk)
    if case.num_adapters < 1 or case.batch_size < 1 or not 1 <= case.max_length <= config.max_length:
        raise UserError(
            f"num_adapters={case.num_adapters}, batch_size={case.batch_size}, max_length={case.max_length}: each "
            f"must be at least 1, and max_length at most {config.max_length}."
        )
    setup = _setup(config, case)
    setup = setup.computed(dtype=case.trunk_dtype, scan_layers=case.scan_layers)
    model, key = setup.model, jax.random.key(0)
    trunk_params = init_trunk(named_key(key, "trunk"), config, stacked=case.scan_layers)
    if case.scan_layers:
        trunk_params = {**trunk_params, "layers": loop_layers(trunk_params["layers"])}
    params = setup.init(key, trunk_params)
    batch = _synthetic_batch(config.vocab_size, case.batch_size, case.max_length)
    if case.mode == "eval":
        params = {**params, "trunk": cast_trunk(params["trunk"], case.trunk_dtype)}
        return _prepare_eval(model, model.fold(params), batch)
    trained, frozen = setup.split(params)
    if "trunk" in frozen:
        frozen = {**frozen, "trunk": cast_trunk(frozen["trunk"], case.trunk_dtype)}
    return _prepare_train(model, trained, model.with_bank(frozen) if case.method == "fusion" else frozen, batch)


def _setup(trunk: TrunkConfig, case: Case) -> Setup:
    adapter = ADAPTER_PRESETS[case.preset]
    head: dict[str, Any] = {"name": "head", "reads": "pooled", "num_outputs": 2}
    if case.method == "fusion":
        adapters = dict.fromkeys((f"adapter{number}" for number in range(case.num_adapters)), adapter)
        return fusion_setup(adapters, FusionConfig(), HeadConfig(), trunk, **head)
    # Adapters in dense layers are merged into a float32 trunk for inference, so the step has the same operations as
    # without an adapter.
    is_merged = case.mode == "eval" and isinstance(adapter, InDenseLayers) and case.trunk_dtype == "float32"
    partition: Partition = "head" if case.method == "adapter" and is_merged else case.method
    return single_setup(methods.Method(partition=partition, adapter=adapter), trunk, **head)


def _synthetic_batch(vocab_size: int, batch_size: int, length: int) -> dict[str, jax.Array]:
    tokens = np.random.default_rng(0).integers(5, vocab_size, (batch_size, length), dtype=np.int32)
    return {
        "tokens": jnp.asarray(tokens),
        "types": jnp.zeros((batch_size, length), jnp.int32),
        "mask": jnp.ones((batch_size, length), bool),
        "labels": jnp.zeros(batch_size, jnp.int32),
        "weights": jnp.ones(batch_size),
    }


def _prepare_eval(model: Model, params: Tree, batch: dict[str, jax.Array]) -> Prepared:
    compiled, seconds = _compiled(jax.jit(make_eval_step(model)), params, batch)
    return Prepared(run=lambda: jax.block_until_ready(compiled(params, batch)), compile_s=seconds, compiled=compiled)


def _prepare_train(model: Model, trained: Tree, frozen: Tree, batch: dict[str, jax.Array]) -> Prepared:
    optimizer = make_optimizer(TrainConfig(), trained)
    settings = step_settings(TrainConfig(), 1e-4)
    key = jax.random.key(0, impl=TrainConfig().prng)
    holder = {"state": init_state(trained, optimizer)}
    step = jax.jit(make_train_step(model, optimizer, "classification", dropout=True), donate_argnums=0)
    compiled, seconds = _compiled(step, holder["state"], frozen, batch, key, settings)

    def run() -> None:
        holder["state"], _ = jax.block_until_ready(compiled(holder["state"], frozen, batch, key, settings))

    return Prepared(run=run, compile_s=seconds, compiled=compiled)


def _compiled(step: Any, *arguments: Any) -> tuple[Any, float]:
    """Compiles a jitted step for its arguments, and returns the program and the seconds that this took."""
    begin = time.perf_counter()
    compiled = step.lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    return_freed_memory()
    return compiled, seconds


def measure(prepared: Prepared, *, num_steps: int, batch_size: int) -> dict[str, Any]:
    """Times ``num_steps`` steps after one warm-up step.

    Returns:
      ``median_step_s``, ``min_step_s``, ``examples_per_s`` (from the median), ``compile_s``, ``flops`` (per step) and
      ``peak_memory_gb`` (in 10**9 bytes; see :func:`peak_memory_bytes`).
    """
    prepared.run()
    seconds = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        prepared.run()
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    return {
        "median_step_s": median,
        "min_step_s": min(seconds),
        "examples_per_s": batch_size / median,
        "compile_s": prepared.compile_s,
        "flops": prepared.flops,
        "peak_memory_gb": peak_memory_bytes() / 1e9,
    }


def peak_memory_bytes() -> int:
    """Returns the first device's peak memory in bytes.

    If the device does not report it, returns the process's peak resident set size.
    """
    statistics_ = jax.devices()[0].memory_stats()
    if statistics_ and "peak_bytes_in_use" in statistics_:
        return statistics_["peak_bytes_in_use"]
    return peak_host_memory()
