"""How what goes on is seen from outside, and by other threads.

    endpoint      what Prometheus and probes can ask, over HTTP
    counts        what the daemon does, told to whoever counts it
    observable    a value that threads wait for a change of, such as what is published
    paced         work that follows changes, but not more often than it may
    once          what goes on is said once per reason
    log           structured logs

Each stands alone; `endpoint` is imported only where it is wanted.
"""
