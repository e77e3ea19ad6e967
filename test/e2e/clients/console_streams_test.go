package clients_test

import (
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// TestConsoleStreams runs the tests of how the console reads streams, in Node.js.
func TestConsoleStreams(t *testing.T) {
	t.Parallel()
	folder := lives.CopyOf(t, "../../../server/console/web")
	t.Log(lives.Tool(t, folder, nil, "node", "--test", "test/"))
}
