"""`hami-webhook convert`: the same conversion without a cluster.

explain         what became of each line, in words (pure)
inputs          files, and what GPUs there are, from outside
documents       files with pod templates in them -> their DRA form (pure)
above           what stands above a pod template, and means nothing there (pure)
kinds           objects that are more than their pod templates (pure)
manifest        YAML and JSON as kubectl reads them (pure)
scalars         what each kind of scalar means to kubectl (pure)
"""
