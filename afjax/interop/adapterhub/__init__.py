"""Imports and exports folders of AdapterHub's ``adapters`` library (PyTorch).

:mod:`~afjax.interop.adapterhub.files` describes the folder layout. The modules ``adapters``, ``fusion`` and ``heads``
map the library's settings and tensors to afjax's.

Example:
  >>> import numpy as np
  >>> from afjax import store
  >>> from afjax.interop.adapterhub import export_adapterhub
  >>> down = {"kernel": np.zeros((2, 8, 4), np.float32), "bias": np.zeros((2, 4), np.float32)}
  >>> up = {"kernel": np.zeros((2, 4, 8), np.float32), "bias": np.zeros((2, 8), np.float32)}
  >>> trunk = {"name": "bert-base-uncased", "family": "bert", "hidden_size": 8, "num_layers": 2}
  >>> tree, settings = {"ffn": {"down": down, "up": up}}, {"kind": "bottleneck", "size": 4}
  >>> _ = store.save("store", store.Draft("adapters", "rte", tree, config=settings, trunk=trunk))
  >>> [part for part, folder in export_adapterhub("store", "rte", "exported")]
  ['adapter rte']
"""

from afjax.interop.adapterhub.exporting import export_adapterhub
from afjax.interop.adapterhub.importing import import_adapterhub
from afjax.interop.imported import Imported

__all__ = ["Imported", "export_adapterhub", "import_adapterhub"]
