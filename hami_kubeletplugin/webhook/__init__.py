"""The webhook: people keep writing `nvidia.com/gpu: 1`, and get ResourceClaims that mean the same.

Pure, from the pod to what is made of it:

    demand         a container's resources -> how much of how many GPUs (HAMi's rules)
    selection      a pod's annotations -> which GPUs
    hazards        variables and volumes that meet HAMi-core's own -> warnings, or a refusal
    cel            expressions for ResourceSlice devices, escaped and guarded
    template       demand + selection -> ResourceClaimTemplate, named by its content
    convert        pod -> templates + JSON patch + warnings
    validate       ResourceClaim, ResourceClaimTemplate -> what is wrong with it
    manifest       YAML and JSON files, as kubectl reads them
    documents      files with pod templates in them -> their DRA form
    explain        the same in words

At the edges: the admission server, its certificate, and what it keeps in the cluster.
"""
