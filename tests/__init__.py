"""All tests.

`REPOSITORY` is the root of the checkout; `CHECKOUT` the environment in which programs are this one's, whatever is installed.
"""

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CHECKOUT = {"PYTHONPATH": str(REPOSITORY)}
