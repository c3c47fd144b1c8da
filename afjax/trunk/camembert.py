"""CamemBERT (Martin 2020). RoBERTa's architecture with a French vocabulary."""

import dataclasses

from afjax.trunk import roberta

# In CamemBERT's checkpoints too, the names of the weights begin with "roberta.".
FAMILY = dataclasses.replace(roberta.FAMILY, name="camembert")
