"""How the GPUs are, and whether the node can use them: watches them, keeps a state for each, and tells people.

driver ──events, polls──> state of each GPU ──conditions──> board (`gpu.conditions`)
what prepares need ─────> readiness ─────────conditions──> board; probes
board ──────────────────> log, Events on the Node and on pods, slices, metrics, a file

service         the parts of it, wired
needs           what prepares need, each looked at without harm
readiness       whether claims can be prepared here; looked at with growing waits while they can't
runtimes        where container runtimes look for CDI specs
heard           who hears of conditions, at a bounded pace
events          Events on the Node and on pods
kept            what is known, in a file, for commands and for the daemon that comes next
watch           polls and events over NVML, one after the other, and what they say on the board
driver          what is asked of NVML
states          how one GPU is, as it follows from that (pure)
xids            what Xids mean
runtime_config  configuration of container runtimes
log             a line for each condition that begins or ends
"""
