"""CamemBERT (Martin 2020). RoBERTa's architecture with a French vocabulary."""

import dataclasses

from afjax.trunk import roberta

# The names of the weights begin with "roberta." too.
FAMILY = dataclasses.replace(roberta.FAMILY, name="camembert")
