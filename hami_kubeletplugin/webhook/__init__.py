"""The webhook: people keep writing `nvidia.com/gpu: 1`, and get ResourceClaims that mean the same.

    cli                 entry point: parse settings, run a command
    service             the parts of `run` in one task group

Conversion, pure:

    convert             pod -> templates + JSON patch + warnings
    demand              a container's resources -> how much of how many GPUs (HAMi's rules)
    selection           a pod's annotations -> which GPUs
    hazards             variables and volumes that meet HAMi-core's own -> warnings, or a refusal
    template            demand + selection -> ResourceClaimTemplate, named by its content
    cel                 expressions for ResourceSlice devices, escaped and guarded
    reapply             a converted pod that is applied again -> patch that leaves it as it is
    validate            ResourceClaim, ResourceClaimTemplate -> what is wrong with it

Reviews:

    server              HTTPS: what is taken, health, an end that loses nothing
    listener            a TLS port that one process can take over from another
    review              AdmissionReview -> what is asked; answer -> AdmissionReview (pure)
    admission           what is answered: the conversion, and what it needs in the cluster
    metrics             what Prometheus gets to see

What it keeps in the cluster, and knows of it:

    templates           a pod's templates exist before the pod does
    collector           unused templates go
    sizes               which kinds of GPU there are, for percentages
    follow              list and watch, over and over

Its certificate:

    certificates        where it comes from: files or the Secret
    certificate_files   files that others renew
    keeper              our own: made, stored, trusted, served, renewed
    trust               what to do next for that (pure)
    tls_secret          Secret and configurations <-> what `trust` works with (pure)
    pair                a certificate and its key
    certs               what `hami-webhook certs` tells

`hami-webhook convert`:

    documents           files with pod templates in them -> their DRA form (pure)
    manifest            YAML and JSON as kubectl reads them (pure)
    patch               a JSON patch of `convert`, applied (pure)
    explain             what became of each line, in words (pure)
    offline             files and memory sizes from outside
"""
