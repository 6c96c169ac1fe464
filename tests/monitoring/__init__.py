"""What deploy/monitoring says, held against what is exported: by promtool, as part of `make check`."""
