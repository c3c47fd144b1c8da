"""Adapters on BERT-family encoders in JAX.

The public names are listed below. Each is imported on first use, so ``import afjax`` is fast.

Example:
  >>> import afjax
  >>> afjax.rows_from_lists(["A fine film.", "Far too long."], ["good", "bad"])
  <Rows: 2 texts, labels bad (1), good (1)>
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afjax.adapters.average import average_adapters
    from afjax.adapters.bottleneck import bottleneck
    from afjax.adapters.kinds import layer_params
    from afjax.adapters.pal import pal
    from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig, Ia3Config, LoraConfig, PalConfig
    from afjax.config.capacity import Capacity
    from afjax.config.fusion import FusionConfig
    from afjax.config.heads import HeadConfig
    from afjax.config.methods import FusionMethod, Method, MultitaskMethod
    from afjax.config.tasks import MultiLabelConfig, SpanConfig, TaskConfig
    from afjax.config.training import SamplingConfig, TrainConfig
    from afjax.data.batches import Batching, eval_batches, train_batches
    from afjax.errors import UserError
    from afjax.fusion.factored import fuse
    from afjax.model.encoder_module import Encoder
    from afjax.model.loading import load_task_model
    from afjax.model.model import Model
    from afjax.model.setup import Setup, fusion_setup, single_setup
    from afjax.model.stored import load_adapter, load_fusion
    from afjax.model.task_model import TaskModel
    from afjax.serve.loading import load_routed_model
    from afjax.serve.routed_model import RoutedModel
    from afjax.tasks.by_name import find_task
    from afjax.tasks.kinds import initial_output_bias
    from afjax.tasks.load import load_split, load_task, rows_from_lists, rows_from_table
    from afjax.tasks.predictions import Predictions
    from afjax.tasks.tokenize import tokenize
    from afjax.train.fusion import train_fusion
    from afjax.train.loss import task_loss
    from afjax.train.many import PlannedRun, train_many
    from afjax.train.multitask import train_multitask
    from afjax.train.optimizer import learning_rate, make_optimizer
    from afjax.train.options import RunOptions
    from afjax.train.sequential import train_sequential
    from afjax.train.shared import Shared
    from afjax.train.single import train_single
    from afjax.trees import merge
    from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

__version__ = "0.1.0"

_HOMES = {
    "afjax.adapters.average": ("average_adapters",),
    "afjax.adapters.bottleneck": ("bottleneck",),
    "afjax.adapters.kinds": ("layer_params",),
    "afjax.adapters.pal": ("pal",),
    "afjax.config.adapters": ("ADAPTER_PRESETS", "AdapterConfig", "Ia3Config", "LoraConfig", "PalConfig"),
    "afjax.config.fusion": ("FusionConfig",),
    "afjax.config.heads": ("HeadConfig",),
    "afjax.config.methods": ("FusionMethod", "Method", "MultitaskMethod"),
    "afjax.config.tasks": ("MultiLabelConfig", "SpanConfig", "TaskConfig"),
    "afjax.config.training": ("SamplingConfig", "TrainConfig"),
    "afjax.data.batches": ("Batching", "eval_batches", "train_batches"),
    "afjax.errors": ("UserError",),
    "afjax.fusion.factored": ("fuse",),
    "afjax.model.encoder_module": ("Encoder",),
    "afjax.model.loading": ("load_task_model",),
    "afjax.model.model": ("Model",),
    "afjax.model.setup": ("Setup", "fusion_setup", "single_setup"),
    "afjax.model.stored": ("load_adapter", "load_fusion"),
    "afjax.model.task_model": ("TaskModel",),
    "afjax.config.capacity": ("Capacity",),
    "afjax.serve.loading": ("load_routed_model",),
    "afjax.serve.routed_model": ("RoutedModel",),
    "afjax.tasks.by_name": ("find_task",),
    "afjax.tasks.kinds": ("initial_output_bias",),
    "afjax.tasks.predictions": ("Predictions",),
    "afjax.tasks.load": ("load_split", "load_task", "rows_from_lists", "rows_from_table"),
    "afjax.tasks.tokenize": ("tokenize",),
    "afjax.train.fusion": ("train_fusion",),
    "afjax.train.loss": ("task_loss",),
    "afjax.train.many": ("PlannedRun", "train_many"),
    "afjax.train.multitask": ("train_multitask",),
    "afjax.train.optimizer": ("learning_rate", "make_optimizer"),
    "afjax.train.options": ("RunOptions",),
    "afjax.train.sequential": ("train_sequential",),
    "afjax.train.shared": ("Shared",),
    "afjax.train.single": ("train_single",),
    "afjax.trees": ("merge",),
    "afjax.trunk.pretrained": ("Trunk", "load_trunk", "save_trunk"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ADAPTER_PRESETS",
    "AdapterConfig",
    "Batching",
    "Capacity",
    "Encoder",
    "FusionConfig",
    "FusionMethod",
    "HeadConfig",
    "Ia3Config",
    "LoraConfig",
    "Method",
    "Model",
    "MultiLabelConfig",
    "MultitaskMethod",
    "PalConfig",
    "PlannedRun",
    "Predictions",
    "RoutedModel",
    "RunOptions",
    "SamplingConfig",
    "Setup",
    "Shared",
    "SpanConfig",
    "TaskConfig",
    "TaskModel",
    "TrainConfig",
    "Trunk",
    "UserError",
    "average_adapters",
    "bottleneck",
    "eval_batches",
    "find_task",
    "fuse",
    "fusion_setup",
    "initial_output_bias",
    "layer_params",
    "learning_rate",
    "load_adapter",
    "load_fusion",
    "load_routed_model",
    "load_split",
    "load_task",
    "load_task_model",
    "load_trunk",
    "make_optimizer",
    "merge",
    "pal",
    "rows_from_lists",
    "rows_from_table",
    "save_trunk",
    "single_setup",
    "task_loss",
    "tokenize",
    "train_batches",
    "train_fusion",
    "train_many",
    "train_multitask",
    "train_sequential",
    "train_single",
]


# Type checkers take the names from the imports above. With this function, they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOME_OF:
            return getattr(importlib.import_module(_HOME_OF[name]), name)
        raise AttributeError(f"module 'afjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
