"""Shares adapters through archives and the Hugging Face hub, with model cards and checks of received files."""

from afjax.share.archive import pack, unpack
from afjax.share.hub import pull, push

__all__ = ["pack", "pull", "push", "unpack"]
