"""The Kubernetes API over aiohttp: credentials, errors, version negotiation, list and watch.

informer          list, then watch from there: keeps a copy of some of the cluster's objects
retry             waits after errors, and says once per reason what is wrong
backoff           waits that grow
template_api      what the webhook asks for besides its certificate
certificate_api   what the webhook's certificate needs: one Secret, `caBundle`s
resource_api      what both programs ask for: claims, pods, nodes, slices, events
client            HTTP to the API server: answers -> objects or errors
config            how to reach it, and as whom: kubeconfig or service account
nesting           JSON that is nested more deeply than Python's decoder goes (pure)
quantity          Kubernetes quantities, exactly (pure)
"""
