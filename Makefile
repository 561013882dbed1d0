# make          prepare the environment
# make demo     run the jobs of examples/flights and examples/weather
# make check    the quick round of a contributor: lint, and the tests of quick files that need no JVM
# make test     run the tests that are not extended, on two processes   (make test TESTS=tests/checkpoint PROCESSES=0 for some, on one)
# make test-all run every test
# make test-oldest  run the tests that are not extended with the oldest releases of the dependencies
# make test-flink  read savepoints of the real Flink, and restore exported ones in it; needs a JDK and downloads Flink's jars
# make test-connectors  test the connectors against PostgreSQL and a Kafka broker, which it installs and starts
# make lint     ruff (rules and format), import-linter, and mypy --strict on the packages and benchmarks
# make docs     build the documentation site into build/site; warnings are errors
# make package  build wheel and sdist into dist, and check their metadata
# make bench    run the benchmarks                     (make bench SUITE="spark_stateful --json" for one)
# make simulate run schedules under faults, random graphs and upgrades  (make simulate SCHEDULES=10000 SEED=1)
# make demo-payments  run the job of examples/payments, with Kafka, PostgreSQL and Delta Lake; it installs and starts the servers
# make chaos-sinks  kill a job that writes to Delta, PostgreSQL and Kafka  (make chaos-sinks KILLS=30 SEED=7)
# make chaos    kill processes of the flights job on Spark    (make chaos KILLS=50 SEED=7)
# make clean    remove .venv and all generated files
#
# Each target prepares what it needs. The environment is rebuilt when its pins or the packaging change.

VENV := .venv
DOCS_VENV := .venv-docs
CLASSES := $(VENV)/spark-classes.jsa
RUN := scripts/environment/run.sh
WITH_BROKER = STATEBACKEND_KAFKA_BROKER=$$(echo $(CURDIR)/build/connectors/lib/python3*/site-packages/noida_db/noida-db)
PACKAGES := snapshots typeserializers migration statebackend
TESTS ?= tests
PROCESSES ?= 2
PYTEST = $(RUN) python -m pytest --numprocesses=$(PROCESSES) --dist=loadfile --no-loadscope-reorder
SUITE ?= all
KILLS ?= 10
SCHEDULES ?= 1000
SEED ?= 1

.PHONY: environment demo demo-payments check test test-all test-oldest test-flink test-connectors lint docs package bench simulate chaos chaos-sinks clean
.DELETE_ON_ERROR:

environment: $(VENV)/.installed

$(VENV)/.installed: scripts/requirements/lock.txt pyproject.toml scripts/environment/create_venv.sh
	@scripts/environment/create_venv.sh

# An archive of loaded classes, specific to the installed Java and jars.
$(CLASSES): $(VENV)/.installed scripts/environment/archive_classes.py
	@$(RUN) python scripts/environment/archive_classes.py $@

demo: environment
	@$(RUN) python -m examples.flights
	@$(RUN) python -m examples.weather

test: environment $(CLASSES)
	@STATEBACKEND_FUZZ=few $(PYTEST) -m "not extended" $(TESTS)

test-all: environment $(CLASSES)
	@$(PYTEST) $(TESTS)

# These packages come before those of the environment.
build/oldest/.installed: scripts/requirements/oldest.txt $(VENV)/.installed
	@rm -rf build/oldest
	@$(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --use-pep517 \
		--target build/oldest --requirement $<
	@touch $@

test-oldest: build/oldest/.installed
	@STATEBACKEND_FUZZ=few PYTHONPATH=$(CURDIR)/build/oldest $(PYTEST) -m "not extended" $(TESTS)

build/flink-%/.installed:
	@python3 -m venv build/flink-$*
	@build/flink-$*/bin/pip install --quiet apache-flink-libraries==$*
	@touch $@

# Flink 1.20 stores no uids of operators, so its state goes to ours and back by uids that the test passes.
test-flink: environment build/flink-2.3.0/.installed build/flink-1.20.3/.installed
	@FLINK_LIB=$$(echo build/flink-2.3.0/lib/python3*/site-packages/pyflink/lib) \
		$(RUN) python -m pytest tests/savepoint/foreign/test_flink_engine.py tests/savepoint/foreign/test_flink_operators.py
	@FLINK_LIB=$$(echo build/flink-1.20.3/lib/python3*/site-packages/pyflink/lib) \
		$(RUN) python -m pytest tests/savepoint/foreign/test_flink_engine.py -k "restores or back"

# The broker has an environment of its own: it is no dependency of the project.
build/connectors/.installed: scripts/requirements/connectors.txt scripts/environment/install_postgres.sh
	@scripts/environment/install_postgres.sh
	@rm -rf build/connectors
	@python3 -m venv build/connectors
	@build/connectors/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

test-connectors: environment build/connectors/.installed
	@STATEBACKEND_TEST_SERVERS=1 $(WITH_BROKER) $(RUN) python -m pytest tests/connectors

demo-payments: environment build/connectors/.installed
	@$(WITH_BROKER) $(RUN) python -m examples.payments

chaos-sinks: environment build/connectors/.installed
	@$(WITH_BROKER) $(RUN) python -m verification.chaos --sinks --kills $(KILLS) --seed $(SEED)

check: lint
	@STATEBACKEND_FUZZ=few $(PYTEST) -m "not spark and not extended and not slow" $(TESTS)

lint: environment
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python -m mypy --strict $(PACKAGES) verification benchmarks tests/typing

# The site's generator shares no dependency with the product, so it has an environment of its own.
$(DOCS_VENV)/.installed: scripts/requirements/docs.txt | environment
	@rm -rf $(DOCS_VENV)
	@$(VENV)/bin/python -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement $<
	@touch $@

docs: $(DOCS_VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" $(DOCS_VENV)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

# The tools share no dependency with the product, so they have an environment of their own.
build/package/.installed: scripts/requirements/package.txt | environment
	@rm -rf build/package
	@$(VENV)/bin/python -m venv build/package
	@build/package/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement $<
	@touch $@

package: build/package/.installed
	@rm -rf dist
	@build/package/bin/python -m build --no-isolation --outdir dist .
	@build/package/bin/twine check --strict dist/*

bench: environment
	@$(RUN) python -m benchmarks $(SUITE)

chaos: environment $(CLASSES)
	@$(RUN) python -m verification.chaos --kills $(KILLS) --seed $(SEED)

simulate: environment
	@$(RUN) python -m verification.simulation --schedules $(SCHEDULES) --seed $(SEED)

clean:
	rm -rf $(VENV) $(DOCS_VENV) *.egg-info build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
