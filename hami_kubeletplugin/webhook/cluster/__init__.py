"""What the webhook keeps in the cluster, and knows of it.

collector       unused templates go
templates       a pod's templates exist before the pod does
flight          one write for all who wait for it
allowance       how many templates are made, and how fast
version         which Kubernetes it is
sizes           which kinds of GPU there are, for percentages
"""
