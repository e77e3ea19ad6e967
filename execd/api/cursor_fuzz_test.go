package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/command"
	"sandbox.internal/execd/files"
	"sandbox.internal/execd/internal/metrics"
)

// FuzzCursor asks for the rest of a log and of a stream. Whatever is not a place in them is
// refused; what is one gives exactly what follows it.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"", "-1", "0", "1", "2", "3", "4", "1000", "-2", "+1", "-0", "007", " 1", "1 ", "1.0", "1e0", "0x1", "first",
		fmt.Sprint(math.MaxInt64), "9223372036854775808", "-9223372036854775808", "%31", "1,2", "1&cursor=2", "\x00", "\xff", "١"} {
		f.Add(seed)
	}
	commands := command.New(command.Options{Dir: f.TempDir(), LogLimit: 1 << 20, Clock: time.Now})
	handler, err := api.New(api.Options{Commands: commands, Files: files.New(files.Options{}), Metrics: metrics.New(metrics.Options{}), Logger: zerolog.Nop()})
	must(f, err)
	f.Cleanup(func() {
		commands.Stop(context.Background())
		commands.Close()
	})
	c, err := commands.Start(command.Spec{Command: "echo a; echo b; echo c; echo d"})
	must(f, err)
	lines := []string{"a", "b", "c", "d"}
	get := func(path, lastEvent string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/command/"+c.ID()+path, nil)
		if lastEvent != "" {
			request.Header.Set("Last-Event-ID", lastEvent)
		}
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return recorder
	}
	all := ids(f, get("/stream", "").Body.String()) // it ends when the command has
	f.Fuzz(func(t *testing.T, text string) {
		log := get("/logs?cursor="+url.QueryEscape(text), "")
		after, err := strconv.ParseInt(text, 10, 64)
		place := err == nil && after >= -1
		switch {
		case log.Code == http.StatusOK && !place, log.Code != http.StatusOK && log.Code != http.StatusBadRequest:
			t.Errorf("cursor %q: status %d: %s", text, log.Code, log.Body)
		case log.Code == http.StatusBadRequest && place && strconv.FormatInt(after, 10) == text:
			t.Errorf("cursor %q is refused: %s", text, log.Body)
		case log.Code == http.StatusOK:
			want := ""
			if after < int64(len(lines)-1) {
				want = strings.Join(lines[after+1:], "\n") + "\n"
			}
			if got := log.Body.String(); got != want || log.Header().Get("EXECD-COMMANDS-TAIL-CURSOR") != "3" {
				t.Errorf("cursor %q: %q and %q, want %q", text, got, log.Header().Get("EXECD-COMMANDS-TAIL-CURSOR"), want)
			}
		}
		if text == "" { // no header
			return
		}
		stream := get("/stream", text)
		seen, err := strconv.Atoi(text)
		switch {
		case stream.Code == http.StatusBadRequest:
			if err == nil && seen >= 0 && seen <= len(all) && strconv.Itoa(seen) == text {
				t.Errorf("Last-Event-ID %q is refused: %s", text, stream.Body)
			}
		case stream.Code != http.StatusOK || err != nil || seen < 0 || seen > len(all):
			t.Errorf("Last-Event-ID %q: status %d: %s", text, stream.Code, stream.Body)
		case fmt.Sprint(ids(t, stream.Body.String())) != fmt.Sprint(all[seen:]):
			t.Errorf("Last-Event-ID %q: got %s", text, stream.Body)
		}
	})
}

// ids are the ids of a stream's events.
func ids(t testing.TB, stream string) (ids []int) {
	t.Helper()
	for line := range strings.Lines(stream) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(id))
			must(t, err)
			ids = append(ids, n)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && !json.Valid([]byte(data)) {
			t.Errorf("%q is no JSON", data)
		}
	}
	return ids
}
