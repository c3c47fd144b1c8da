"""Pretrained encoders: the module with its slots, import of weights, identity, and embeddings."""
