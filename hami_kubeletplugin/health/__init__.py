"""How the GPUs are: watches them, keeps a state for each, and tells people.

driver ──events, polls──> state of each GPU ──conditions──> board (`gpu.conditions`)
board ──────────────────> log, Events on the Node and on pods

service  the parts of it, wired
watch    polls and events over NVML, one after the other, and what they say on the board
driver   what is asked of NVML
states   how one GPU is, as it follows from that (pure)
xids     what Xids mean
log      a line for each condition that begins or ends
"""
