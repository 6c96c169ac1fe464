"""Whether limits are in force in running containers: whether any process there has loaded HAMi-core.

monitor         looks now and then, and says in the log and by an Event what it found
events          the Event of a pod, once for each container
unlimited       containers in which no process has been seen with HAMi-core, from one look to the next
runtime         whether the NVIDIA runtime lets containers have GPUs without any claim
running         how many processes of each claim have it now, for people
"""
