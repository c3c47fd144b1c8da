"""Sharing adapters: archives, the Hugging Face hub, model cards, and checks of what is received."""

from afjax.share.archive import pack, unpack
from afjax.share.hub import pull, push

__all__ = ["pack", "pull", "push", "unpack"]
