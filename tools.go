// Package sandbox is the root of the module and holds no code of its own. It is the
// one place from which everything generated is generated:
//
//	go generate .
//
// The contracts in openapi/ are written by hand. From each of them oapi-codegen makes the models,
// an Echo server with strict handlers, below gen/, and the models and a client, below clients/go/.
// Generated files are committed and never edited; a test in gen/ regenerates them and fails on any
// difference. The generators' versions are tool lines of go.mod. Services check requests by a slim
// form of their contract, which openapi/slim makes. The types and calls of the Python client are
// made by openapi/python, and its synchronous face from the asynchronous one; the types of the
// TypeScript client by a generator from npm. From the types of the cluster's resources,
// controller-gen makes their deep copies and their definitions for the API server. The numbers of
// system calls, for the compiler of seccomp profiles, are those of golang.org/x/sys.
package sandbox

//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package lifecycle -o gen/lifecycle/models.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package lifecycle -o gen/lifecycle/server.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package lifecycle -o clients/go/lifecycle/models.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package lifecycle -o clients/go/lifecycle/client.gen.go openapi/lifecycle.yaml
//go:generate go run ./openapi/slim -o openapi/rules/lifecycle.gen.go openapi/lifecycle.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package execd -o gen/execd/models.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package execd -o gen/execd/server.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package execd -o clients/go/execd/models.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package execd -o clients/go/execd/client.gen.go openapi/execd.yaml
//go:generate go run ./openapi/slim -o openapi/rules/execd.gen.go openapi/execd.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/models.yaml -package egress -o gen/egress/models.gen.go openapi/egress.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/server.yaml -package egress -o gen/egress/server.gen.go openapi/egress.yaml
//go:generate go tool oapi-codegen -config openapi/codegen/client.yaml -package egress -o gen/egress/client.gen.go openapi/egress.yaml
//go:generate go run ./openapi/slim -o openapi/rules/egress.gen.go openapi/egress.yaml
//go:generate go run ./openapi/python -o clients/python/src/sandboxes/_gen/lifecycle.py openapi/lifecycle.yaml
//go:generate go run ./openapi/python -o clients/python/src/sandboxes/_gen/execd.py openapi/execd.yaml
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/client.py clients/python/src/sandboxes/_async/client.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/code.py clients/python/src/sandboxes/_async/code.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/commands.py clients/python/src/sandboxes/_async/commands.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/daemon.py clients/python/src/sandboxes/_async/daemon.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/files.py clients/python/src/sandboxes/_async/files.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/http.py clients/python/src/sandboxes/_async/http.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/keys.py clients/python/src/sandboxes/_async/keys.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/network.py clients/python/src/sandboxes/_async/network.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/sandbox.py clients/python/src/sandboxes/_async/sandbox.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/snapshots.py clients/python/src/sandboxes/_async/snapshots.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/stdin.py clients/python/src/sandboxes/_async/stdin.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/streams.py clients/python/src/sandboxes/_async/streams.py
//go:generate go run ./clients/python/synchronous -o clients/python/src/sandboxes/_sync/terminals.py clients/python/src/sandboxes/_async/terminals.py
//go:generate go run ./clients/python/synchronous -o clients/python/tests/test_sync_life.py clients/python/tests/test_async_life.py
//go:generate go run ./clients/python/synchronous -o clients/python/tests/test_sync_inside.py clients/python/tests/test_async_inside.py
//go:generate go run ./clients/python/synchronous -o clients/python/tests/test_sync_cuts.py clients/python/tests/test_async_cuts.py
//go:generate go run ./clients/python/synchronous -o clients/python/tests/test_sync_proxy.py clients/python/tests/test_async_proxy.py
//go:generate go tool controller-gen object paths=./runtime/kube/v1alpha1
//go:generate go tool controller-gen crd:maxDescLen=300 paths=./runtime/kube/v1alpha1 output:crd:dir=runtime/kube/config/crd
//go:generate go run ./runtime/oci/seccomp/table -o runtime/oci/seccomp/syscalls.txt go.mod
//go:generate scripts/typescript.sh
//go:generate scripts/console.sh
