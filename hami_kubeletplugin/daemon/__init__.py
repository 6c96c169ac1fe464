"""The node daemon.

hardware ──inventory──> beside ──what nobody else gives out──> publisher ──slices──> API server
    └──────────────────> claims <──prepare── kubelet server <── kubelet
                           └──> records, caches, CDI specs <── recovery
driver ──events, polls──> health ──conditions──> board
records ──what is in use──> publisher, with --gpu-order=spread
what prepares need ──> readiness ──> conditions of GPUs, probes
processes of containers ──> in force ──events──> API server

service     runs it: signals, the lock, one task group
endpoint    metrics and answers for probes
door        who gets to see metrics
parts       its parts, wired
standby     what it does while its predecessor serves
node        those that are about this node: GPUs, files, HAMi-core
seen        what is in use, given out and there, when metrics are asked for
"""
