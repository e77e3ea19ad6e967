package api_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/test/wait"
)

func checkMetrics(t *testing.T, data []byte) gen.Metrics {
	t.Helper()
	var m gen.Metrics
	must(t, json.Unmarshal(data, &m))
	age := time.Since(time.UnixMilli(m.Timestamp))
	if m.CPUCount <= 0 || m.MemTotalMib <= 0 || m.MemUsedMib <= 0 || m.MemUsedMib > m.MemTotalMib || age < -time.Second || age > time.Minute {
		t.Errorf("the metrics are %s", data)
	}
	return m
}

func TestMetricsFormats(t *testing.T) {
	t.Parallel()
	d := start(t)
	prometheus := gen.MetricsFormatPrometheus
	asJSON := gen.MetricsFormatJSON
	tests := []struct {
		name   string
		accept string
		format *gen.MetricsFormat
		text   bool
	}{
		{"default", "", nil, false},
		{"anything", "*/*", nil, false},
		{"parameter", "", &prometheus, true},
		{"header", "text/plain", nil, true},
		{"header of Prometheus", "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", nil, true},
		{"JSON first", "application/json, text/plain", nil, false},
		{"the parameter wins", "text/plain", &asJSON, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var editors []gen.RequestEditorFn
			if test.accept != "" {
				editors = append(editors, header("Accept", test.accept))
			}
			response, err := d.client.GetMetrics(t.Context(), &gen.GetMetricsParams{Format: test.format}, editors...)
			data := body(t, response, err)
			if !test.text {
				checkMetrics(t, data)
				return
			}
			if !strings.Contains(string(data), "\nexecd_cpu_count ") || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
				t.Errorf("%s: %s", response.Header.Get("Content-Type"), data)
			}
		})
	}
}

// TestMetricsAreThoseOfTheContract: its example has the names and explanations of the daemon's
// answer.
func TestMetricsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	doc, err := contract()
	must(t, err)
	answer := doc.Paths.Value("/metrics").Get.Responses.Status(http.StatusOK).Value
	example, ok := answer.Content["text/plain; version=0.0.4"].Example.(string)
	if !ok {
		t.Fatal("the contract has no example")
	}
	named := func(text string) (names []string) {
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				line, _, _ = strings.Cut(line, " ") // the value is the machine's
			}
			names = append(names, strings.TrimSpace(line))
		}
		return names
	}
	response, err := start(t).client.GetMetrics(t.Context(), &gen.GetMetricsParams{Format: new(gen.MetricsFormatPrometheus)})
	if got, want := named(string(body(t, response, err))), named(example); !slices.Equal(got, want) {
		t.Errorf("the daemon answers %q, the contract's example is %q", got, want)
	}
}

func TestWatchedMetricsComeEverySecond(t *testing.T) {
	t.Parallel()
	d := start(t)
	response, err := d.client.WatchMetrics(t.Context())
	s := d.stream(t, response, err)
	var times []int64
	for range 3 {
		line, err := s.reader.ReadBytes('\n')
		must(t, err)
		data, ok := strings.CutPrefix(string(line), "data: ")
		blank, err := s.reader.ReadBytes('\n')
		if must(t, err); !ok || string(blank) != "\n" {
			t.Fatalf("the stream says %q, %q", line, blank)
		}
		if err := d.contract.CheckEvent("Metrics", []byte(data)); err != nil {
			t.Error(err)
		}
		times = append(times, checkMetrics(t, []byte(data)).Timestamp)
	}
	// One that is late on a busy machine comes closer to the next, or is left out.
	if took := times[2] - times[0]; took < 1000 || took > 30_000 {
		t.Errorf("%d ms from the first event to the third, want about 2000", took)
	}
}

func TestHeadIsAnsweredLikeGet(t *testing.T) {
	t.Parallel()
	d := start(t)
	// The contract does not list HEAD, which HTTP has for every GET.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Patience()}
	response, err := client.Head(d.url + "/metrics")
	must(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("status %d", response.StatusCode)
	}
}
