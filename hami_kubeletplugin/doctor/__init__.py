"""`hami-kubeletplugin doctor`: what is right and wrong on this node, why that matters, and what mends it.

It changes nothing, works beside a running daemon and without one, and never waits longer than it was told to.

    checks      all checks by name, wired
    bundle      what a bug report needs, in a file without secrets
    trying      a container-like process through our own edits, to see the limit in force
    scratch     a folder of its own for that
    sandbox     the mount name space of that process, and its program
    containers  running containers without the library, or with another limit
    claims      records, CDI specs and claims, compared; what is left of claims that are gone
    slices      GPUs as published against GPUs as found; who else gives them out
    cluster     the API server: reachable, its version, its clock, our rights
    serving     the daemon's sockets, and what the kubelet and the daemon itself know
    runtimes    what the container runtime reads of CDI
    library     HAMi-core's files, and the hook that renews regions
    folders     file systems of our folders: mount options, leases, space, labels of SELinux
    toolkit     what brings the driver into containers
    driver      NVML, GPUs, device nodes
    place       where things are on this node, and what is asked once for all checks
    programs    a program run for its few lines

Upper ones import lower ones. In each module pure functions judge what small readers found.
"""
