"""A small API server and kubelet that speak the real protocols, and a scheduler, for the demo and the unit tests.

kubelet         the plugin watcher and the DRA calls, over real sockets
scheduler       gives a claim's requests room on the first device that has it
control_plane   what comes between a pod and its claims: the call to the webhook, the controller of claims
api_server      an API server over real HTTP
api_pages       lists in pages
api_patch       patches -> what an object becomes (pure)
api_requests    method and path -> verb, resource, version and key (pure)
api_rules       what is checked and changed in objects on their way in
api_slices      what is refused in a ResourceSlice (pure)
api_store       the objects: versions, conflicts, selectors, a log of changes
api_kinds       what is served: kinds, groups, forms of older API versions (pure)
json_patch      applies the webhook's patch (pure)
"""
