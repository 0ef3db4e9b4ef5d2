# Run as `uv run just RECIPE`: uv installs what uv.lock names and puts its tools first on PATH.

# Tests run in this order; those that need servers come last. A folder that is not there yet is passed over.
fast_tests := "tests/style tests/unit tests/contracts tests/simulation"

[private]
default:
    @just --list --unsorted

# Everything that reads the code and runs none of it, then the house rules
check: _static
    pytest tests/style

# check, then every test, fast ones first, in one pytest run
test *ARGS: _static
    pytest {{ ARGS }}

# Only the tests that need no server
test-fast *ARGS:
    pytest -o testpaths="{{ fast_tests }}" {{ ARGS }}

# Format, and fix what can be fixed safely
fmt:
    ruff check --fix
    ruff format

# A market on this machine: nodes, a cluster, a lost node, the bill
demo *ARGS:
    volt demo {{ ARGS }}

_static:
    ruff format --check
    ruff check
    mypy
    lint-imports --no-logo
