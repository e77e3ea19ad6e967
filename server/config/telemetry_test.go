package config_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

func TestTelemetry(t *testing.T) {
	c := load(t, minimal+`[telemetry]
endpoint = "https://collector.example:4318/otlp"
traces = false
sample_percent = 0
interval = 5
`, home)
	want := config.Telemetry{Endpoint: "https://collector.example:4318/otlp", Metrics: true, Interval: 5}
	if c.Telemetry != want {
		t.Errorf("got %+v, want %+v", c.Telemetry, want)
	}
	for line, want := range map[string]string{
		`endpoint = "127.0.0.1:4318"`:             "telemetry.endpoint: must be the http or https URL of a collector",
		`endpoint = "grpc://127.0.0.1:4317"`:      "telemetry.endpoint: must be the http or https URL of a collector",
		`endpoint = "http://u:hunter2@h.example"`: "telemetry.endpoint: must have no user",
		`endpoint = "http://h.example?k=hunter2"`: "telemetry.endpoint: must have no user, query",
		`endpoint = "http://h.example/"`:          "telemetry.endpoint: must have no user, query, fragment or slash at its end",
		`sample_percent = 101`:                    "telemetry.sample_percent: must be between 0 and 100 (got 101)",
		`sample_percent = -1`:                     "telemetry.sample_percent: must be between 0 and 100 (got -1)",
		`interval = 0`:                            "telemetry.interval: must be between 1 and 3600 seconds (got 0)",
		`interval = 3601`:                         "telemetry.interval: must be between 1 and 3600 seconds (got 3601)",
	} {
		_, err := config.Load(write(t, minimal+"[telemetry]\n"+line+"\n"), home)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error is %v, want %q", line, err, want)
		}
	}
}
