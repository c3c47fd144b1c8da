"""Pretrained encoders: the modules and their slots, importing weights, identities, and embeddings."""
