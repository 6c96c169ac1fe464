"""The kubelet's side. Other rooms come in through `server.KubeletServer`, `other_names.OtherNames` and `sockets.driver_lock`.

    other_names   serves claims of other driver names, until they are gone
    server        binds, keeps and removes the sockets
    gate          has calls wait until they may be worked on
    handover      how a successor is registered before its predecessor ends
    registration  GetInfo, NotifyRegistrationStatus
    dra           NodePrepareResources, NodeUnprepareResources
    listener      one gRPC server on one socket file, with reflection
    standard      grpc.health.v1: alive, ready
    health        NodeWatchResources
    sockets       paths, socket files, the driver's lock
    wire          generated messages

Contract: k8s.io/kubelet pkg/apis/{pluginregistration,dra,dra-health}.
"""
