"""What users read and write, and what is read of it. Imports nothing of ours from other floors.

webhook_settings  everything that can be set for the webhook
settings          everything that can be set for the node daemon; options
health_settings   how GPUs are watched, and what their errors mean
taint_settings    the effects of taints, by kind of condition
claim_settings    what is told of a claim that is prepared
beside_settings   what is done where others give out the same GPUs
metrics_settings  what is shown to Prometheus, and to whom
toolkit_settings  which programs of NVIDIA's toolkit are used
gpuconfig         the opaque GpuConfig of claims and classes
fields            fields of JSON that others wrote, tolerantly and checked
quoting           what people wrote, in a few words for a message
claim             the words that kubelet and claims share
limits            what a container may use of one GPU
cdi               the part of the Container Device Interface that we write
names             every name in objects of the cluster and in environments
errors            the errors of the whole program
"""
