"""XLM-RoBERTa (Conneau 2020). RoBERTa with a multilingual vocabulary."""

import dataclasses

from afjax.trunk import roberta

# In XLM-RoBERTa's checkpoints too, the names of the weights begin with "roberta.".
FAMILY = dataclasses.replace(roberta.FAMILY, name="xlm-roberta")
