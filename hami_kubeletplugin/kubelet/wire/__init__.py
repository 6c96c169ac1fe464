"""The messages of the kubelet's gRPC APIs, generated from `proto/` by `hack/wire`. Don't edit; `make check` would notice."""
