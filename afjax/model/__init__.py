"""Complete models (trunk, adapters, fusion and head): setup, inference, storage."""
