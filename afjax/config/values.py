"""Types and checks shared by config classes."""

from typing import Literal

from afjax.config.from_dict import shown
from afjax.errors import UserError

# How a row's last hidden states are reduced to one vector.
Pooling = Literal["first", "mean"]
Activation = Literal["relu", "leaky_relu", "swish", "gelu", "gelu_tanh", "tanh"]


# Partitions that train the trunk's layers, so their runs cannot share a frozen trunk with other runs.
TRAINS_LAYERS = ("adapter+trunk", "full", "top_k")
Partition = Literal["adapter", "adapter+trunk", "fusion", "head", "full", "layernorm", "top_k"]
TrunkDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "matmuls", "layers"]
# File names are limited to 255 bytes. The longest one derived from an artifact's name is the reservation file
# "adapters-NAME.json.part".
MAX_NAME_BYTES = 236
# jax.random.key maps seeds that differ by a multiple of this to the same key.
NUM_SEEDS = 2**32


def check_seed(seed: int) -> None:
    """Raises UserError unless the seed is an integer from 0 to 4294967295.

    Different seeds in this range result in different random keys.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < NUM_SEEDS:
        raise UserError(f"The seed is {shown(seed)}; it must be an int from 0 to {NUM_SEEDS - 1}.")


def check_name(name: str, kind: str) -> None:
    """Raises UserError unless ``name`` is a valid folder name and parameter tree key."""
    unusable = name.startswith(".") or any(sign in name for sign in "/\\,:") or not name.isprintable()
    if not name or unusable or name != name.strip():
        raise UserError(
            f'The {kind} name "{name}" cannot be used; use letters, digits, "_", "-" and "." (but not as the '
            'first character), without "/", "\\", ":" or a comma.'
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise UserError(
            f'The {kind} name "{name[:40]}..." has {len(name.encode())} bytes; the limit is {MAX_NAME_BYTES} bytes.'
        )
