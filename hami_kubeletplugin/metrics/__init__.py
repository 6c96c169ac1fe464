"""What the node daemon shows to Prometheus: from facts to families, without I/O. Imported only where metrics are wanted.

node    the daemon itself: what it gives containers, whether it can, and when it last did
driver  what the daemon has done
gpus    how each GPU is
hami    what is given out and used, as HAMi's metrics have it
claims  what containers use of their claims
view    what the last two show: what is in use, beside what is given out
"""
