# Two commands do it all with only python3 and make: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SEEDS ?= 200
WORKERS ?= auto

# Each set-up installs its own section of requirements.lock, hashes checked, and leaves a stamp that holds
# until the lock or the project's metadata changes. What an earlier stamp brought is not installed again.
BIN := $(VENV)/bin
SECTION = sed -n '/^\# section: $(1)$$/,/^\# section:/p' requirements.lock
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve pipeline test lint types format lock wheel trial-power trial-kill trial-sim trial-states trial-flood
.PHONY: trial-damage trial-ship trial-neighbours trial-fairness trial-archive trial-opening trials
.PHONY: bench-compare bench-peers pictures reference clean

serve: $(VENV)/.serve
	@exec $(BIN)/python -m brokers serve $(ARGS)

pipeline: $(VENV)/.spark
	@exec $(BIN)/python -m brokers pipeline $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The long proofs. Each prints what it did and fails when a promise broke.
trial-power: $(VENV)/.test
	$(BIN)/python -m tests.trials.power $(ARGS)

trial-kill: $(VENV)/.test
	$(BIN)/python -m tests.trials.kill $(ARGS)

trial-sim: $(VENV)/.test
	$(BIN)/python -m tests.trials.sim --seeds $(SEEDS) $(ARGS)

trial-states: $(VENV)/.test
	$(BIN)/python -m tests.trials.states $(ARGS)

trial-ship: $(VENV)/.test $(VENV)/.stores
	$(BIN)/python -m tests.trials.ship $(ARGS)

trial-damage: $(VENV)/.test
	$(BIN)/python -m tests.trials.damage $(ARGS)

trial-neighbours: $(VENV)/.test
	$(BIN)/python -m tests.trials.neighbours $(ARGS)

trial-fairness: $(VENV)/.test
	$(BIN)/python -m tests.trials.fairness $(ARGS)

trial-flood: $(VENV)/.test
	$(BIN)/python -m tests.trials.flood $(ARGS)

trial-archive: $(VENV)/.test
	$(BIN)/python -m tests.trials.archive $(ARGS)

trial-opening: $(VENV)/.test
	$(BIN)/python -m tests.trials.opening $(ARGS)

trials: trial-power trial-kill trial-ship trial-sim trial-states trial-damage trial-flood trial-neighbours \
	trial-fairness trial-archive trial-opening

# What changed since a commit, beyond noise: `make bench-compare BASE=HEAD~1 ARGS="--protocols logmq"`.
bench-compare: $(VENV)/.test
	@.ci/bench-compare $(BIN)/python "$(BASE)" $(ARGS)

# Every protocol beside the peers that are installed and beside a bare loop: a row of JSON each.
bench-peers: $(VENV)/.test
	@$(BIN)/python -m tests.bench.sweep $(ARGS)

# The README's pictures of the admin page, from a real server.
pictures: $(VENV)/.test
	$(BIN)/python -m tests.trials.pictures $(ARGS)

# brokers/docs/reference, from the code.
reference: $(VENV)/.test
	$(BIN)/python -m tests.support.reference

# dist/brokers-*.whl: the server and its clients in one package, its units and manual pages.
wheel: $(VENV)/.serve
	$(BIN)/python -m hatchling build -t wheel

lock:
	.ci/lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.serve: requirements.lock pyproject.toml
	@.ci/python-check "$(PYTHON)"
	@echo "setting up $(VENV), this once" >&2
	@$(BIN)/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv $(VENV)
	@$(call SECTION,serve) > $(VENV)/serve.txt
	@$(PIP) install --require-hashes -r $(VENV)/serve.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.spark: $(VENV)/.serve
	@echo "setting up $(VENV) for Spark, this once" >&2
	@$(call SECTION,spark) > $(VENV)/spark.txt
	@$(PIP) install --require-hashes --no-build-isolation -r $(VENV)/serve.txt -r $(VENV)/spark.txt
	@touch $@

$(VENV)/.test: $(VENV)/.spark
	@echo "setting up $(VENV) for the tests, this once" >&2
	@$(call SECTION,ship) > $(VENV)/ship.txt
	@$(call SECTION,test) > $(VENV)/test.txt
	@$(PIP) install --require-hashes -r $(VENV)/serve.txt -r $(VENV)/ship.txt -r $(VENV)/spark.txt -r $(VENV)/test.txt
	@$(call SECTION,beside) > $(VENV)/beside.txt
	@$(PIP) install --require-hashes --upgrade --target $(VENV)/beside -r $(VENV)/beside.txt
	@touch $@

$(VENV)/.stores: $(VENV)/.test
	@echo "setting up $(VENV) with stores of objects, this once" >&2
	@$(call SECTION,stores) > $(VENV)/stores.txt
	@$(PIP) install --require-hashes -r $(VENV)/stores.txt
	@touch $@
