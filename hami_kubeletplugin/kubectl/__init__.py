"""`kubectl hami`: what people ask about the cluster. It is told from slices, claims and pods as they are now; nothing is written.

cli          entry point: reads options, reads the cluster, prints
support      what a bug report needs of a cluster, without secrets
why_view     why a pod waits, as text and JSON (pure)
why          why a pod waits (pure)
asked        what a pod asks for: its claims, and what nobody converted (pure)
nodes        why a node doesn't take a pod, without regard to GPUs (pure)
placing      GPUs of one node for all requests of a pod (pure)
fits_view    where something fits, as text and JSON (pure)
fits         whether a GPU has room, and what is missing if not (pure)
wanted       requests of a claim: amounts, numbers, selectors, tolerations (pure)
selectors    CEL in the few forms that can be judged here (pure)
usage_view   what is used, as tables and JSON (pure)
cluster      what is asked of the API server
inventory    what there is of each GPU, and what claims consume of it (pure)
pools        slices -> pools as the scheduler sees them (pure)
taints       taints of GPUs, and rules that add some (pure)
capacity     amounts: read, rounded as the scheduler does, written (pure)
printable    texts of strangers, made safe for a terminal (pure)
"""
