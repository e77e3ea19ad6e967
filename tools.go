// Package sandbox is the root of the module and holds no code of its own. It is the
// one place from which everything generated is generated:
//
//	go generate .
//
// The contracts in openapi/ are written by hand. From each of them oapi-codegen makes
// the models, an Echo server with strict handlers, and a client, below gen/. What is
// generated is committed and never edited; a test in gen/ regenerates it and fails on
// any difference. The generators' versions are tool lines of go.mod. Services check
// requests by a slim form of their contract, which openapi/slim makes. From the types of the cluster's
// resources, controller-gen makes their deep copies and their definitions for the API server. The
// types of sdk/typescript come from the contracts too, by a generator from npm.
package sandbox

//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package lifecycle -o gen/lifecycle/models.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package lifecycle -o gen/lifecycle/server.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package lifecycle -o gen/lifecycle/client.gen.go openapi/lifecycle.yaml
//go:generate go run ./openapi/slim -o openapi/rules/lifecycle.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package execd -o gen/execd/models.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package execd -o gen/execd/server.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package execd -o gen/execd/client.gen.go openapi/execd.yaml
//go:generate go run ./openapi/slim -o openapi/rules/execd.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package egress -o gen/egress/models.gen.go openapi/egress.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package egress -o gen/egress/server.gen.go openapi/egress.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package egress -o gen/egress/client.gen.go openapi/egress.yaml
//go:generate go run ./openapi/slim -o openapi/rules/egress.gen.go openapi/egress.yaml
//go:generate go tool controller-gen object paths=./runtime/kube/v1alpha1
//go:generate go tool controller-gen crd:maxDescLen=300 paths=./runtime/kube/v1alpha1 output:crd:dir=runtime/kube/config/crd
//go:generate scripts/typescript.sh
