"""How the GPUs are: watches them, keeps a state for each, and tells people.

driver ──events, polls──> state of each GPU ──conditions──> board (`gpu.conditions`)
board ──────────────────> Events on the Node and on pods, slices, a file
"""
