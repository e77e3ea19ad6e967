package api_test

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/metrics"
	"sandbox.internal/execd/internal/ports"
	"sandbox.internal/openapi/conform"
)

// TestRoutesAreTheContract finds routes that the contract does not have. What is outside of it is
// written down here.
func TestRoutesAreTheContract(t *testing.T) {
	t.Parallel()
	doc, err := contract()
	must(t, err)
	server, err := api.New(api.Options{
		Commands: command.New(command.Options{Clock: time.Now}),
		Files:    files.New(files.Options{}),
		Metrics:  metrics.New(metrics.Options{}),
		Ports:    ports.New(ports.Options{}),
		Port:     44772,
		Logger:   zerolog.Nop(),
	})
	must(t, err)
	var registered []string
	for _, route := range server.Echo().Routes() {
		registered = append(registered, route.Method+" "+route.Path)
	}
	outside := []string{"/proxy/{port}", "/proxy/{port}/", "/proxy/44772", "/proxy/44772/", "/tunnel/{port}"}
	missing, extra := conform.Routes(doc, registered, outside...)
	if len(missing) > 0 || len(extra) > 0 {
		t.Errorf("in the contract alone: %q; in the service alone: %q", missing, extra)
	}
}
