# On a machine with nothing but Python and make: `make audit` audits the embedded model, `make test` runs the suite.
# Both create .venv first, and only when pyproject.toml or constraints.txt changed.
#
# Settings are given on the command line, never taken from the environment:
#   make PYTHON=python3.12 audit          another interpreter (3.11 or newer)
#   make PIP_FLAGS="--find-links DIR"     more options for pip
#   make TEST_FLAGS="-k scale" test       more options for pytest

PYTHON := python3
PIP_FLAGS :=
TEST_FLAGS :=

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet install $(PIP_FLAGS) -c constraints.txt
RUNS := reports/runs/default
MIN_PYTHON := import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	"quantaudit needs Python 3.11 or newer, and this is " + sys.version.split()[0] + "; name one with make PYTHON=...")

unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS PYTEST_ADDOPTS MYPYPATH OMP_NUM_THREADS MKL_NUM_THREADS

.PHONY: audit test test-slow check bench
.DELETE_ON_ERROR:

# ADMIT, REJECT and INCONCLUSIVE (0, 3, 4) are results; anything else is a failure.
audit: $(VENV)/.installed
	@code=0; $(VENV)/bin/quantaudit run -o $(RUNS) || code=$$?; \
	case $$code in \
	0) verdict=ADMIT ;; 3) verdict=REJECT ;; 4) verdict=INCONCLUSIVE ;; \
	*) echo "the audit failed with exit code $$code" >&2; exit $$code ;; \
	esac; \
	echo "$$verdict (exit code $$code). The report:"; find "$(CURDIR)/$(RUNS)" -type f | sort | sed 's/^/  /'

# Two processes of one thread each: the tensors of the tests are small, so threads inside torch gain nothing and their
# barriers spin; one thread also makes every exact comparison one of a known thread count. A file stays in one process,
# so what its fixtures load is loaded once.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 --dist loadfile

test: $(VENV)/.installed-dev
	$(PYTEST) -m 'not slow' $(TEST_FLAGS)

# Those that take more than ten seconds each; `.ci/run` runs them too.
test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow $(TEST_FLAGS)

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(VENV)/.installed-dev
	@for script in benchmarks/speed/*.py; do echo "$$script"; $(VENV)/bin/python "$$script" || exit; done

# torch on its own and first, at its pinned version: resolved among the others it may come as an accelerator build.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(MIN_PYTHON)'
	@echo "installing into $(VENV): some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev,hf,trl]'
	@touch $@
