# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check browser bench peers gallery mutants hostile clean

demo: .venv/ready        ## draw the gallery and walk through the lectures' example
	$(BIN)/regard demo

test: .venv/ready browser  ## the whole suite
	$(BIN)/pytest

check: .venv/ready browser  ## ruff, pyright and the suite
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest

browser:                 ## Debian's Chromium and axe-core, with which the page is tested; without them those tests are skipped
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && apt-get install -qq -y chromium; } \
	|| echo "there is no Chromium, and it cannot be installed here: the page's tests will be skipped"
	@[ -d node_modules/axe-core ] || npm install --silent --no-save --no-package-lock axe-core 2> /dev/null \
	|| echo "axe-core cannot be had from npm: whether everybody can use the page will not be tested"

bench: .venv/ready       ## what needs no corpus and no GPU, in about an hour; writes benchmarks/results
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/block_maps.py
	$(BIN)/python benchmarks/classify.py world
	$(BIN)/python benchmarks/senses.py world
	$(BIN)/python benchmarks/trees.py
	$(BIN)/python benchmarks/graphs.py
	$(BIN)/python benchmarks/autoencoder.py
	$(BIN)/python benchmarks/hard_attention.py
	$(BIN)/python benchmarks/figures.py

peers:                   ## an environment for each toolkit that regard bench compares with, in out/peers
	PYTHON=$(PYTHON) benchmarks/peers.sh out/peers

gallery: .venv/ready     ## redraw docs/gallery.md and its pictures
	$(BIN)/regard gallery docs

mutants: .venv/ready     ## plant one error at a time; each must turn a test red
	$(BIN)/python benchmarks/mutants.py

hostile: .venv/ready browser  ## bad files, fuzzed requests, kill -9, planted links, bombs: the long form, in minutes
	$(BIN)/pytest tests/hostile -m "not gpu"

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Regard needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv out
