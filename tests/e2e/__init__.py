"""End-to-end tests: the real daemon, with simulated GPUs, on a real cluster. Run them with hack/e2e."""
