# Each thing is made once and kept until what it is made from changes; a file .done in it says that it is complete.
# All paths are relative: the folder's own name may hold a space.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test coverage interop lint schema docs lock bench fault soak crash clean all-programs demo-programs

VENV := .venv/.done
SPARK := .tools/jars/spark/.done
BROKERS := .tools/jars/s3/.done .tools/jars/kafka/.done .tools/jars/elasticmq/.done
NPM := .tools/npm/.done
# Other people's clients: those that the tests run, and those that are large.
CLIENTS := .tools/interop/tardis-dev/.done .tools/interop/tardis-client/.done .tools/jars/kafka-tools/.done
LARGE_CLIENTS := .tools/interop/backtest/.done .tools/interop/qubx/.done
# tardis-rs and the NATS console are built where there are the compilers.
BUILT_CLIENTS := $(if $(shell command -v cargo),.tools/interop/tardis-rs/.done) $(if $(shell command -v go),.tools/interop/nats/.done)
PYTHON := .venv/bin/python
# Names of benchmarks; none means all.
BENCH :=
# The bus of `demo`, which starts that server for itself, and of `fault` and `soak`: kafka, redis, nats, kinesis or sqs.
BUS :=
# LIVE=1: the demo listens to simulated exchanges.
LIVE :=
# OPEN=1: the demo keeps serving its page at the end.
OPEN :=
EVENTS := 1000000
# Of `soak`.
MINUTES := 20
# Of `crash`.
KILLS := 20
SEED := 1
# Where the lakes lie: folder or s3, which starts a server.
LAKE := folder
# TOGETHER=1: several jobs on one lake at once, of which one is killed in each of KILLS rounds.
TOGETHER :=
# Spark runs on the Java that the set-up found.
WITH_JAVA := JAVA_HOME="$$(readlink -f .tools/java)"
PYTEST = $(WITH_JAVA) $(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Maven is needed only while there are jars to fetch.
maven-for = $(if $(filter-out $(wildcard $1),$1),maven)
# What the demo's bus takes beside files: programs, and what is fetched.
DEMO_PROGRAMS := $(if $(filter redis,$(BUS)),redis) $(if $(filter kinesis,$(BUS)),node)
DEMO_FETCHED := $(SPARK) $(if $(filter kafka,$(BUS)),.tools/jars/kafka/.done) $(if $(filter sqs,$(BUS)),.tools/jars/elasticmq/.done) \
  $(if $(filter kinesis,$(BUS)),$(NPM))

# The stand-in for SQS takes about a thousand messages a second: an hour of a calmer market.
DEMO_ARGS := $(if $(filter sqs,$(BUS)),--demo-activity 2)

help: ## shows this
	@echo "usage: make TARGET [ARGS='more arguments for demo, test, coverage, bench, fault, soak or crash'] [BENCH=one]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

setup: all-programs $(VENV) $(SPARK) $(BROKERS) $(NPM) $(CLIENTS) ## makes .venv, and fetches jars and test servers
	@scripts/setup compiled
	@echo "setup: everything is there"

demo: demo-programs $(VENV) $(DEMO_FETCHED) ## runs everything at once on sample data: no account, no network, no broker; BUS=kafka LIVE=1 OPEN=1
	@$(WITH_JAVA) $(if $(filter-out file,$(BUS)),$(PYTHON) -m tests.with_bus $(BUS) --) .venv/bin/tardis-machine demo $(if $(LIVE),--demo-live) $(if $(OPEN),--demo-open) $(DEMO_ARGS) $(ARGS)

test: setup ## runs all tests, against real servers
	@$(PYTEST) $(ARGS)

interop: setup $(LARGE_CLIENTS) $(BUILT_CLIENTS) ## runs other people's clients against this one, the large ones too
	@$(PYTEST) tests/interop/test_*.py tests/interop/large_clients.py $(if $(filter %/tardis-rs/.done,$(BUILT_CLIENTS)),tests/interop/rust_client.py) $(if $(filter %/nats/.done,$(BUILT_CLIENTS)),tests/interop/nats_console.py) $(ARGS)

coverage: setup ## runs them as Python alone, and tells which lines none ran, in half as much time again
	@TARDIS_MACHINE_COMPILED=0 $(PYTEST) --cov --no-cov-on-fail $(ARGS)

lint: $(VENV) ## checks style, types, import rules, the container file, the schema and what is generated
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict
	.venv/bin/lint-imports --no-logo
	.venv/bin/hadolint deploy/Dockerfile
	scripts/schema check
	scripts/docs check

schema: $(VENV) ## formats and checks the Protobuf schema, and generates code from it
	scripts/schema generate

docs: $(VENV) ## generates the documentation of the settings
	scripts/docs generate

lock: .tools/java/bin/java ## writes the lock files again, after a change in pyproject.toml or tools/
	@scripts/lock

bench: setup ## measures against raw limits and against the Node library
	@$(WITH_JAVA) $(PYTHON) -m benchmarks $(BENCH) $(ARGS)

fault: setup ## kills, hangs, cuts off and starves a bus and the machine while it publishes: BUS=kafka EVENTS=1000000 SEED=1
	@$(WITH_JAVA) $(PYTHON) -m tests.fault $(or $(BUS),kafka) --events $(EVENTS) --seed $(SEED) $(ARGS)

soak: setup ## does all that to all brokers at once for long, and watches memory and descriptors: MINUTES=20 SEED=1 BUS=kafka for one
	@$(WITH_JAVA) $(PYTHON) -m tests.fault $(BUS) --soak $(MINUTES) --seed $(SEED) $(ARGS)

crash: setup ## kills the lake's ingest job again and again, fills its disk, and compares the tables: EVENTS=1000000 KILLS=20 SEED=1 LAKE=s3 TOGETHER=1
	@$(WITH_JAVA) $(PYTHON) -m tests.lake_crash --events $(EVENTS) --kills $(KILLS) --seed $(SEED) --lake $(LAKE) $(if $(TOGETHER),--together) $(ARGS)

clean: ## removes all that was made or fetched
	@rm -rf .venv .tools .demo .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf src/tardis_machine/__compiled__

all-programs:
	@scripts/setup programs chromium compiler java node redis $(call maven-for,$(SPARK) $(BROKERS))

demo-programs:
	@scripts/setup programs java $(DEMO_PROGRAMS) $(call maven-for,$(filter .tools/jars/%,$(DEMO_FETCHED)))

$(VENV): requirements.lock pyproject.toml hatch_build.py $(shell find src -name '*.pyx' -o -name '*.pxd') scripts/setup
	@scripts/setup venv
	@touch $@

.tools/java/bin/java:
	@scripts/setup java

.tools/jars/%/.done: tools/jars.lock scripts/jars | .tools/java/bin/java
	@scripts/jars fetch $*
	@touch $@

.tools/interop/tardis-rs/.done: tools/interop/tardis-rs/Cargo.toml tools/interop/tardis-rs/src/main.rs
	@scripts/setup rust tardis-rs
	@touch $@

.tools/interop/nats/.done: scripts/setup
	@scripts/setup nats_console
	@touch $@

.tools/interop/%/.done: tools/interop/%.lock scripts/setup | $(VENV)
	@scripts/setup interop $*
	@touch $@

$(NPM): tools/npm/package.json tools/npm/package-lock.json scripts/setup
	@scripts/setup npm
	@touch $@
