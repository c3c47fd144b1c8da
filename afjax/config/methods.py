"""Training methods: the trained part of a model, and its architecture."""

import dataclasses
import os

from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig
from afjax.config.from_dict import Settings, check_value, settings_repr, shown
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.training import SamplingConfig
from afjax.config.values import TRAINS_LAYERS, Partition
from afjax.errors import UserError, did_you_mean


def check_partition(partition: Partition, adapter: Adapter) -> None:
    """Raises UserError if the partition cannot be trained with this adapter.

    ``fusion`` cannot be trained directly, so it also raises the error.
    """
    check_value(Partition, partition, "The partition")
    if partition == "fusion":
        raise UserError('partition="fusion" cannot be trained directly; use the fusion recipe.')
    if partition == "adapter+trunk" and isinstance(adapter, AdapterConfig) and adapter.layer_norms:
        raise UserError(
            'partition="adapter+trunk" trains the trunk\'s own LayerNorms, and an adapter with layer_norms=True would '
            "duplicate them; set adapter.layer_norms=False."
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Method(Settings, name="method"):
    """The trained part of a model and its architecture. The head is always trained.

    Attributes:
      partition: What to train in addition to the head: ``adapter``; ``adapter+trunk``, an adapter together with the
        trunk; ``head``, nothing else; ``full``, the entire trunk; ``layernorm``, the trunk's LayerNorms; or ``top_k``,
        the trunk's top layers.
      adapter: The adapter's architecture, for partitions with an adapter.
      head: The head's architecture.
      top_k: Number of layers that the ``top_k`` partition trains; 0 for the other partitions.

    Raises:
      UserError: A field has the wrong type, ``partition`` is ``fusion``, an adapter with ``layer_norms`` is trained
        together with the trunk, or ``top_k`` does not match the partition.

    Example:
      >>> from afjax import ADAPTER_PRESETS, Method
      >>> Method(adapter=ADAPTER_PRESETS["houlsby"]).partition
      'adapter'

    Reference:
      Houlsby et al. 2019, *Parameter-Efficient Transfer Learning for NLP*, section 2 (adapters) and section 3.4 (top
      layers, LayerNorms).
    """

    partition: Partition = "adapter"
    adapter: Adapter = AdapterConfig()
    head: HeadConfig = HeadConfig()
    top_k: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.adapter, str):
            known = self.adapter in ADAPTER_PRESETS
            raise UserError(
                f"method.adapter is {shown(self.adapter)}; use a config, such as AdapterConfig(), or a preset, such as "
                f'ADAPTER_PRESETS["{self.adapter if known else "pfeiffer"}"] (presets: '
                f"{', '.join(ADAPTER_PRESETS)}).{'' if known else did_you_mean(self.adapter, ADAPTER_PRESETS)}"
            )
        super().__post_init__()
        check_partition(self.partition, self.adapter)
        if (self.partition == "top_k") != (self.top_k != 0) or self.top_k < 0:
            raise UserError(
                f'partition="{self.partition}" with top_k={self.top_k}: the "top_k" partition needs a top_k above 0, '
                "and other partitions need 0."
            )

    @property
    def has_adapter(self) -> bool:
        """Whether the partition trains an adapter."""
        return self.partition in ("adapter", "adapter+trunk")

    @property
    def trains_trunk(self) -> bool:
        """Whether the partition trains any of the trunk's parameters."""
        return self.partition in (*TRAINS_LAYERS, "layernorm")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MultitaskMethod(Method):
    """Joint training of several tasks with the same partition and architectures.

    Attributes:
      sampling: How to sample the task of each step.
      partition, adapter, head, top_k: See :class:`Method`. By default, the shared trunk and one adapter per task are
        trained.

    Raises:
      UserError: A field is invalid, for the same reasons as in :class:`Method`.

    Example:
      >>> from afjax import ADAPTER_PRESETS, MultitaskMethod, SamplingConfig
      >>> method = MultitaskMethod(adapter=ADAPTER_PRESETS["pals"], sampling=SamplingConfig(sampler="square_root"))
      >>> method.partition
      'adapter+trunk'

    Reference:
      Stickland & Murray 2019, *BERT and PALs*, sections 3 and 4; Pfeiffer et al. 2021, *AdapterFusion*, section 3.1
      (MT-A).
    """

    partition: Partition = "adapter+trunk"
    sampling: SamplingConfig = SamplingConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusionMethod:
    """Training of a head and a fusion of stored adapters.

    The trunk and the adapters are frozen.

    Attributes:
      adapters: Names of the adapters in the store, in order.
      store: The store's folder, local or ``gs://``.
      fusion: The fusion's architecture.
      head: The head's architecture.

    Raises:
      UserError: A field has the wrong type, or ``adapters`` is empty or has duplicates.

    Example:
      >>> from afjax import FusionMethod
      >>> FusionMethod(adapters=["entail", "paraphrase"], store="store")
      FusionMethod(adapters=('entail', 'paraphrase'), store='store')

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion*, section 3.2.
    """

    adapters: tuple[str, ...]
    store: str | os.PathLike[str]
    fusion: FusionConfig = FusionConfig()
    head: HeadConfig = HeadConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapters", check_value(tuple[str, ...], self.adapters, "method.adapters"))
        if not self.adapters:
            raise UserError("method.adapters is empty; name at least one adapter in the store.")
        if len(set(self.adapters)) != len(self.adapters):
            raise UserError(f"method.adapters is {', '.join(self.adapters)}; name each adapter once.")
        if not isinstance(self.store, str | os.PathLike):
            raise UserError(f"method.store is {shown(self.store)}; it must be the path of the store's folder.")
        for name, value, kind in (("fusion", self.fusion, FusionConfig), ("head", self.head, HeadConfig)):
            if not isinstance(value, kind):
                raise UserError(f"method.{name} is {shown(value)}; it must be of type {kind.__name__}.")
