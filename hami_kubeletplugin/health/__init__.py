"""How the GPUs are, and whether the node can use them: watches them, keeps a state for each, and tells people.

driver ──events, polls──> state of each GPU ──conditions──> board (`gpu.conditions`)
what prepares need ──looks──> readiness ──conditions──> board
board ──────────────────> Events on the Node and on pods
"""
