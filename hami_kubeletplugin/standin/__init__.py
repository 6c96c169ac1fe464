"""A small API server and kubelet that speak the real protocols, for the demo and the unit tests."""
