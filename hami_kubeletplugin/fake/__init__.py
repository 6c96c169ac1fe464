"""A small API server and kubelet that speak the real protocols, and a scheduler, for the demo and the unit tests."""
