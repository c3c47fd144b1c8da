"""Shares adapters through archives and the Hugging Face hub.

Shared artifacts get a model card. Received files are checked before they are installed.

Example:
  >>> import numpy as np
  >>> from afjax import share, store
  >>> tree, trunk = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}, {"name": "minilm", "sha256": "ab"}
  >>> _ = store.save("mine", store.Draft("adapters", "rte", tree, config={}, trunk=trunk))
  >>> _ = share.pack("mine", "rte", "rte.tar")
  >>> _ = share.unpack("rte.tar", "yours")
  >>> store.names("yours", "adapters")
  ['rte']
"""

from afjax.share.archive import pack, unpack
from afjax.share.hub import pull, push

__all__ = ["pack", "pull", "push", "unpack"]
