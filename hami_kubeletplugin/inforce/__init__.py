"""Whether limits are in force in running containers: whether any process has loaded HAMi-core, and none has changed them.

monitor         looks now and then, and says in the log and by an Event what it found
differing       whether limits in regions of running containers are those of their claims
events          Events of a pod, once for each container or its start
unlimited       containers in which no process has been seen with HAMi-core, from one look to the next
runtime         whether the NVIDIA runtime lets containers have GPUs without any claim
running         how many processes of each claim have it now, for people
"""
