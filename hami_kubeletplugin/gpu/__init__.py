"""The hardware floor: NVML, topology from sysfs, and simulated nodes behind the same interface."""
