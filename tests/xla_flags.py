"""XLA flags with which tests compile."""

import os
from importlib.metadata import version

# jaxlib 0.11 removed the older emitters, and an unknown flag ends the process.
HAS_OLDER_EMITTERS = version("jaxlib") < "0.11"

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_opt_preset=FAST_COMPILE",
    "--xla_cpu_parallel_codegen_split_count=1",
    *(["--xla_cpu_use_fusion_emitters=false"] if HAS_OLDER_EMITTERS else []),
)


def compile_quickly() -> None:
    """Sets flags for tiny programs on the CPU. Call this before importing JAX.

    Tests spend nearly all of their time compiling, so the compiler skips expensive optimizations. A training step then
    compiles in a quarter of the time.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION)).strip()
