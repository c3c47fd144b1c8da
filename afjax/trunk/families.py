"""The table of encoder families.

To add a family, define ``FAMILY`` in a new module of this package, and list the module here.
"""

from collections.abc import Mapping

from afjax.trunk import bert, camembert, deberta_v2, distilbert, electra, modernbert, mpnet, roberta, xlm_roberta
from afjax.trunk.family import EncoderFamily

_MODULES = (bert, roberta, mpnet, distilbert, xlm_roberta, camembert, electra, modernbert, deberta_v2)
ENCODER_FAMILIES: Mapping[str, EncoderFamily] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
