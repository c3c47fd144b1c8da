"""A trunk with adapters, a fusion and a head as one model, and what is trained of it."""
