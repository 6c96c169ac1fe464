"""The webhook: people keep writing `nvidia.com/gpu: 1`, and get ResourceClaims that mean the same.

Its rooms import downward only, as the floors of the package do (checked by import-linter):

    cli             entry point: parse settings, run a command
    service         the parts of `run` in one task group
    offline         `hami-webhook convert`: files in, their DRA form and an explanation out
    doctor          `hami-webhook doctor` and `kubectl hami doctor`: is the installation as it should be
    admission       reviews: HTTPS, what is asked, what is answered
    cluster         what is kept in the cluster and known of it: templates, sizes of GPUs
    certificate     the server's certificate: from files or a Secret; rotation; what `hami-webhook certs` tells
    conversion      pod -> claim templates + patch; what is wrong with a claim. Pure
"""
