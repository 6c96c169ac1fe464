"""The hardware floor: NVML, topology from sysfs, and simulated nodes behind the same interface.

watch           asks for the GPUs again and again, and tells who wants to know
source          chooses where GPUs and the driver's edits come from
discover        the GPUs that NVML and sysfs find; what is wrong with one, and so why it is left out
known           the GPUs as seen last, in a file
unserved        why a GPU is left out, in people's words (pure)
device_names    the name of each GPU's device, which never becomes another one's
sessions        who may call NVML when, and whether it stays open; one that hangs
nvml            one NVML session
simulate        the same from a profile or a file, without hardware
nodefile        the YAML file that describes a simulated node
profiles        simulated GPU models, boards and nodes, as data
pci             PCI addresses, and what sysfs knows about them
toolkit         the driver's edits from `nvidia-ctk cdi generate`
cdi_hook        which nvidia-cdi-hook the container runtime is to run
toolkit_run     one run of that: bounded, and never outliving the daemon
toolkit_spec    what that prints, decoded and made ours (pure)
edits           the driver's part of a container
libcuda         whether the NVIDIA runtime brings libcuda.so.1 into containers here
device_health   what the kubelet is told of devices (pure)
attributes      what is said about a GPU, in slices and to containers (pure)
capacity        how much of a GPU there is to share (pure)
conditions      what is to be said of GPUs beside what they are, by several sources, joined
model           what the rest of the house knows about GPUs: values, and the interface that produces them
"""
