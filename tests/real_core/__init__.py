"""The real library of HAMi-core on two GPUs that are not there. `hack/hami-core` builds what this needs, and runs it."""
