# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check machine unit coverage image e2e cluster cluster-down bench site wire chart lock format clean

.venv/.ready: requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: .venv/.ready ## the whole way on simulated GPUs, no cluster needed
	$(BIN)/hami-kubeletplugin demo

test: .venv/.ready machine ## everything that decides whether the software works
	hack/test

machine: ## packages that tests need: installed where that is possible, else those tests say what they lack
	[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || hack/cluster/build --packages

check: .venv/.ready ## lint, format, types, floors, generated code and pages fresh, no dead link, metrics and rules as promtool wants them, the chart
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	hack/wire --check
	hack/docs --check
	hack/site
	hack/monitoring
	hack/chart --check
	hack/chart --test

unit: .venv/.ready
	$(BIN)/pytest tests/unit

coverage: .venv/.ready ## lines that unit tests reach; takes twice as long as they do
	$(BIN)/pytest tests/unit --cov

image: ## the Dockerfile, built for real, as tests/build/hami-dra.tar
	hack/image

e2e: .venv/.ready ## the real cluster; says what it leaves out where it can't run
	hack/e2e

cluster: .venv/.ready ## a real Kubernetes with the chart installed in it, on simulated GPUs, to play with
	hack/play

cluster-down:
	hack/cluster/down --wipe

bench: .venv/.ready
	hack/bench

site: .venv/.ready ## these docs as pages for a browser: build/site/index.html
	hack/docs
	hack/site

wire: .venv/.ready ## generate hami_kubeletplugin/kubelet/wire from proto/
	hack/wire

chart: .venv/.ready ## the chart's README, options in its schema, rules and dashboard, from where they are written
	hack/chart

LOCK := $(BIN)/pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --strip-extras --no-header --allow-unsafe
lock: .venv/.ready ## renew requirements/*.txt
	$(LOCK) -o requirements/run.txt pyproject.toml
	$(LOCK) --build-deps-for wheel --only-build-deps -o requirements/build.txt pyproject.toml
	$(LOCK) --extra dev --extra docs --extra kubectl -o requirements/dev.txt pyproject.toml

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build tests/build .mypy_cache .ruff_cache .pytest_cache
