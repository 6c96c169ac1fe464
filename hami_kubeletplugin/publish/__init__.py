"""From GPUs to ResourceSlices: pure functions in the middle, one reconciling publisher at the edge."""
