"""From an allocated claim to what its containers get.

    counted         the service as the kubelet gets it: its answers are counted
    status_writer   what is prepared, said in the objects
    suspects        claims that another one waits for, looked at at once
    recovery        what happens without the kubelet asking: at the start, repair, clean-up of stale claims
    failing         claims that could not be mended, and when that is tried again
    service         NodePrepareResources and NodeUnprepareResources, as far as they are not gRPC
    calls           the claims of one call, at the same time, each with its answer in time
    locks           one lock per claim, in the order of asking
    reader          what the API server says about the claims of one call
    node_files      what a claim leaves on the node, in an order in which a crash is harmless
    ledger          what prepared claims hold of each GPU, and that it is never more than there is
    metadata_files  the files that tell its containers of their devices
    specfiles       its CDI spec file
    other_names     claims of this node under other driver names
    records         its record file
    record_schema   how a record stands on the disk, version by version (pure)
    spec            prepared claim -> CDI spec (pure)
    metadata        prepared claim -> what its containers are told of their devices (pure)
    enforcement     what keeps limits, as an interface; and nothing, which is one of them
    reasons         why claims fail, in few words (pure)
    numbering       the order in which a container numbers its GPUs (pure)
    plan            allocated claims + pods -> prepared claim, or a refusal (pure)
    privileged      which pods no limit could hold in (pure)
    status          prepared claim -> status.devices (pure)
    usage           how much of each GPU a prepared claim holds (pure)
    prepared        what a prepared claim is (pure)
    pods            Pod -> which container sees which request (pure)
    allocation      ResourceClaim -> our shares of it (pure)

Upper ones import lower ones. `claims` knows no HAMi-core: what keeps limits comes in through `enforcement`.
"""
