"""How what goes on is seen from outside, and by other threads.

    metrics       what Prometheus gets to see of the node daemon
    observable    a value that threads wait for a change of, such as what is published
    paced         work that follows changes, but not more often than it may
    once          what goes on is said once per reason
    log           structured logs

Each stands alone; `metrics` is imported only where it is wanted.
"""
