"""End-to-end tests: the real daemon, with simulated GPUs, on a real one-node cluster. Run them with hack/e2e."""
