"""Admission reviews: how they come in, and what is answered.

server          HTTPS: what is taken, health, an end that loses nothing
answer          what is answered: the conversion, and what it needs in the cluster
review          AdmissionReview -> what is asked; answer -> AdmissionReview (pure)
metrics         what Prometheus gets to see
reasons         why reviews are denied, in few words (pure)
"""
