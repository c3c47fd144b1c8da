"""Package metadata; the tools' settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

# What `afjax serve` needs.
SERVE = ["prometheus-client>=0.22", "starlette>=0.46", "uvicorn>=0.34"]
# What builds the documentation site, and executes its notebooks.
DOCS = ["furo>=2025.9", "myst-nb>=1.3", "pandas>=2.2", "sphinx>=8.2", "sphinx-copybutton>=0.5", "sphinx-design>=0.6"]

setup(
    name="afjax",
    version="0.1.0",
    description="Adapters on BERT-family encoders in JAX: train, fuse, store and reuse them, on TPUs first.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # The configs are at the top of the repository; an installed package has them as afjax/configs.
    packages=[*find_packages(include=["afjax", "afjax.*"]), "afjax.configs"],
    package_dir={"afjax.configs": "configs"},
    # py.typed tells type checkers that afjax has type annotations.
    package_data={"afjax": ["analysis/report.css", "py.typed", "serve/page.css", "serve/page.html", "serve/page.js"]},
    install_requires=[
        "absl-py>=2.1",
        "array_record>=0.8; sys_platform == 'linux'",
        "etils[epath]>=1.12",
        # What jax.export needs to write its files, and to read them.
        "flatbuffers>=24.3",
        "flax>=0.12",
        "huggingface_hub>=1.0",
        "importlib_resources>=6.4",
        "jax>=0.10",
        "jaxtyping>=0.3",
        "matplotlib>=3.9",
        "ml_collections>=1.1",
        "numpy>=2.0",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        # With it, transformers reads SentencePiece models.
        "protobuf>=4.21",
        "safetensors>=0.5",
        "scipy>=1.13",
        "tabulate[widechars]>=0.10",
        "tensorboardX>=2.6",
        "tensorflow-datasets>=4.9.9",
        "tokenizers>=0.22",
        "tqdm>=4.66",
        "transformers>=5.0",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10"],
        "gpu": ["jax[cuda13]>=0.10"],
        "tf": ["tensorflow>=2.20"],  # checkpoints of TensorFlow code
        "tfds": ["tensorflow>=2.20"],
        "torch": ["torch>=2.6"],  # files that PyTorch has pickled
        "gcs": ["gcsfs>=2024.6"],
        "datasets": ["datasets>=4.8", "pyarrow>=21.0"],  # datasets of Hugging Face, Parquet and Arrow files
        "serve": SERVE,
        "docs": DOCS,
        "dev": [
            *DOCS,
            *SERVE,
            "beartype>=0.22",
            "datasets>=4.8",
            # One of the examples of docs/how_to/reuse.md.
            "equinox>=0.13",
            "gcp-storage-emulator>=2026.7",
            "gcsfs>=2024.6",
            # Starlette's test client needs it.
            "httpx2>=2.0",
            "hypothesis>=6.100",
            # Tests compile for TPUs. The compiler is only available on this platform.
            "jax[tpu]>=0.10; sys_platform == 'linux' and platform_machine == 'x86_64'",
            "mypy>=1.18",
            "pyarrow>=21.0",
            "pytest>=8.3",
            "pytest-xdist>=3.6",
            "pyyaml>=6.0",
            "ruff~=0.17.6",  # another version may format differently
            "scikit-learn>=1.5",  # a reference in tests
            "seqeval>=1.2",
            "setuptools>=65.0",  # Python 3.12 does not come with it
            "types-tabulate",
            "types-tqdm",
        ],
    },
    entry_points={"console_scripts": ["afjax = afjax.cli.main:main"]},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
