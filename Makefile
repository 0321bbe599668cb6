# One entry point for everything. Each target makes .venv first when it is missing or when the lock
# has changed; that needs only make and either a python3 >= 3.11 or uv.

VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed
UV := $(shell command -v uv 2>/dev/null)
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v "$$p"; break; }; done)

PYTEST := $(if $(CI),bash .ci/pytest-twice )$(BIN)/pytest

# A folder that holds no test yet is no reason to fail.
FAST := $(wildcard tests/unit tests/property tests/scripts tests/architecture)
SLOW := $(wildcard tests/contract tests/conformance tests/simulation tests/tui tests/e2e)

.DEFAULT_GOAL := help
.PHONY: help demo check unit test simulate fuzz test-root test-net test-clients test-systemd wheel-test bench lock clean

help:
	@echo "make demo        start a daemon, place a real model, ask it a question (KEEP=1: leave it up)"
	@echo "make check       format, lint, types, import contracts, fast tests"
	@echo "make test        check, then contract, conformance, simulation and e2e tests"
	@echo "make simulate    clusters through SEEDS=n further histories, from SEED_START=k"
	@echo "make fuzz        MUTANTS=n nearly right requests of each dialect, from SEED_START=k"
	@echo "make test-root   tests that mount file systems, in a mount namespace (Linux, root or user namespaces)"
	@echo "make test-net    three machines on a bridge, in network namespaces (Linux, root or user namespaces)"
	@echo "make test-clients  SDKs and agents as they are installed, against a node (fetches them once)"
	@echo "make test-systemd  the service under the systemd of this machine (root)"
	@echo "make wheel-test  build the wheel and test it with the source out of reach"
	@echo "make bench       measure against the goals; writes bench/results/"
	@echo "make unit        the fast tests alone"
	@echo "make lock        resolve requirements*.lock and the locks of the clients anew (needs uv and npm)"
	@echo "make clean       remove what the targets made"

$(LOCKED): requirements-dev.lock
	@if [ -x $(BIN)/python ]; then :; \
	elif [ -n "$(PYTHON)" ]; then "$(PYTHON)" -m venv $(VENV); \
	elif [ -n "$(UV)" ]; then "$(UV)" venv --quiet --seed --python 3.11 $(VENV); \
	else echo "skulk needs Python 3.11 or later with venv (install python3 and python3-venv) or uv (pip install uv), which fetches one." >&2; exit 1; fi
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/python -m bench.demo

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST) -q $(FAST)

unit: $(INSTALLED)
	$(PYTEST) -q $(FAST)

test: check
	$(PYTEST) -q $(SLOW)

simulate: $(INSTALLED)
	SKULK_TEST_SEEDS=$(or $(SEEDS),1000) SKULK_TEST_SEED_START=$(or $(SEED_START),1000) \
		$(BIN)/pytest -q tests/simulation/test_cluster_histories.py -k keeps_its_promises

fuzz: $(INSTALLED)
	SKULK_TEST_MUTANTS=$(or $(MUTANTS),10000) SKULK_TEST_SEED_START=$(or $(SEED_START),0) \
		$(BIN)/pytest -q tests/conformance/test_bad_input.py -k chance

# Whoever is not root becomes it in a user namespace; what is mounted goes with the namespace.
test-root: $(INSTALLED)
	SKULK_TEST_MOUNTS=1 unshare --mount $$([ "$$(id -u)" = 0 ] || echo --user --map-root-user) \
		$(PYTEST) -q tests/rootonly

# /run is covered: `ip netns` keeps its names there, and they are to go with the namespace.
test-net: $(INSTALLED)
	SKULK_TEST_NETWORKS=1 unshare --net --mount \
		$$([ "$$(id -u)" = 0 ] || echo --user --map-root-user) \
		sh -c 'mount -t tmpfs skulk-test /run && exec $(PYTEST) -q tests/net'

# Clients are fetched first and run without any network; where there are no namespaces, through a
# proxy that is none.
test-clients: $(INSTALLED)
	@$(BIN)/python -m tests.support.client_environments
	@alone="unshare --net $$([ "$$(id -u)" = 0 ] || echo --user --map-root-user)"; \
	if ! $$alone ip link set lo up 2>/dev/null; then \
		echo "no network namespace here: clients are kept from the network by settings alone" >&2; \
		alone=; \
	fi; \
	SKULK_TEST_CLIENTS=1 $$alone sh -c \
		"$${alone:+ip link set lo up &&} exec $(PYTEST) -q --timeout=300 tests/clients"

test-systemd: $(INSTALLED)
	SKULK_TEST_SYSTEMD=1 $(BIN)/pytest -q tests/systemd

wheel-test: $(INSTALLED)
	@bash .ci/wheel-test

bench: $(INSTALLED)
	@$(BIN)/python -m bench

# Run by hand, and the result is committed. Universal: one file for Linux and macOS, hashed, and
# without the name of any index. What is already locked stays unless `UPGRADE=1`.
LOCK_FLAGS := --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade)

lock:
	@[ -n "$(UV)" ] || { echo "make lock needs uv (pip install uv)." >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make lock needs npm." >&2; exit 1; }
	"$(UV)" pip compile $(LOCK_FLAGS) --output-file requirements-dev.lock pyproject.toml --group dev
	"$(UV)" pip compile $(LOCK_FLAGS) --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	for client in tests/clients/environments/*.in bench/locks/*.in; do \
		"$(UV)" pip compile $(LOCK_FLAGS) --output-file "$${client%.in}.txt" "$$client" || exit 1; \
	done
	for client in tests/clients/environments/*/package.json; do \
		npm --prefix "$${client%/*}" install --package-lock-only --omit-lockfile-registry-resolved \
			--ignore-scripts --no-audit --no-fund || exit 1; \
	done

clean:
	rm -rf $(VENV) .clients dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
