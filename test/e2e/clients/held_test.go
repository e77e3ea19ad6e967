package clients_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// heldRefused are the behaviours of the program held.mjs that the service refuses, as docs/e2b.md
// says.
var heldRefused = []string{"createSnapshot", "fork", "network: rules"}

// heldCount is how many behaviours the program has.
const heldCount = 129

// TestE2BHeldOut holds the service to behaviours of E2B's clients that were written from their
// packages alone.
func TestE2BHeldOut(t *testing.T) {
	t.Parallel()
	_, byURL, byHosts := e2bService(t)
	environment := byURL
	for _, variable := range byHosts {
		if strings.HasPrefix(variable, "NODE_EXTRA_CA_CERTS=") { // for the hosts of ports
			environment = append(environment, variable)
		}
	}
	var seen int
	var refused []string
	for line := range strings.Lines(conformance.Tool(t, e2bDirectory(t), environment, "node", "held.mjs")) {
		var one struct{ Name, Result, Detail string }
		if json.Unmarshal([]byte(line), &one) != nil {
			t.Errorf("the program printed %q", line)
			continue
		}
		seen++
		say := t.Logf
		switch one.Result {
		case "passes":
		case "refused":
			refused = append(refused, one.Name)
		default:
			say = t.Errorf
		}
		say("%s: %s: %s", one.Name, one.Result, one.Detail)
	}
	if seen != heldCount {
		t.Errorf("%d behaviours, want %d", seen, heldCount)
	}
	if !slices.Equal(refused, heldRefused) {
		t.Errorf("the service refuses %q, want %q", refused, heldRefused)
	}
}
