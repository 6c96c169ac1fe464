"""`make bench`: what people and the cluster wait for because of us, measured on real parts of Kubernetes.

    __main__       which parts, under which conditions; table and JSON
    prepare        the node daemon: how long the kubelet waits for it
    scrape         the node daemon's metrics: how long Prometheus waits for them
    admission      the webhook: how long the API server waits for it
    pods           both on a real node: how long pods take to run, with a GPU and without
    rates          1 to 1,000 pods at once until they are bound, as Kubernetes comes and with its limits on requests raised
    way            of one such pod: where its time goes, out of the logs of all whom it passes
    unschedulable  pods that fit nowhere: when the scheduler says so, and who waits meanwhile
    scale          1,000 nodes that are only objects, with our publishers: what the API server has to bear

    versus         of `prepare`: ours and a driver in Go that does what any must, in turns
    daemon         `hami-kubeletplugin run` beside a fake of the kubelet; that reference (its source is reference/)
    containers     of `scrape`: processes that stand in containers
    caller         calls a DRA socket, at little cost
    webhook        `hami-webhook run`, called by the API server
    process        our programs as processes: memory, CPU time
    objects        pods and allocated claims, made through the API
    manifests      daemonset.yaml and webhook.yaml in the cluster
    reviews        what the API server sends to the webhook, over TLS
    follower       when pods are bound, and when they run
    control_plane  etcd, API server, controllers and scheduler, without a node
    nodes          objects that stand for nodes, with our slices
    fleet          of `scale`: the publishers of all nodes in one process
    templates      of `scale`: the webhook with 10,000 templates
    served         the API server's own counts of requests
    timeline       of `way`: logs, and the steps that they tell
    figures        samples, percentiles, aims; table and JSON
    plot           curves as an SVG

What is real: API server, etcd, disk, processes, sockets; for `pods` all of a node besides. What is not: GPUs are simulated; for
`prepare` the caller stands for the kubelet, and the bench writes the allocations as the scheduler would; for `scale` nodes are
only objects.
"""
