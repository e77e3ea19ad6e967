package e2e_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

// scraped are the samples of one scrape, by name and labels as the text has them.
type scraped map[string]float64

func (s *service) scrape(t *testing.T) scraped {
	t.Helper()
	got := conformance.Fetch(t, s.URL+"/metrics", conformance.KeyHeader, conformance.AdminKey)
	if got.Status != http.StatusOK ||
		!strings.HasPrefix(got.Header.Get("Content-Type"), "text/plain") {
		t.Fatalf("GET /metrics: %d %s", got.Status, got.Header)
	}
	problems, err := promlint.New(strings.NewReader(got.Body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	samples := scraped{}
	for line := range strings.Lines(got.Body) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		number, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		samples[line[:at]] = number
	}
	return samples
}

// TestMetricsOfALife scrapes the service after sandboxes have lived and failed.
func TestMetricsOfALife(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Keys: []config.Key{{Name: "scraper",
		SHA256: conformance.Digest("the-key-of-the-scraper"), Role: config.RoleViewer}}})
	before := s.scrape(t) // the service proves at its start what the engine can do
	images := startRegistry(t, "a-password", nil)
	missing := s.Create(t,
		conformance.Request(images.push(t, "private/scratch",
			conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever")), "/forever"))
	s.Await(t, missing, "Failed")
	id := s.Running(t, idle())
	s.Endpoint(t, id, 80)
	s.Pause(t, id)
	s.Resume(t, id)
	s.Act(t, http.MethodPost, id+"/resume", http.StatusConflict)
	during := s.scrape(t)
	s.Delete(t, id)
	s.Await(t, id, "Terminated")
	after := s.scrape(t)

	since := scraped{}
	for name, number := range after {
		since[name] = number - before[name]
	}

	for _, sample := range []struct {
		of   scraped
		name string
		want float64
	}{
		{during, `sandbox_sandboxes{state="Running"}`, 1},
		{during, `sandbox_sandboxes{state="Failed"}`, 1},
		{after, `sandbox_sandboxes{state="Running"}`, 0},
		{after, `sandbox_sandboxes{state="Terminated"}`, 1},
		{after, `sandbox_state_changes_total{reason="PROVISIONING",state="Pending"}`, 2},
		{after, `sandbox_state_changes_total{reason="IMAGE_PULL_ERROR",state="Failed"}`, 1},
		{after, `sandbox_state_changes_total{reason="USER_PAUSE",state="Paused"}`, 1},
		{after, `sandbox_state_changes_total{reason="USER_DELETE",state="Terminated"}`, 1},
		{after, `sandbox_http_requests_total{operation="createSandbox",status="202"}`, 2},
		{after, `sandbox_http_requests_total{operation="pauseSandbox",status="202"}`, 1},
		{after, `sandbox_http_requests_total{operation="resumeSandbox",status="202"}`, 1},
		{after, `sandbox_http_requests_total{operation="resumeSandbox",status="409"}`, 1},
		{after, `sandbox_http_requests_total{operation="getEndpoint",status="200"}`, 1},
		{after, `sandbox_http_requests_total{operation="deleteSandbox",status="204"}`, 1},
		{after, `sandbox_http_request_duration_seconds_count{operation="deleteSandbox"}`, 1},
		{after, `sandbox_http_requests_in_flight`, 1}, // the scrape itself
		{after, `sandbox_http_streams_open`, 0},
		{after, `sandbox_provision_stage_duration_seconds_count{stage="accepted"}`, 2},
		{after, `sandbox_provision_stage_duration_seconds_count{stage="pulled"}`, 1},
		{after, `sandbox_provision_stage_duration_seconds_count{stage="created"}`, 1},
		{after, `sandbox_provision_stage_duration_seconds_count{stage="started"}`, 1},
		{after, `sandbox_provision_stage_duration_seconds_count{stage="ready"}`, 1},
		{after, `sandbox_provision_duration_seconds_count`, 1},
		{after, `sandbox_image_pulls_total{result="failure"}`, 1},
		{after, `sandbox_image_pulls_total{result="success"}`, 0},
		{after, `sandbox_image_pulls_in_flight`, 0},
		{since, `sandbox_engine_call_duration_seconds_count{call="create"}`, 1},
		{since, `sandbox_engine_call_duration_seconds_count{call="start"}`, 1},
		{since, `sandbox_engine_call_duration_seconds_count{call="freeze"}`, 1},
		{since, `sandbox_engine_call_duration_seconds_count{call="thaw"}`, 1},
		{after, `sandbox_engine_call_errors_total{call="ensure_image",kind="image"}`, 1},
		{after, `sandbox_store_write_duration_seconds_count{write="insert"}`, 2},
		{after, `sandbox_store_write_errors_total{write="save"}`, 0},
		{after, `sandbox_expiry_lateness_seconds_count`, 0},
		{after, `sandbox_build_info{commit="none",go_version="` + goVersion() + `",version="e2e"}`,
			1},
	} {
		if got, ok := sample.of[sample.name]; !ok || got != sample.want {
			t.Errorf("%s is %v (%t), want %v", sample.name, got, ok, sample.want)
		}
	}
	if sum := after["sandbox_provision_duration_seconds_sum"]; sum <= 0 {
		t.Errorf("provisioning took %v s", sum)
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if after[name] <= 0 {
			t.Errorf("%s is %v", name, after[name])
		}
	}
	for name := range after {
		if strings.Contains(name, id) || strings.Contains(name, missing) {
			t.Errorf("%s carries the id of a sandbox", name)
		}
	}

	// Any key will do, in either header; without one there is nothing to see.
	for _, test := range []struct {
		headers []string
		want    int
	}{
		{nil, http.StatusUnauthorized},
		{[]string{conformance.KeyHeader, "wrong"}, http.StatusUnauthorized},
		{[]string{"Authorization", "Bearer wrong"}, http.StatusUnauthorized},
		{[]string{conformance.KeyHeader, "the-key-of-the-scraper"}, http.StatusOK},
		{[]string{"Authorization", "Bearer the-key-of-the-scraper"}, http.StatusOK},
	} {
		if got := conformance.Fetch(t, s.URL+"/metrics", test.headers...); got.Status != test.want {
			t.Errorf("GET /metrics with %q: %d, want %d", test.headers, got.Status, test.want)
		}
	}
	// So do the other paths.
	if got := conformance.Fetch(t, s.URL+"/v1/sandboxes", "Authorization",
		"Bearer "+conformance.AdminKey); got.Status != http.StatusOK {
		t.Errorf("GET /v1/sandboxes with a bearer: %d", got.Status)
	}
}

// TestLogsHoldNoSecret drives whatever carries a secret, at the level that logs most, and looks for
// it in everything that operators keep: the log, the audit log and the metrics.
func TestLogsHoldNoSecret(t *testing.T) {
	t.Parallel()
	audit := t.TempDir() + "/audit.log"
	s := start(t, conformance.Plan{Server: "audit_log = \"" + audit + "\""})
	secrets := map[string]string{"the administrator's key": conformance.AdminKey}
	secret := func(what string) string {
		secrets[what] = "s3cr3t-" + strings.ReplaceAll(what, " ", "-")
		return secrets[what]
	}
	images := startRegistry(t, secret("the registry's password"), nil)
	image := images.push(t, "private/secrets",
		conformance.Build(t, "sandbox.internal/test/e2e/testdata/forever"))

	// Pulls that fail and one that works.
	r := conformance.Request(image, "/forever")
	r.Image.Auth = &lifecycle.ImageAuth{Username: registryUser,
		Password: secret("a wrong password")}
	s.Await(t, s.Create(t, r), "Failed")
	r.Image.Auth.Password = secrets["the registry's password"]
	r.Env = map[string]string{"TOKEN": secret("a variable of the environment")}
	r.Metadata = map[string]string{"note": secret("a value of the metadata")}
	id := s.Running(t, r)
	for _, value := range s.Endpoint(t, id, 80).Headers {
		secrets["the token of the sandbox"] = value
	}
	// An entrypoint that prints its environment and exits with an error: the message is the user's,
	// the log is the operator's.
	loud := conformance.Request(busyboxImage, "sh", "-c", "env; exit 3")
	loud.Env = map[string]string{"PASSWORD": secret("a variable that was printed")}
	failed := s.Create(t, loud)
	s.Await(t, failed, "Failed")
	conformance.Contains(t, s.Get(t, failed).Status.Message, secrets["a variable that was printed"])

	// Requests that are refused, and secrets where they do not belong.
	unauthorized := s.As(t, secret("a wrong key"))
	unauthorized.Act(t, http.MethodGet, id, http.StatusUnauthorized)
	unauthorized.Act(t, http.MethodDelete, id, http.StatusUnauthorized)
	conformance.Fetch(t, s.URL+"/metrics", "Authorization", "Bearer "+secret("a wrong bearer"))
	for _, path := range []string{"/health?key=", "/v1/sandboxes?page=0&api_key=",
		"/v1/sandboxes?pageSize=", "/v1/sandboxes/" + id + "?token=", "/v1/nothing/",
		"/metrics?key="} {
		conformance.Fetch(t, s.URL+path+
			secret("a secret in "+strings.NewReplacer("/", "-", "?", "-", "&", "-").Replace(path)),
			conformance.KeyHeader, conformance.AdminKey)
	}
	for _, body := range []string{
		`{"password": "` + secret("an unknown field") + `"}`,
		`{"timeout": "` + secret("a value of the wrong type") + `"}`,
		`{"image": ` + secret("no JSON"),
	} {
		if got := s.Send(t, http.MethodPost, "/v1/sandboxes",
			body); got.Status != http.StatusBadRequest {
			t.Errorf("%s: %s", body, got)
		}
	}
	s.Delete(t, id)
	s.Await(t, id, "Terminated")
	metrics := conformance.Fetch(t, s.URL+"/metrics", conformance.KeyHeader, conformance.AdminKey).Body
	s.Halt(t)

	for what, secret := range secrets {
		if secret == "" {
			t.Errorf("%s is empty: this proves nothing", what)
		}
		for where, text := range map[string]string{"log": s.Log.Tail(1 << 20),
			"audit log": content(t, audit), "metrics": metrics} {
			for line := range strings.Lines(text) {
				if strings.Contains(line, secret) {
					t.Errorf("%s is in the %s: %s", what, where, line)
				}
			}
		}
	}
	// What there must be instead.
	for _, words := range [][]string{
		{`"operation":"createSandbox"`, `"status":202`, `"sandbox_id":"` + id,
			`"key_name":"server.api_key"`, `"request_id":`, `"route":"/v1/sandboxes"`,
			`"duration_ms":`},
		{`"operation":"deleteSandbox"`, `"status":401`, `"level":"warn"`,
			`"route":"/v1/sandboxes/:sandboxId"`},
		{`"sandbox changed state"`, `"reason":"ENTRYPOINT_EXITED"`, failed,
			`"detail":"the entrypoint ended with exit code 3"`},
	} {
		if len(s.Log.With(words...)) == 0 {
			t.Errorf("no line of the log has %q", words)
		}
	}
}
