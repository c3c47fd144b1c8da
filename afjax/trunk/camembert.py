"""CamemBERT (Martin 2020). RoBERTa's architecture with a French vocabulary."""

import dataclasses

from afjax.trunk import roberta

# The names of the weights in CamemBERT's checkpoints also begin with "roberta.".
FAMILY = dataclasses.replace(roberta.FAMILY, name="camembert")
