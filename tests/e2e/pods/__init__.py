"""Daemon and webhook as somebody installs them: pods of the image, on two nodes."""
