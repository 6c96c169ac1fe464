"""From a pod in HAMi's words to claim templates and a patch. All of it pure.

toleration      of the taint that nodes with GPUs have on GKE and AKS
reapply         a converted pod that is applied again -> patch that leaves it as it is
convert         pod -> templates + JSON patch + warnings
needs           the templates that its containers need
existing        claims that the pod has already from what its amounts make
sharing         which containers use one claim in turn, and what it has to hold
claims          which container gets which claim, and its name
defaults        what a LimitRange filled in though the container has its GPUs
bounds          how much of a pod is looked at -> nothing, or a refusal
validate        ResourceClaim, ResourceClaimTemplate -> what is wrong with it
fleet           what no GPU that is published has -> warnings
leftovers       what counts on HAMi's scheduler and nodes -> warnings
lookalikes      names that look like ours, or stand in the wrong place -> warnings, or a refusal
placements      how much the scheduler has to try before it says no
template        demand + annotations -> ResourceClaimTemplate, named by its content
conflicts       variables and volumes that meet HAMi-core's own -> warnings, or a refusal
demand          a container's resources -> how much of how many GPUs (HAMi's rules)
annotations     a pod's annotations -> which GPUs
cel             expressions for ResourceSlice devices, escaped and guarded
"""
