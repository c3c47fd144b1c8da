"""Google's own BERTs: TensorFlow 1 checkpoints with ``bert_config.json`` and ``vocab.txt`` (google-research/bert)."""

from collections.abc import Iterable

from afjax.interop.bert_files import Case, Gelu, bert_trunk, check_output, hugging_face_config, read_bert_config
from afjax.interop.bert_tables import TENSORFLOW, Tensors, check_names, fill, trunk_shapes, trunk_table
from afjax.interop.tensorflow_checkpoints import find_checkpoint, read_variables
from afjax.storage.paths import AnyPath
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.hugging_face import trunk_config
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

# The two tasks of pretraining.
_PRETRAINING = ("cls/predictions/", "cls/seq_relationship/")


def optimizer_variables(names: Iterable[str]) -> set[str]:
    """Those of BERT's optimizer: the step, and Adam's two moments of other variables in ``names``."""
    names = set(names)
    moments = {name for name in names for slot in ("/adam_m", "/adam_v") if name.removesuffix(slot) in names - {name}}
    return moments | (names & {"global_step"})


def from_google(variables: Tensors, config: TrunkConfig, *, where: str) -> Tree:
    """A trunk's tree from the variables of ``bert_model.ckpt``.

    Pretraining's own (``cls/...``) and the optimizer's are left out.

    Raises:
      UserError: Lists variables that are missing, unknown or of another shape than the config says.
    """
    table = trunk_table(TENSORFLOW, config.num_layers)
    known = optimizer_variables(variables) | {name for name in variables if name.startswith(_PRETRAINING)}
    check_names(variables, table, known=known, where=where)
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
    """Writes Google's BERT as a folder that ``load_trunk`` takes.

    Args:
      source: The checkpoint, or the folder that holds it.
      output: The folder to write, local or ``gs://``.
      config, vocab: ``bert_config.json`` and ``vocab.txt``; None: those beside the checkpoint.
      case: Of the tokenizer; None: as the vocabulary is.
      gelu: Google's later code computes the tanh approximation, the first and Hugging Face's the exact one.
      overwrite: Whether ``output`` may hold something.

    Raises:
      UserError: A file is missing or damaged, weights that do not fit, or an output that cannot be written.
    """
    check_output(output, overwrite=overwrite)
    folder = find_checkpoint(source).parent
    config = config or folder / "bert_config.json"
    values = hugging_face_config(read_bert_config(config), gelu=gelu, where=str(config))
    params = from_google(read_variables(source), trunk_config(values, where=str(config)), where=str(source))
    with bert_trunk(output, params, values, vocab=vocab or folder / "vocab.txt", case=case) as trunk:
        save_trunk(str(output), trunk)
    return load_trunk(str(output))
