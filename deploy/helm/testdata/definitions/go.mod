module definitions

go 1.26.0

// Definitions of resources that are not ours, for an API server to check what the chart renders.
require github.com/prometheus-operator/prometheus-operator v0.85.0
