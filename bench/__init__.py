"""`make bench`: how long the kubelet waits for us, on a real API server and with records on a real disk.

    __main__    what is measured, in which order
    objects     pods and allocated claims, made through the API
    daemon      `hami-kubeletplugin run` as a process: start, memory, CPU time
    figures     samples, percentiles, aims; table and JSON

What is real: API server, etcd, disk, process, sockets. What is not: GPUs are simulated, the caller stands for the kubelet, and
the bench writes the allocations as the scheduler would.
"""
