package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/cli"
)

// slowly is a writer that takes a while for its second write.
type slowly struct {
	strings.Builder
	writes int
	pause  time.Duration
}

func (s *slowly) Write(p []byte) (int, error) {
	if s.writes++; s.writes == 2 {
		time.Sleep(s.pause) // the output is that slow
	}
	return s.Builder.Write(p)
}

// TestEventsAreAllPrinted: however slowly they are written and come, all that had happened are
// printed, and nothing is waited for after them.
func TestEventsAreAllPrinted(t *testing.T) {
	t.Parallel()
	const pages, page = 3, 20
	for name, test := range map[string]struct{ output, service time.Duration }{
		"a slow output":  {600 * time.Millisecond, 0},
		"a slow service": {0, 600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				event := func(id int, kind, message string) {
					_, _ = fmt.Fprintf(w, "id: %d\ndata: {\"type\":%q,\"message\":%q,"+
						"\"timestamp\":\"2026-01-02T15:04:05Z\"}\n\n", id, kind, message)
				}
				if r.URL.Query().Get("after") == "" { // what happens next
					event(pages*page, "ping", "")
				} else {
					for i := range pages * page {
						if i > 0 && i%page == 0 {
							time.Sleep(test.service) // the service is that slow
						}
						event(i+1, "progress", strings.Repeat("x", 8<<10)) // more than buffers hold
						if i+1 == page {
							event(page, "ping", "") // which says nothing about later pages
						}
						_ = http.NewResponseController(w).Flush()
					}
				}
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			out := slowly{pause: test.output}
			var stderr strings.Builder
			program := cli.Program{Env: func(string) string { return "" }, Stdin: strings.NewReader(""),
				Stdout: io.Writer(&out), Stderr: &stderr}
			code := program.Run(t.Context(), []string{"--url", server.URL, "events", "-o", "json"})
			if rows := strings.Count(out.String(), "\n"); code != cli.ExitOK || rows != pages*page {
				t.Errorf("code %d, %d rows of %d, stderr %q", code, rows, pages*page, stderr.String())
			}
		})
	}
}
