"""What the node daemon shows to Prometheus: from facts to families, without I/O. Imported only where metrics are wanted.

node    the daemon itself: what it gives containers, whether it can, and when it last did
gpus    how each GPU is
driver  what the daemon has done
"""
