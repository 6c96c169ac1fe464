"""The webhook's process on the real cluster, called by its API server. With the node daemon beside it: from pods to limits."""
