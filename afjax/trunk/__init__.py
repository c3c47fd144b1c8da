"""Pretrained encoders: modules, weights, tokenizers and embeddings."""
