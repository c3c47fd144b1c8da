"""Pretrained encoders: modules with slots, weights, identities, embeddings."""
