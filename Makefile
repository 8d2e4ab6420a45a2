# Everything that a newcomer, a developer and CI do, in one place: `make` alone lists it.
# Works as an ordinary user and as root; the set-up lives in .venv and is redone only when what it was made from changes.

SHELL := /bin/sh
VENV  := .venv
BIN   := $(VENV)/bin
# Every file that pip installs has its hash in requirements/. This checkout is built by what is in the environment.
PIP   := $(BIN)/python -m pip --disable-pip-version-check -q install
LOCKED := $(PIP) --require-hashes

# Real HTCondor daemons for the live tests: the suites of Debian that they are taken from (HTCondor 23 and 25).
CONDOR_SUITES := trixie forky
# The same for Slurm (24.11), and all versions that `make test-matrix` goes through (22.05 and 26.05 as well).
SLURM_SUITES  := trixie
SLURM_MATRIX  := trixie bookworm sid
# Tests run side by side; the live ones wait for daemons in four fifths of their time.
WORKERS       := 6
PYTEST        := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=20
# Each of the many processes of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
P ?= planner
.PHONY: help venv dev demo test tested test-matrix test-quick unit check compiled t watch lint format types contracts condor slurm openstack pyslurm bench \
        bench-deciding bench-gpu bench-hostile bench-worlds mutants docs reference pictures check-docs build clean kubernetes mps prometheus postgresql tardis auditor \
        jupyterhub chromium apache haproxy triton sudo packages test-packages release audit

help:  ## this list
	@echo "GPU drone provisioner: starts pilot jobs for GPU jobs that wait in an HTCondor pool"; echo
	@sed -n 's/^\([a-z-]*\):.*## *\(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

venv: $(VENV)/.runtime  ## .venv with the command .venv/bin/provisioner

dev: $(VENV)/.dev  ## .venv with all that the tests need as well

demo: venv  ## 40 GPU jobs on this host: drones start, run them and leave (no root, no HTCondor, under a minute)
	@$(BIN)/provisioner demo

# Side by side: the programs are mostly waited for. Types are checked beside the live tests, which leave a fifth of
# two cores; a mistake in them ends the run in the end.
test: dev  ## everything: linters, types, contracts, all tests with real daemons; ends with the twenty slowest
	@$(MAKE) --no-print-directory --output-sync=target -j 3 openstack condor mps prometheus postgresql tardis auditor chromium apache haproxy triton sudo slurm compiled lint contracts
	@$(MAKE) --no-print-directory -j 2 types tested

tested: dev  ## the tests of `make test` alone
	$(PYTEST) -m "not matrix" tests

# Nothing that `make test` has run: its version of Slurm is the first here, and tests/live/conftest.py marks the others.
test-matrix: SLURM_SUITES := $(SLURM_MATRIX)
test-matrix: condor tardis jupyterhub slurm openstack kubernetes pyslurm  ## what `make test` leaves out: older HTCondor, Slurm 22.05 and 26.05, pyslurm, Kubernetes, tests of more than 30 s
	PROVISIONER_SLURM_SUITES=$$(echo $(SLURM_MATRIX) | tr ' ' ,) $(PYTEST) -m "(matrix or kubernetes) and not packages" tests

packages: dev  ## deb and RPM in var/packages, from the checkout and the wheels in requirements/all.txt
	PYTHON=$$PWD/$(BIN)/python packaging/build.sh

# The tag names the version. It publishes nothing: CONTRIBUTING.md has the steps.
release: $(VENV)/.tools  ## all files of the release that the tag of HEAD names, under dist/
	PYTHON=$$PWD/$(BIN)/python packaging/release.sh

# Tools of Debian, which an ordinary user's tests do without: they are skipped.
test-packages: $(VENV)/.tools  ## deb and RPM, images, Puppet and Ansible, release: in fresh roots, below live drones (as root; ten minutes)
	@[ "$$(id -u)" != 0 ] || { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
	rpm dpkg-dev mmdebstrap systemd puppet-agent puppet-lint \
	buildah podman crun runc; } >/dev/null
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup --durations=10 -m packages tests/packages

check: dev  ## for the inner loop: linters, types, contracts, unit tests of what changed; two minutes at most
	@$(MAKE) --no-print-directory --output-sync=target -j 2 lint types contracts
	$(BIN)/python -m tests.changed

test-quick: lint types contracts unit  ## `make test` without daemons and without the slow tests

unit: dev  ## the tests of test-quick alone
	$(PYTEST) -m "not live and not slow and not matrix" tests

t: dev  ## the unit tests of one package: make t P=planner
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not live and not slow and not matrix" tests/$(P)

# What changed last decides: a file of provisioner/planner runs tests/planner. It polls, since inotify needs a package.
watch: dev  ## run the unit tests of a package again whenever one of its files changes
	$(BIN)/python -m tests.watch

lint: dev  ## ruff, codespell, size budgets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/reuse lint --lines
	$(BIN)/python -m tests.budget

audit: $(VENV)/.tools  ## known vulnerabilities of the versions in requirements/
	$(BIN)/pip-audit --require-hashes --disable-pip $(patsubst %,-r %,$(wildcard requirements/*.txt))

format: dev  ## lay out all code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: dev  ## mypy --strict
	nice $(BIN)/mypy

contracts: dev  ## import contracts between the layers
	$(BIN)/lint-imports

# The workers of a run begin at the same time, and in a fresh clone each would compile all tests.
compiled: dev  ## load all tests once, so that their workers need not compile them
	@$(BIN)/python -m pytest -qq --collect-only tests >/dev/null || \
	{ echo "the tests cannot be loaded: see $(BIN)/python -m pytest --collect-only"; exit 1; }

condor: dev  ## fetch HTCondor for the live tests
	@for suite in $(CONDOR_SUITES); do PATH=$$PWD/$(BIN):$$PATH tests/labs/get-condor.sh $$suite || exit 1; done

# NVIDIA's, which not every Debian mirror has: without it the tests that need it are skipped.
mps:  ## fetch NVIDIA MPS for the tests
	@tests/labs/get-mps.sh --optional trixie

prometheus:  ## fetch promtool for the tests of alerts
	@tests/labs/get-prometheus.sh --optional bookworm

postgresql:  ## fetch PostgreSQL for the tests of the store
	@tests/labs/get-postgresql.sh --optional bookworm

# From PyPI, for the tests of accounting.
auditor:  ## fetch AUDITOR's plug-ins for the tests of accounting
	@tests/labs/get-auditor.sh --optional

# From PyPI, where the tests have a real COBalD/TARDIS beside a shadow.
tardis:  ## fetch COBalD/TARDIS for the tests of a shadow
	@tests/labs/get-tardis.sh --optional

# From PyPI and npm, for notebooks as jobs.
jupyterhub:  ## fetch JupyterHub for the tests of notebooks
	@tests/labs/get-jupyterhub.sh --optional

apache:  ## fetch Apache for the tests of the web service behind it
	@tests/labs/get-apache.sh --optional bookworm

haproxy:  ## fetch HAProxy for the tests of inference services
	@tests/labs/get-haproxy.sh --optional bookworm

# From PyPI.
triton:  ## fetch the Triton inference server for the tests of inference services
	@tests/labs/get-triton.sh --optional

# For tests with two accounts on this host, which need root.
sudo:  ## install sudo for the tests with two accounts (as root)
	@[ "$$(id -u)" != 0 ] || command -v sudo >/dev/null || \
	{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y sudo; } >/dev/null

# For the tests of the web pages, which are skipped without it.
chromium: dev  ## fetch Chromium for the tests of the web pages
	@PATH=$$PWD/$(BIN):$$PATH tests/labs/get-chromium.sh --optional trixie

# A Slurm cluster of a test lives in namespaces, and they need root: an ordinary user's tests leave it out.
slurm:  ## fetch Slurm for the live tests (as root)
	@if [ "$$(id -u)" != 0 ]; then echo "not root: the tests with Slurm will be skipped"; exit 0; fi; \
	for suite in $(SLURM_SUITES); do tests/labs/get-slurm.sh $$suite || exit 1; done

openstack: dev  ## fetch OpenStack for the live tests
	@PATH=$$PWD/$(BIN):$$PATH tests/labs/get-openstack.sh

# Built with a compiler, once: long for a test to wait. `make test` runs the tests with it where that was done.
kubernetes:  ## build a Kubernetes control plane for the tests, in about five minutes
	@tests/labs/get-kubernetes.sh

pyslurm: dev  ## build pyslurm for the live tests (as root)
	@if [ "$$(id -u)" != 0 ]; then echo "not root: the tests with pyslurm will be skipped"; exit 0; fi; \
	tests/labs/get-pyslurm.sh $$PWD/$(BIN)/python

bench: dev  ## the benchmarks, as a table
	$(BIN)/python benchmarks/run.py

# Hours, of which it keeps what it has: it may be broken off, and goes on. One run: DECIDING="--pairs 6214e9/vc8Sj --seeds 1".
bench-deciding: dev  ## the planner beside other systems' rules and without each of its rules, on public traces; var/deciding
	$(BIN)/python -m benchmarks.deciding.run $(or $(DECIDING),--without all)

# Ten minutes of one processor. One world: HOSTILE="1 --seed 4711".
bench-hostile: dev  ## decisions on 100,000 random and hostile snapshots, ads and listings: exceptions, refused plans, slowest
	$(BIN)/python -m benchmarks.hostile.run $(or $(HOSTILE),100000)

# Minutes. One world: WORLDS="--first 4711 --seeds 1".
bench-worlds: dev  ## a thousand random worlds with faults: starts, withdrawals and ends by job, violated invariants
	$(BIN)/python -m benchmarks.oscillation $(WORLDS)

# Ten minutes on one GPU, whose settings it leaves as they are. One step: GPU="--only table --seconds 30".
bench-gpu: dev  ## shared GPUs on a real one: MPS, kills, throughput and energy, beside the model; tables, var/gpu
	$(BIN)/python -m benchmarks.gpu.run $(GPU)

# Hours, of which it keeps what it has. A sample of one part: MUTANTS="--part lifecycle --sample 200".
mutants: $(VENV)/.tools  ## mutation testing of planner, controller and store: scores by module, var/mutants
	$(BIN)/python -m benchmarks.mutants $(MUTANTS)

docs: reference  ## the documents as a site, with search: var/site/index.html
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs var/site

reference: dev  ## regenerate the reference pages and schemas
	$(BIN)/python -m docs.make_reference

pictures: dev  ## regenerate the pictures of the documents (with a browser)
	$(BIN)/python docs/pictures/make_demo.py
	$(BIN)/python docs/pictures/make_report.py
	$(BIN)/python -m docs.pictures.make_web

check-docs: dev  ## the tests of the documents alone
	$(PYTEST) tests/test_docs.py tests/test_site.py

build: dev  ## wheel and sdist under dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

clean:  ## remove the set-up and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made: packaging/make-venv.sh
	@echo "setting up $(VENV), once: a minute or two with a fast network"
	@packaging/make-venv.sh $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.made pyproject.toml requirements/runtime.txt requirements/build.txt
	@echo "installing Python packages into $(VENV)"
	@$(LOCKED) -r requirements/build.txt -r requirements/runtime.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@echo "$(VENV) is ready"
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	@echo "adding what the tests need"
	@$(LOCKED) -r requirements/dev.txt
	@touch $@

$(VENV)/.tools: $(VENV)/.dev requirements/tools.txt
	@echo "adding what mutation testing, a release and its checks need"
	@$(LOCKED) -r requirements/tools.txt
	@touch $@
