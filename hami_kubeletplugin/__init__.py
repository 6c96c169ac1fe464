"""GPU sharing for Kubernetes through Dynamic Resource Allocation, with limits kept by HAMi-core.

The package is a house whose floors import downward only (checked by import-linter):

    cli, demo      entry points of the node daemon: parse settings, wire the parts, run
    uninstall      what the node daemon leaves on a node, taken away
    kubectl        the entry point of `kubectl hami`: what people ask about the cluster
    daemon         the parts of the node daemon in one task group
    metrics        what the node daemon shows to Prometheus
    show           tables of devices and claims for people
    top            tables of what is used, for people
    doctor         what is right and wrong on this node, and what mends it
    fake           a small API server, control plane, kubelet and scheduler for the demo and the unit tests
    inforce        whether limits are in force in running containers
    health         how GPUs are: watched, and told to people
    kubelet        the gRPC face: registration, DRA, health, sockets
    publish        Gpu -> device -> ResourceSlice pool; reconcile with the API server
    webhook        pod -> claim templates + patch; the admission server; the entry point of hami-webhook
    usage          what containers use of their GPUs
    hamicore       HAMi-core as what keeps limits: its contract, its files on the host, what containers get of it
    claims         claim -> plan -> CDI spec; records; prepare, unprepare, recover; what keeps limits as an interface
    gpu            NVML, discovery, topology, simulated hardware
    kube           the Kubernetes API client
    findings       what doctors found, for people and scripts
    bundles        what a bug report needs, in a file
    redaction      credentials cut out of what others wrote
    observe        structured logs, the page for Prometheus and probes
    files          files that are there whole or not at all
    selinux        labels of what containers have mounted
    hanging        work that may hang in the kernel
    program        the frame of both command lines: options from settings, tables
    port           TCP ports that anybody may reach: what a connection may cost
    api            names, errors, settings, GpuConfig: what users read and write
"""

__version__ = "0.1.0"
"""The only place of the version; images' tags in manifests and docs have to agree, and a test says which don't."""
