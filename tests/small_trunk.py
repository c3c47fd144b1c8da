"""The architecture of a small random trunk."""

from afjax.trunk.config import TrunkConfig

SMALL_TRUNK = TrunkConfig(
    family="bert",
    vocab_size=30,
    hidden_size=12,
    num_layers=3,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    type_vocab_size=2,
)
