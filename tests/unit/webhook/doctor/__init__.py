"""Doctors of the cluster."""
