"""All tests; `REPOSITORY` is the root of the checkout."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
