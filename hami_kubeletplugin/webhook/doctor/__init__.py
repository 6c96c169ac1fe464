"""`doctor`: is the installation in the cluster as it should be. Read from the API; only a pod's dry run asks for more.

checks          what is looked at, by whom
own             what the webhook knows of its own certificate
reach           the webhook as it is reached from its own pod
probe           a pod that asks for a GPU, tried out: is it converted (pure)
policies        are the policies in force (pure)
classes         do DeviceClasses lead to the GPUs (pure)
service         who answers the API server's calls (pure)
order           who else changes pods, and where nobody does (pure)
installation    what belongs to one, whatever its parts are called
configuration   is the webhook called, for what, and trusted (pure)
templates       how many there are, and whether unused ones go (pure)
conflicts       who else gives out the same GPUs; quotas of names that are gone (pure)
rates           how many GPU pods a second Kubernetes lets through (pure)
kubernetes      version, API, feature gates (pure)
installed       does it run, on which nodes, and what is published (pure)
cluster         what is read of the cluster, each object once
expected        what this version's manifests have, and differences from that (pure)
"""
