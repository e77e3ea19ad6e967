package api_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/execd/config"
)

// The tests of this and the other rows_*_test.go files follow the document's tables row by row;
// test/e2e/coverage holds their names against the document. Each shows what its row promises; what
// can go wrong is tested elsewhere.

// object is a JSON object whose fields a test looks at one by one.
type object map[string]any

// ask makes a request and returns what came.
func (d *daemon) ask(t *testing.T, method, target, content string) (*http.Response, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, d.url+target, strings.NewReader(content))
	must(t, err)
	if content != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := d.http.Do(request)
	must(t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(t, err)
	return response, data
}

// object makes a request that succeeds with a JSON object.
func (d *daemon) object(t *testing.T, method, target, content string) object {
	t.Helper()
	response, data := d.ask(t, method, target, content)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, target, response.StatusCode, data)
	}
	var got object
	must(t, json.Unmarshal(data, &got))
	return got
}

// empty makes a request that succeeds with the empty object.
func (d *daemon) empty(t *testing.T, method, target, content string) {
	t.Helper()
	if got := d.object(t, method, target, content); len(got) != 0 {
		t.Errorf("%s %s answers %v, want an empty object", method, target, got)
	}
}

func (o object) wantString(t *testing.T, field, want string) {
	t.Helper()
	if got, isString := o[field].(string); !isString || got != want {
		t.Errorf("%s is %v, want %q", field, o[field], want)
	}
}

// wantTime expects RFC 3339, near now.
func (o object) wantTime(t *testing.T, field string) {
	t.Helper()
	text, _ := o[field].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || time.Since(at).Abs() > time.Hour {
		t.Errorf("%s is %v, want the time of now in RFC 3339", field, o[field])
	}
}

// wantNumber expects a number from low to high.
func (o object) wantNumber(t *testing.T, field string, low, high float64) {
	t.Helper()
	if got, isNumber := o[field].(float64); !isNumber || got < low || got > high {
		t.Errorf("%s is %v, want %v to %v", field, o[field], low, high)
	}
}

func TestRowsOfAuthentication(t *testing.T) {
	t.Parallel()
	closed := startWith(t, config.Settings{AccessToken: "open-sesame"})
	status := func(t *testing.T, d *daemon, target, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+target, nil)
		must(t, err)
		if token != "" {
			request.Header.Set("X-EXECD-ACCESS-TOKEN", token)
		}
		response, err := d.http.Do(request)
		must(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	t.Run("row execd/authentication/rule 1", func(t *testing.T) {
		if got := status(t, closed, "/metrics", "open-sesame"); got != http.StatusOK {
			t.Errorf("with the token: %d", got)
		}
	})
	t.Run("row execd/authentication/rule 2", func(t *testing.T) {
		document, err := contract()
		must(t, err)
		for path, item := range document.Paths.Map() {
			if path == "/ping" || item.Get == nil {
				continue // every method of every path: TestEveryOperationButPingNeedsTheToken
			}
			target := strings.NewReplacer("{", "", "}", "").Replace(path)
			for _, token := range []string{"", "open-sesame-or-not"} {
				if got := status(t, closed, target, token); got != http.StatusUnauthorized {
					t.Errorf("GET %s with the token %q: %d", path, token, got)
				}
			}
		}
	})
	t.Run("row execd/authentication/rule 3", func(t *testing.T) {
		if got := status(t, start(t), "/metrics", ""); got != http.StatusOK {
			t.Errorf("without a token configured: %d", got)
		}
	})
	t.Run("row execd/authentication/rule 4", func(t *testing.T) {
		if got := status(t, closed, "/ping", ""); got != http.StatusOK {
			t.Errorf("/ping without the token: %d", got)
		}
	})
}

func TestRowsOfMetrics(t *testing.T) {
	t.Parallel()
	d := start(t)
	got := d.object(t, "GET", "/metrics", "")
	t.Run("row execd/metrics/cpu_count", func(t *testing.T) { got.wantNumber(t, "cpu_count", 0.001, 4096) })
	t.Run("row execd/metrics/cpu_used_pct", func(t *testing.T) { got.wantNumber(t, "cpu_used_pct", 0, 100) })
	t.Run("row execd/metrics/mem_total_mib", func(t *testing.T) { got.wantNumber(t, "mem_total_mib", 1, 1<<30) })
	t.Run("row execd/metrics/mem_used_mib", func(t *testing.T) {
		got.wantNumber(t, "mem_used_mib", 0.001, got["mem_total_mib"].(float64))
	})
	t.Run("row execd/metrics/timestamp", func(t *testing.T) {
		now := float64(time.Now().UnixMilli())
		got.wantNumber(t, "timestamp", now-3600_000, now+3600_000)
	})
	t.Run("row execd/operations/GET /ping", func(t *testing.T) {
		if response, data := d.ask(t, "GET", "/ping", ""); response.StatusCode != http.StatusOK {
			t.Errorf("%d %s", response.StatusCode, data)
		}
	})
	t.Run("row execd/operations/GET /metrics", func(t *testing.T) {
		fields := []string{"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp", "mem_cache_mib", "disk_total_mib", "disk_used_mib"}
		slices.Sort(fields)
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, fields) {
			t.Errorf("the snapshot is %v, want the five fields of the document and the three of the extension", got)
		}
		got.wantNumber(t, "disk_used_mib", 0.001, got["disk_total_mib"].(float64))
	})
	t.Run("row execd/operations/GET /metrics/watch", func(t *testing.T) {
		response, err := d.client.WatchMetrics(t.Context())
		must(t, err)
		defer response.Body.Close()
		var times []int64
		for range 3 {
			data := make([]byte, 0, 512)
			for one := make([]byte, 1); !strings.HasSuffix(string(data), "\n\n"); data = append(data, one...) {
				_, err := io.ReadFull(response.Body, one)
				must(t, err)
			}
			payload, isData := strings.CutPrefix(strings.TrimSpace(string(data)), "data: ")
			if !isData {
				t.Fatalf("the event is %q", data)
			}
			times = append(times, checkMetrics(t, []byte(payload)).Timestamp)
		}
		// One that is late on a busy machine comes closer to the next.
		if took := times[2] - times[0]; took < 1000 {
			t.Errorf("%d ms from the first snapshot to the third, want about 2000", took)
		}
	})
}

func TestRowsOfErrors(t *testing.T) {
	t.Parallel()
	d := start(t)
	file := write(t, t.TempDir()+"/file", "0123456789")
	refused := func(t *testing.T, method, target, body string, status int, code string) {
		t.Helper()
		answer{on: d, target: method + " " + target, body: body, status: status, code: code}.check(t)
	}
	t.Run("row execd/errors/400 INVALID_REQUEST_BODY", func(t *testing.T) {
		refused(t, "POST", "/command", `{}`, 400, "INVALID_REQUEST_BODY")
		refused(t, "POST", "/command", `{`, 400, "INVALID_REQUEST_BODY")
	})
	t.Run("row execd/errors/404 FILE_NOT_FOUND", func(t *testing.T) {
		refused(t, "GET", "/files/info"+query(file+".missing"), "", 404, "FILE_NOT_FOUND")
	})
	t.Run("row execd/errors/416 RANGE_NOT_SATISFIABLE", func(t *testing.T) {
		answer{on: d, target: "GET /files/download" + query(file), header: map[string]string{"Range": "bytes=10-"}, status: 416, code: "RANGE_NOT_SATISFIABLE"}.check(t)
	})
	t.Run("row execd/errors/500 RUNTIME_ERROR", func(t *testing.T) {
		// A daemon that may open no more files: what failed stays in its log.
		dir := t.TempDir()
		execd := &child{}
		d := execd.start(t, newTransport(t))
		execd.takeDescriptors(t, d)
		internal(d, "listDirectory", "GET /directories/list"+query(dir), "").check(t)
	})
}
