# `make verify` and `make test` set everything up themselves, in .venv. The rest is for those who change gridpact.

# The newest Python that Intel publishes its Triton for, else whatever there is: the reference backend needs no more.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3; do \
	$$p -c 'import ensurepip, venv' >/dev/null 2>&1 && echo $$p && break; done)
HAS_SYCL := $(shell $(PYTHON) -c 'import platform as p, sys; print("yes" if (3, 10) <= sys.version_info < (3, 13) \
	and p.machine() == "x86_64" and p.system() == "Linux" else "")' 2>/dev/null)
comma := ,
EXTRAS := $(if $(HAS_SYCL),sycl$(comma)dev,dev)
NEEDED_MB := $(if $(HAS_SYCL),3200,650)

BIN := .venv/bin

.PHONY: verify verify-upstream verify-gpu test sanitize bench lint versions evidence report findings setup clean

# Launchers in the environments that they need: upstream Triton's C launcher, and ours, on a CUDA driver that only keeps
# what it is asked, Triton's interpreter, and Intel's launcher on the CPU. What they run on different threads at once
# (THREAD-1) is left out: it flips from run to run.
UPSTREAM := $(foreach v,3-6-0 3-9-0,$(addsuffix @.nox/upstream-triton-$(v),triton:cuda:fake gridpact:cuda:fake \
	triton:interpreter))
UPSTREAM += $(if $(HAS_SYCL),gridpact:cuda:fake intel:launcher)
CLAUSES := GRID-* STREAM-* DEVICE-* CAPTURE-1 META-* ARG-* SPEC-* KEY-* STATE-* HOOK-* THREAD-2
ASK_UPSTREAM = $(BIN)/gridpact verify $(addprefix -s ,$(UPSTREAM)) $(foreach c,$(CLAUSES),-c '$(c)')

verify: setup
	$(BIN)/gridpact verify

verify-upstream: setup
	$(BIN)/nox --session upstream --install-only
	$(ASK_UPSTREAM)

# On a machine with an NVIDIA GPU, whose own Python has torch, Triton, cuda-bindings, pytest, typer, rich and setuptools:
# our launcher and Triton's, side by side, then the tests that need a GPU. Nothing is downloaded.
GPU_PYTHON ?= python3
GPU_RECORDS ?=

verify-gpu:
	$(GPU_PYTHON) -m pip install --quiet --no-build-isolation --no-deps --editable .
	$(GPU_PYTHON) -m gridpact verify -s gridpact:cuda:0 -s triton:active $(if $(GPU_RECORDS),--json $(GPU_RECORDS))
	$(GPU_PYTHON) -m pytest -m gpu --require-device=cuda:0

# Tests in a browser are skipped by name where there is none; REQUIRE_BROWSER=1 fails them.
REQUIRE_BROWSER ?=

test: setup
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not gpu" \
		$(if $(HAS_SYCL),--require-device=sycl:cpu) $(if $(REQUIRE_BROWSER),--require-browser)

# The native path of a launch under AddressSanitizer and UndefinedBehaviorSanitizer, about a minute and a half. Needs gcc.
sanitize: setup
	$(if $(HAS_SYCL),$(BIN)/python tests/sanitize.py,@echo "Not run: it compiles kernels with Triton, which is not here.")

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What cannot share .venv: torch with Liger's kernels, upstream Triton 3.6.0 and 3.9.0. See noxfile.py.
versions: setup
	$(BIN)/nox

setup: .venv/ready

.venv/ready: pyproject.toml setup.py $(wildcard src/gridpact/native/*.[ch])
	@test -n "$(PYTHON)" || { echo "gridpact needs Python 3.10 or newer with pip and venv; none was found."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "gridpact needs Python 3.10 or newer, $(PYTHON) is older."; exit 1; }
	@have=$$(df -Pm . | awk 'NR == 2 { print $$4 }'); \
		echo "Setting up .venv with $$($(PYTHON) --version): needs about $(NEEDED_MB) MB of disk, $$have MB are free."; \
		test $$have -ge $(NEEDED_MB) || { echo "Not enough disk."; exit 1; }
	@test -n "$(HAS_SYCL)" || echo "sycl:cpu will be missing: Intel publishes triton-xpu for CPython 3.10 to 3.12 on x86-64" \
		"Linux only. The reference backend and its tests run."
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[$(EXTRAS)]'
	@touch $@

# The records behind evidence/README.md, but for those of GPUs. The slow tier takes about twenty minutes.
evidence: setup
	rm -f evidence/cpu.jsonl evidence/cpu-slow.jsonl evidence/upstream.jsonl
	$(BIN)/nox --session upstream --install-only
	$(BIN)/gridpact verify --json evidence/cpu.jsonl
	$(ASK_UPSTREAM) --json evidence/upstream.jsonl
	$(BIN)/gridpact verify -s gridpact:sycl:cpu -s triton:active -c GRID-8 --tier slow --json evidence/cpu-slow.jsonl
	$(BIN)/python -m gridpact.conformance.evidence evidence

# The project's page, docs/report.html, from the records of evidence/, and screenshots of it. What pictures show is observed
# anew; the records are as they are. Needs Chromium.
PICTURES := $(addprefix docs/data/,grid.json streams.json mapping.json) \
	$(addprefix bench/results/,h200.json null.json sycl-cpu.json)

report: setup
	$(if $(HAS_SYCL),$(BIN)/python -m gridpact.conformance.page.demonstration docs/data)
	$(BIN)/gridpact report evidence $(addprefix --picture ,$(PICTURES)) -o docs/report.html
	$(BIN)/python docs/screenshots.py docs/report.html docs/screenshots

# Host cost of launches, without a GPU: on a CUDA driver that runs nothing, beside upstream Triton, and on the CPU.
bench: setup
	$(BIN)/nox --session upstream --install-only
	$(BIN)/gridpact bench --device null --json bench/results/null.json
	$(if $(HAS_SYCL),$(BIN)/gridpact bench --device sycl:cpu --cold --json bench/results/sycl-cpu.json)

# Each kind of finding about the launchers of others, by its program alone, in its own environment.
findings: setup
	$(BIN)/nox --session upstream --install-only
	$(BIN)/python -m gridpact.conformance.repeat evidence/upstream.jsonl

clean:
	rm -rf .venv .nox build src/gridpact.egg-info
