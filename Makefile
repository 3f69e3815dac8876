# make demo       the whole journey on the text that is already on this machine, in minutes
# make test       the tests; make test-long adds the ones that take hours
# make lint       formatting and lint rules
# Each creates .venv first, from requirements.txt, and again whenever requirements.txt or pyproject.toml changes.

.PHONY: demo test test-long lint

python := .venv/bin/python
# Whole files a core, as tests of a file share what is slow to make; in the order that tests/conftest.py gives them.
# Two processes more than there are cores, as tests of several processes wait for each other.
in_parallel := -n $(shell expr $$(nproc) + 2) --dist loadfile --no-loadscope-reorder

demo: .venv/installed
	$(python) recipes/quickstart.py

test: .venv/installed-test
	$(python) -m pytest $(in_parallel)

# Both passes run, whatever the first ends with.
test-long: .venv/installed-test
	$(python) -m pytest $(in_parallel) -m "not alone"; first=$$?; \
	$(python) -m pytest -m alone && exit $$first

lint: .venv/installed-test
	$(python) -m ruff check .
	$(python) -m ruff format --check .

.venv/installed: requirements.txt pyproject.toml
	@sh .ci/make_environment .
	@touch $@

.venv/installed-%: requirements.txt pyproject.toml
	@sh .ci/make_environment ".[$*]"
	@touch .venv/installed $@
