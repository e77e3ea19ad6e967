package clients_test

import (
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestConsoleStreams runs the tests of how the console reads streams, in Node.js.
func TestConsoleStreams(t *testing.T) {
	t.Parallel()
	directory := conformance.CopyOf(t, "../../../server/console/web")
	t.Log(conformance.Tool(t, directory, nil, "node", "--test", "test/"))
}
