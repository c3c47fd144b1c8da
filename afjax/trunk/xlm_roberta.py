"""XLM-RoBERTa (Conneau 2020). RoBERTa with a multilingual vocabulary."""

import dataclasses

from afjax.trunk import roberta

# The names of the weights in XLM-RoBERTa's checkpoints also begin with "roberta.".
FAMILY = dataclasses.replace(roberta.FAMILY, name="xlm-roberta")
