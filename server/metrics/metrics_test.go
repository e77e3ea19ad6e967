package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/metrics"
)

// clock moves by a second with every look.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) tick() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Second)
	return c.now
}

func newMetrics() *metrics.Metrics {
	m := metrics.New("v1", "abc", (&clock{}).tick)
	m.Sandboxes(
		func() map[lifecycle.State]int { return map[lifecycle.State]int{lifecycle.StateRunning: 3} })
	m.SpareNetworks(func() (free, taken, missed int) { return 2, 5, 1 })
	m.Webhooks(func() map[string]time.Duration { return map[string]time.Duration{"webhooks[0]": 90 * time.Second} })
	return m
}

// scrape returns the text that a scraper gets.
func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, "{")
			t.Errorf("no line %s among\n%s", line, strings.Join(with(text, name), "\n"))
		}
	}
}

func with(text, word string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, word) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func TestEveryMetricFollowsTheConventions(t *testing.T) {
	m := newMetrics()
	m.RequestEnded(serve.Exchange{Operation: "getSandbox", Status: 200})
	m.RequestEnded(serve.Exchange{Stream: true})
	m.StateChanged(lifecycle.StatePending, lifecycle.ReasonProvisioning)
	_, _ = m.Engine(brokenEngine{}).Info(t.Context())
	_ = m.Store(brokenStore{}).Forget(t.Context(), "")
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestRequests(t *testing.T) {
	m := newMetrics()
	for range 3 {
		m.RequestBegan()
	}
	m.StreamOpened()
	has(t, scrape(t, m), "sandbox_http_requests_in_flight 3", "sandbox_http_streams_open 1")
	m.RequestEnded(serve.Exchange{Operation: "getSandbox", Status: 200,
		Took: 20 * time.Millisecond})
	m.RequestEnded(serve.Exchange{Status: 404})
	m.RequestEnded(serve.Exchange{Operation: "watch", Status: 200, Took: time.Minute, Stream: true})
	for status := 600; status < 900; status++ { // what a program behind a proxy makes up
		m.RequestBegan()
		m.RequestEnded(serve.Exchange{Operation: "proxy", Status: status})
	}
	has(t, scrape(t, m),
		"sandbox_http_requests_in_flight 0", "sandbox_http_streams_open 0",
		`sandbox_http_requests_total{operation="getSandbox",status="200"} 1`,
		`sandbox_http_requests_total{operation="other",status="404"} 1`,
		`sandbox_http_requests_total{operation="proxy",status="other"} 300`,
		`sandbox_http_request_duration_seconds_bucket{operation="getSandbox",le="0.01"} 0`,
		`sandbox_http_request_duration_seconds_bucket{operation="getSandbox",le="0.025"} 1`,
		`sandbox_http_stream_duration_seconds_sum{operation="watch"} 60`,
		`sandbox_build_info{commit="abc",go_version="`+
			strings.TrimSuffix(strings.TrimPrefix(with(scrape(t, m), "go_info")[0],
				`go_info{version="`), `"} 1`)+`",version="v1"} 1`,
	)
	if found := with(scrape(t, m),
		`sandbox_http_request_duration_seconds_count{operation="watch"`); len(found) > 0 {
		t.Errorf("a stream counts as a request's duration: %s", found)
	}
}

func TestWebhooks(t *testing.T) {
	m := newMetrics()
	m.WebhookTried("webhooks[0]", true)
	m.WebhookTried("webhooks[0]", true)
	has(t, scrape(t, m),
		`sandbox_webhook_deliveries_total{result="delivered",webhook="webhooks[0]"} 2`,
		`sandbox_webhook_deliveries_total{result="failed",webhook="webhooks[0]"} 0`,
		`sandbox_webhook_oldest_undelivered_seconds{webhook="webhooks[0]"} 90`,
	)
}

func TestSandboxes(t *testing.T) {
	m := newMetrics()
	m.StateChanged(lifecycle.StateFailed, lifecycle.ReasonImagePullError)
	m.StageDone(lifecycle.StagePulled, 2*time.Second)
	m.Provisioned(3 * time.Second)
	m.Expired(4 * time.Millisecond)
	has(t, scrape(t, m),
		`sandbox_sandboxes{state="Running"} 3`, `sandbox_sandboxes{state="Paused"} 0`,
		`sandbox_state_changes_total{reason="IMAGE_PULL_ERROR",state="Failed"} 1`,
		`sandbox_provision_stage_duration_seconds_sum{stage="pulled"} 2`,
		`sandbox_provision_stage_duration_seconds_count{stage="ready"} 0`,
		`sandbox_provision_duration_seconds_sum 3`,
		`sandbox_expiry_lateness_seconds_bucket{le="0.005"} 1`,
		`sandbox_expiry_lateness_seconds_bucket{le="0.0025"} 0`,
		`sandbox_spare_networks 2`, `sandbox_spare_network_requests_total{result="taken"} 5`,
		`sandbox_spare_network_requests_total{result="missed"} 1`,
	)
}

func TestNetworkProblem(t *testing.T) {
	m := newMetrics()
	problem := ""
	m.NetworkProblem(func() string { return problem })
	has(t, scrape(t, m), `sandbox_network_problem 0`)
	problem = "a firewall drops what sandboxes send"
	has(t, scrape(t, m), `sandbox_network_problem 1`)
}

// brokenEngine fails as the test's call says.
type brokenEngine struct {
	engine.Engine
	pull func(progress func(string)) error
}

func (brokenEngine) Info(context.Context) (engine.Info, error) {
	return engine.Info{}, fmt.Errorf("%w: no answer", engine.ErrUnavailable)
}

func (brokenEngine) Inspect(context.Context, string) (engine.Container, error) {
	return engine.Container{}, engine.ErrNotFound
}

func (e brokenEngine) EnsureImage(_ context.Context, _ string, _ *engine.RegistryAuth,
	progress func(string)) (string, error) {
	return "", e.pull(progress)
}

type brokenStore struct{ host.Store }

func (brokenStore) Save(context.Context, lifecycle.Record, ...lifecycle.Event) error {
	return errors.New("disk full")
}
func (brokenStore) Forget(context.Context, string, ...lifecycle.Event) error { return nil }
func (brokenStore) Insert(context.Context, lifecycle.Record, *lifecycle.IdempotencyKey, ...lifecycle.Event) error {
	return fmt.Errorf("insert: %w", context.Canceled)
}

func TestEngineAndStore(t *testing.T) {
	m := newMetrics()
	_, _ = m.Engine(brokenEngine{}).Info(t.Context())
	_, _ = m.Engine(brokenEngine{}).Inspect(t.Context(), "x")
	if err := m.Store(brokenStore{}).Save(t.Context(), lifecycle.Record{}); err == nil {
		t.Error("the error of the store is lost")
	}
	_ = m.Store(brokenStore{}).Forget(t.Context(), "x")
	if err := m.Store(brokenStore{}).Insert(t.Context(), lifecycle.Record{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone: %v", err)
	}
	for _, reason := range []lifecycle.Reason{"drained 12:03:07 a", "drained 12:03:08 b", lifecycle.ReasonExpired} {
		m.StateChanged(lifecycle.StateStopping, reason)
	}
	has(t, scrape(t, m),
		`sandbox_engine_call_duration_seconds_sum{call="info"} 1`,
		`sandbox_engine_call_errors_total{call="info",kind="unavailable"} 1`,
		`sandbox_engine_call_errors_total{call="inspect",kind="not_found"} 1`,
		`sandbox_store_write_duration_seconds_count{write="save"} 1`,
		`sandbox_store_write_errors_total{write="save"} 1`,
		`sandbox_store_write_errors_total{write="forget"} 0`,
		`sandbox_store_write_errors_total{write="insert"} 0`,
		`sandbox_state_changes_total{reason="OTHER",state="Stopping"} 2`,
		`sandbox_state_changes_total{reason="EXPIRED",state="Stopping"} 1`,
	)
}

// TestPulls: callers who share a pull count as one, and those who give up leave it to the others.
func TestPulls(t *testing.T) {
	m := newMetrics()
	begin := func(ref string, auth *engine.RegistryAuth) (end func(error)) {
		results, begun, done := make(chan error), make(chan struct{}), make(chan struct{})
		shared := m.Engine(brokenEngine{pull: func(progress func(string)) error {
			progress("resolving")
			progress("half of it")
			close(begun)
			return <-results
		}})
		go func() {
			defer close(done)
			_, _ = shared.EnsureImage(t.Context(), ref, auth, nil)
		}()
		<-begun
		return func(err error) {
			results <- err
			<-done
		}
	}
	first, second, leaver := begin("a", nil), begin("a", nil), begin("a", nil)
	private := begin("a",
		&engine.RegistryAuth{Username: "registry-user", Password: "registry-password"})
	has(t, scrape(t, m), "sandbox_image_pulls_in_flight 2")
	leaver(fmt.Errorf("wait: %w", context.Canceled))
	has(t, scrape(t, m), "sandbox_image_pulls_in_flight 2",
		`sandbox_image_pulls_total{result="canceled"} 0`)
	first(nil)
	private(fmt.Errorf("%w: denied", engine.ErrImage))
	has(t, scrape(t, m), "sandbox_image_pulls_in_flight 0")
	again := begin("a", nil) // while one of the first pull's callers has not looked yet
	second(nil)
	has(t, scrape(t, m), "sandbox_image_pulls_in_flight 1")
	again(fmt.Errorf("wait: %w", context.Canceled))
	has(t, scrape(t, m), "sandbox_image_pulls_in_flight 0",
		`sandbox_image_pulls_total{result="success"} 1`,
		`sandbox_image_pulls_total{result="failure"} 1`,
		`sandbox_image_pulls_total{result="canceled"} 1`,
		"sandbox_image_pull_duration_seconds_count 1")

	// An engine that has the image pulls nothing.
	_, _ = m.Engine(brokenEngine{pull: func(func(string)) error { return nil }}).EnsureImage(
		t.Context(), "b", nil, nil)
	has(t, scrape(t, m), `sandbox_image_pulls_total{result="success"} 1`)
	if text := scrape(t, m); strings.Contains(text, "registry-user") ||
		strings.Contains(text, "registry-password") {
		t.Error("credentials are in the metrics")
	}
}
