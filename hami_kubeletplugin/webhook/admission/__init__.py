"""Admission reviews: how they come in, and what is answered.

server          HTTPS: what is taken, health, an end that loses nothing
tls_port        a TLS port that one process can take over from another
answer          what is answered: the conversion, and what it needs in the cluster
review          AdmissionReview -> what is asked; answer -> AdmissionReview (pure)
metrics         what Prometheus gets to see
"""
