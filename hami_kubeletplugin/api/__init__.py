"""What users read and write: names, errors, settings and the opaque GpuConfig. Imports nothing of ours."""
