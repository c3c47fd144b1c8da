"""Keeps compiled programs on the disk."""

from afjax.storage.paths import cache_folder


def use_compilation_cache() -> None:
    """Enables the persistent compilation cache."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
