package api_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// TestRunawayOutput: a hundred MiB that no client reads are kept, or cut and counted, and cost no
// memory either way.
func TestRunawayOutput(t *testing.T) {
	t.Parallel()
	const written = 100 << 20
	for name, limit := range map[string]int64{"kept": 1 << 30, "cut": 8 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			execd := &child{Args: []string{fmt.Sprint("--command-log-limit=", limit)}}
			d := execd.start(t, newTransport(t))
			before := execd.atRest(t, d)
			id := d.background(t, fmt.Sprintf(`yes %s | head -c %d; echo done >&2`, strings.Repeat("x", 999), written))
			d.ended(t, id)
			if status := d.status(t, id); status.ExitCode == nil || *status.ExitCode != 0 {
				t.Errorf("the command ended with %+v", status)
			}
			response, err := d.client.GetCommandLogs(t.Context(), id, &gen.GetCommandLogsParams{})
			must(t, err)
			kept, err := io.Copy(io.Discard, response.Body)
			response.Body.Close()
			must(t, err)
			all := int64(written + len("done\n"))
			switch {
			case limit > all && kept != all:
				t.Errorf("%d bytes are kept of %d", kept, all)
			case limit < all && (kept > limit || kept < limit-(64<<10)):
				t.Errorf("%d bytes are kept, the limit is %d", kept, limit)
			}
			d.saysWhatIsMissing(t, id, limit, kept, all)
			if after := execd.holds(t); after.Heap > before.Heap+written/3 {
				t.Errorf("the heap has grown from %d to %d bytes", before.Heap, after.Heap)
			}
		})
	}
}

// saysWhatIsMissing reads a whole stream and compares its status events with what is missing.
func (d *daemon) saysWhatIsMissing(t *testing.T, id string, limit, kept, written int64) {
	t.Helper()
	s := d.resume(t.Context(), t, id, 0)
	s.sparse = true
	var statuses []string
	var streamed int64
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			t.Fatal("the stream ends without a terminal event")
		}
		must(t, err)
		switch {
		case e.output():
			streamed += int64(len(e.bytes()))
		case e.Type == "status":
			statuses = append(statuses, e.Text)
			if streamed != kept && len(statuses) == 1 {
				t.Errorf("the output is said to be cut after %d bytes, %d are kept", streamed, kept)
			}
		}
		if e.terminal() {
			if e.Type != "execution_complete" {
				t.Errorf("the last event is %s", e.data)
			}
			break
		}
	}
	if streamed != kept {
		t.Errorf("%d bytes are streamed, the logs have %d", streamed, kept)
	}
	if kept == written {
		if len(statuses) > 0 {
			t.Errorf("nothing is missing, and the stream says %q", statuses)
		}
		return
	}
	if len(statuses) != 2 || !strings.Contains(statuses[0], fmt.Sprint(kept)) || !strings.Contains(statuses[0], fmt.Sprint(limit)) ||
		!strings.Contains(statuses[1], fmt.Sprint(written-kept)) {
		t.Errorf("%d bytes are missing, and the stream says %q", written-kept, statuses)
	}
}
