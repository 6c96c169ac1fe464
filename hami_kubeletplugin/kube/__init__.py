"""The Kubernetes API, for an event loop and for threads: credentials, errors, version negotiation, list and watch.

informer          list, then watch from there: keeps a copy of some of the cluster's objects
retry             waits after errors, and says once per reason what is wrong
backoff           waits that grow
template_api      what the webhook asks for besides its certificate
certificate_api   what the webhook's certificate needs: one Secret, `caBundle`s
claim_api         what a prepare asks for: claims and pods, several at once; for threads
claim_status_api  by what status.devices of claims is written
resource_api      what both programs ask for: claims, pods, nodes, slices, events
client            HTTP to the API server over aiohttp, watches too; for the event loop
lean_aiohttp      aiohttp, imported without the host's certificate authorities
people            GETs, lists and dry runs as a person at a terminal, over the official `kubernetes` package
people_config     whose kubeconfig it reads: plug-ins, OIDC, contexts, merged files
paged             who reads for commands: GETs, and lists in pages
blocking          GETs over kept connections, for threads
connection        one of those: a GET and its answer within a deadline
patience          how long a server is waited for: longer for one that is slow (pure)
token             what each request carries, read again when its file changes
call              a request, and what its answer means: an object or an error (pure)
config            how to reach it, and as whom: kubeconfig or service account
event             an Event, for people (pure)
nesting           JSON that is nested more deeply than Python's decoder goes (pure)
quantity          Kubernetes quantities, exactly (pure)
"""
