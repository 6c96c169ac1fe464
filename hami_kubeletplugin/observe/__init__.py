"""What the programs tell: structured logs, each thing once while it goes on, and the node daemon's metrics."""
