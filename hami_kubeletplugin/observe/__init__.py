"""How what goes on is seen from outside, and by other threads.

    endpoint      what Prometheus and probes can ask, over HTTP
    exposition    Prometheus' text format
    page          what is made once for all who ask at about the same time
    bearer        a token in a file: who sends it may ask
    counts        what the daemon does, told to whoever counts it
    observable    a value that threads wait for a change of, such as what is published
    paced         work that follows changes, but not more often than it may
    once          what goes on is said once per reason
    log           structured logs

`endpoint` and `exposition` are imported only where they are wanted.
"""
