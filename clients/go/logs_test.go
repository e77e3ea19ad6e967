package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	sandbox "sandbox.internal/clients/go"
)

// TestLogThatIsNotKept: the connection ended with the service, and what the sandbox printed until
// its own end is more than is kept. That is a loss, whatever its last lines look like.
func TestLogThatIsNotKept(t *testing.T) {
	t.Parallel()
	const line = "tick\n"
	for _, begin := range []string{"", line, line + line + line} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("follow") != "" {
				_, _ = fmt.Fprint(w, begin)
				return
			}
			_, _ = fmt.Fprint(w, strings.Repeat(line, 1000))
		})
		box, err := scriptedIn(t, "Terminated", mux, sandbox.Options{}).Connect(t.Context(), "box")
		check(t, err)
		log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: true})
		check(t, err)
		got, err := io.ReadAll(log)
		check(t, log.Close())
		var broken *sandbox.StreamError
		if string(got) != begin || !errors.As(err, &broken) {
			t.Errorf("after %q: %q, %v", begin, got, err)
		}
	}
}

// TestLogThatIsCut: what had arrived is compared with what comes again, so that a log whose
// beginning the engine has forgotten is an error and not a gap.
func TestLogThatIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("one line of many\n", 20_000) // more than is compared
	for name, test := range map[string]struct {
		follow      bool
		connections []string // all but the last are cut
		want        string
		lost        bool
	}{
		"followed":           {true, []string{"one\ntwo\n", "two\nthree\nfour\n"}, "one\ntwo\n", true},
		"resumed":            {false, []string{"one\n", "one\ntwo\n", "one\ntwo\nend\n"}, "one\ntwo\nend\n", false},
		"forgotten":          {false, []string{"one\ntwo\n", "two\nthree\nfour\n"}, "one\ntwo\n", true},
		"long":               {false, []string{long, long + "end\n"}, long + "end\n", false},
		"long and forgotten": {false, []string{long + "a\n", long + "b\nc\nend\n"}, long + "a\n", true},
		"shorter":            {false, []string{"one\ntwo\n", "two\n"}, "one\ntwo\n", true},
		"nothing is left":    {false, []string{"one\ntwo\n", ""}, "one\ntwo\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, _ *http.Request) {
				at := int(requests.Add(1))
				if at > len(test.connections) {
					t.Error("the log was asked for once more")
					w.WriteHeader(http.StatusBadRequest)
					return
				}
				_, _ = fmt.Fprint(w, test.connections[at-1])
				_ = http.NewResponseController(w).Flush() // fails when the client has seen another log and gone
				if at < len(test.connections) {
					cut(w)
				}
			})
			box, err := scripted(t, mux).Connect(t.Context(), "box")
			check(t, err)
			log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: test.follow})
			check(t, err)
			defer func() { check(t, log.Close()) }()
			got, err := io.ReadAll(log)
			if string(got) != test.want {
				t.Errorf("%d bytes which end with %q, want %d", len(got), end(got), len(test.want))
			}
			var broken *sandbox.StreamError
			if test.lost != errors.As(err, &broken) || !test.lost && err != nil {
				t.Errorf("%v; lost: %v", err, test.lost)
			}
			if n, again := log.Read(make([]byte, 10)); n != 0 || test.lost && !errors.Is(again, err) {
				t.Errorf("after the end: %d bytes, %v", n, again)
			}
		})
	}
}

// TestEndOfALongLog: a cluster keeps the whole log of an ended sandbox, however long it is.
func TestEndOfALongLog(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/sandboxes/box/logs", func(w http.ResponseWriter, r *http.Request) {
		lines := strings.SplitAfter(all.String(), "\n")
		if tail, err := strconv.Atoi(r.URL.Query().Get("tail")); err == nil {
			lines = lines[len(lines)-1-tail:]
		}
		_, _ = fmt.Fprint(w, strings.Join(lines, ""))
	})
	box, err := scriptedIn(t, "Terminated", mux, sandbox.Options{}).Connect(t.Context(), "box")
	check(t, err)
	log, err := box.OpenLogs(t.Context(), &sandbox.LogOptions{Follow: true})
	check(t, err)
	got, err := io.ReadAll(log)
	check(t, log.Close())
	if err != nil || string(got) != all.String() {
		t.Errorf("%d bytes of %d, %v", len(got), all.Len(), err)
	}
}

// TestLogsSayWhatIsMissing: output beyond the limit is not in a log, which says so.
func TestLogsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	dropped := ""
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+commands+"/status/c", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"id":"c","running":false}`)
	})
	mux.HandleFunc("GET "+commands+"/c/logs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", "1")
		if dropped != "" {
			w.Header().Set("EXECD-COMMANDS-DROPPED-BYTES", dropped)
		}
		_, _ = fmt.Fprint(w, "one\ntwo\n")
	})
	box, err := scripted(t, mux).Connect(t.Context(), "box")
	check(t, err)
	command, err := box.Commands.Connect(t.Context(), "c")
	check(t, err)
	for header, want := range map[string]int64{"": 0, "4096": 4096} {
		dropped = header
		text, end, err := command.Logs(t.Context(), -1)
		if err != nil || text != "one\ntwo\n" || end != (sandbox.LogEnd{Cursor: 1, Dropped: want}) {
			t.Errorf("%q: %q, %+v, %v", header, text, end, err)
		}
	}
	dropped = "many"
	if text, _, err := command.Logs(t.Context(), -1); err == nil || text != "" {
		t.Errorf("without a number: %q, %v", text, err)
	}
}
