"""Imports Google's BERT models (google-research/bert).

A model is a TensorFlow 1 checkpoint with a ``bert_config.json`` and a ``vocab.txt``.
"""

from collections.abc import Iterable

from afjax.interop.bert_files import Case, Gelu, bert_trunk, check_trunk_folder, hugging_face_config, read_bert_config
from afjax.interop.bert_tables import TENSORFLOW, Tensors, check_names, fill, trunk_table
from afjax.interop.tensorflow_checkpoints import find_checkpoint, read_variables
from afjax.storage.paths import AnyPath
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import trunk_shapes
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

# Scopes of the two pretraining heads.
_PRETRAINING = ("cls/predictions/", "cls/seq_relationship/")


def optimizer_variables(names: Iterable[str]) -> set[str]:
    """Finds the optimizer's variables.

    They are the global step, and the Adam moments of other variables in ``names``.
    """
    names = set(names)
    moments = {name for name in names for slot in ("/adam_m", "/adam_v") if name.removesuffix(slot) in names - {name}}
    return moments | (names & {"global_step"})


def from_google(variables: Tensors, config: TrunkConfig, *, where: str) -> Tree:
    """Converts the variables of ``bert_model.ckpt`` to a trunk's parameters.

    Variables of the pretraining heads (``cls/...``) and the optimizer are dropped.

    Raises:
      UserError: Variables are missing, unknown or do not have the shape that the config implies (the message lists
        them), or a variable contains NaN or infinity.
    """
    table = trunk_table(TENSORFLOW, config.num_layers)
    ignored = optimizer_variables(variables) | {name for name in variables if name.startswith(_PRETRAINING)}
    check_names(variables, table, known=ignored, where=where)
    return fill(trunk_shapes(config), table, variables, where=where)


def import_bert(
    source: AnyPath,
    output: AnyPath,
    *,
    config: AnyPath | None = None,
    vocab: AnyPath | None = None,
    case: Case | None = None,
    gelu: Gelu = "exact",
    overwrite: bool = False,
) -> Trunk:
    """Converts a Google BERT checkpoint to a folder for ``load_trunk``, and loads it.

    Args:
      source: The checkpoint, or the folder that contains it.
      output: The folder to write, local or ``gs://``.
      config, vocab: Paths of ``bert_config.json`` and ``vocab.txt``. Default to the files next to the checkpoint.
      case: Whether the tokenizer lowercases ("uncased"). Defaults to "uncased" if no token has a capital letter.
      gelu: The GELU variant. Google's later code uses the tanh approximation, whereas its first version and Hugging
        Face use the exact function.
      overwrite: Whether ``output`` may be a non-empty folder.

    Returns:
      The trunk, loaded from ``output``.

    Raises:
      UserError: A file is missing or damaged, the weights do not match the config, or ``output`` cannot be written.
    """
    check_trunk_folder(output, overwrite=overwrite)
    folder = find_checkpoint(source).parent
    config = config or folder / "bert_config.json"
    values = hugging_face_config(read_bert_config(config), gelu=gelu, where=str(config))
    params = from_google(read_variables(source), trunk_config(values, where=str(config)), where=str(source))
    with bert_trunk(output, params, values, vocab=vocab or folder / "vocab.txt", case=case) as trunk:
        save_trunk(str(output), trunk)
    return load_trunk(str(output))
