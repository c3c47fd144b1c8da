"""XLM-RoBERTa (Conneau 2020). RoBERTa's architecture with a multilingual vocabulary."""

import dataclasses

from afjax.trunk import roberta

# The names of the weights begin with "roberta." too.
FAMILY = dataclasses.replace(roberta.FAMILY, name="xlm-roberta")
