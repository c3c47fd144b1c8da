"""Imports and exports LoRA adapters in the format of the PEFT library (PyTorch).

:mod:`~afjax.interop.peft.files` describes the folder layout. The modules ``settings``, ``lora`` and ``heads`` map
PEFT's settings and tensors to afjax's.

Example:
  >>> import numpy as np
  >>> from afjax import store
  >>> from afjax.interop.peft import export_peft
  >>> part = {"down": {"kernel": np.ones((2, 8, 4), np.float32)}, "up": {"kernel": np.ones((2, 4, 8), np.float32)}}
  >>> tree, settings = {"attention": {"query": part}}, {"kind": "lora", "target_modules": ["query"], "rank": 4}
  >>> trunk = {"name": "bert-base-uncased", "family": "bert", "hidden_size": 8, "num_layers": 2}
  >>> _ = store.save("store", store.Draft("adapters", "rte", tree, config=settings, trunk=trunk))
  >>> [part for part, folder in export_peft("store", "rte", "exported")]
  ['adapter rte']
"""

from afjax.interop.peft.exporting import export_peft
from afjax.interop.peft.heads import PeftHead
from afjax.interop.peft.importing import import_peft

__all__ = ["PeftHead", "export_peft", "import_peft"]
