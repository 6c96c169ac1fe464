"""The webhook's certificate.

report          what `hami-webhook certs` tells
source          where it comes from: files or the Secret
files           files that others renew
clients         who may ask for reviews: clients with a certificate of a CA in a file
rotation        our own: made, stored, trusted, served, renewed
api_objects     Secret and webhook configurations <-> what `rotation_step` works with (pure)
rotation_step   what to do next (pure)
key_pair        a certificate and its key: made, read, put into a TLS context
"""
