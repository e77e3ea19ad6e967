package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend records its calls and returns the results that a test has set.
type backend struct {
	mu       sync.Mutex
	spec     lifecycle.Spec
	options  lifecycle.CreateOptions
	filter   lifecycle.Filter
	page     lifecycle.Page
	listing  lifecycle.Listing
	endpoint lifecycle.Endpoint
	renewed  time.Time
	box      *box // where execd is; nil where nothing is forwarded
	sandbox  lifecycle.Sandbox
	err      error

	patch      map[string]*string
	settled    lifecycle.Sandbox
	settleErr  error
	waited     []time.Duration
	selection  lifecycle.EventSelection
	batches    []lifecycle.EventBatch
	logOptions lifecycle.LogOptions
	log        string

	policy    lifecycle.NetworkPolicy
	change    lifecycle.PolicyChange
	decisions lifecycle.DecisionsRequest
}

var _ lifecycle.Backend = (*backend)(nil)

func (b *backend) Create(_ context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions) (lifecycle.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec, b.options = spec, options
	return b.sandbox, b.err
}

func (b *backend) Get(_ context.Context, id string) (lifecycle.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id != b.sandbox.ID {
		return lifecycle.Sandbox{}, lifecycle.NotFound(id)
	}
	return b.sandbox, nil
}

func (b *backend) List(_ context.Context, filter lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter, b.page = filter, page
	return b.listing, b.err
}

func (b *backend) Read(ctx context.Context, id string) (lifecycle.Sandbox, error) {
	return b.Get(ctx, id)
}

func (b *backend) Delete(context.Context, string) error { return b.err }
func (b *backend) Pause(context.Context, string) error  { return b.err }
func (b *backend) Resume(context.Context, string) error { return b.err }

func (b *backend) Renew(_ context.Context, _ string, expiresAt time.Time) (time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renewed = expiresAt
	return expiresAt.UTC(), b.err
}

func (b *backend) UpdateMetadata(_ context.Context, _ string, patch map[string]*string) (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.patch = patch
	return map[string]string{"name": "merged"}, b.err
}

func (b *backend) AwaitStable(_ context.Context, _ string, atMost time.Duration) (lifecycle.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waited = append(b.waited, atMost)
	return b.settled, b.settleErr
}

func (b *backend) Events(_ context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.selection = selection
	if b.err != nil {
		return nil, b.err
	}
	if b.batches == nil {
		return &feed{batches: []lifecycle.EventBatch{{Cursor: 1}}}, nil
	}
	return &feed{batches: b.batches}, nil
}

func (b *backend) Logs(_ context.Context, _ string, options lifecycle.LogOptions, open func() io.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.logOptions = options
	if b.err != nil {
		return b.err
	}
	_, err := io.WriteString(open(), b.log)
	return err
}

// feed hands out what it was made with.
type feed struct{ batches []lifecycle.EventBatch }

func (f *feed) Next(context.Context) (lifecycle.EventBatch, error) {
	if len(f.batches) == 0 {
		return lifecycle.EventBatch{}, io.EOF
	}
	batch := f.batches[0]
	f.batches = f.batches[1:]
	return batch, nil
}

func (f *feed) Close() {}

func (b *backend) NetworkPolicy(context.Context, string) (lifecycle.NetworkPolicy, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.policy, b.err
}

func (b *backend) ChangeNetworkPolicy(_ context.Context, _ string, change lifecycle.PolicyChange) (lifecycle.NetworkPolicy, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change = change
	return b.policy, b.err
}

func (b *backend) ProposeNetworkPolicy(ctx context.Context, id string) (lifecycle.NetworkPolicy, error) {
	return b.NetworkPolicy(ctx, id)
}

func (b *backend) NetworkDecisions(_ context.Context, _ string, request lifecycle.DecisionsRequest) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.decisions = request
	if b.err != nil {
		return nil, b.err
	}
	text := `{"items":[]}`
	if request.Follow {
		text = "id: 7\ndata: " + decisionOfTests + "\n\n"
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// decisionOfTests is a decision as a sidecar writes it.
const decisionOfTests = `{"kind":"name","target":"pypi.org","action":"allow","reason":"rule","rule":"pypi.org","count":3,"firstSeen":"2026-01-02T15:04:05Z","lastSeen":"2026-01-02T15:04:09Z"}`

func (b *backend) Locate(context.Context, string, int) (lifecycle.Location, error) {
	if b.box == nil {
		return lifecycle.Location{Endpoint: b.endpoint}, b.err
	}
	address, token := b.box.locate()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sandbox.Status.State == lifecycle.StatePaused && b.sandbox.Status.Reason == lifecycle.ReasonHibernated {
		return lifecycle.Location{Endpoint: lifecycle.Endpoint{Path: "/" + b.sandbox.ID + "/8000"}, Token: token, Stopped: lifecycle.Conflictf("it is on the disk")}, b.err
	}
	return lifecycle.Location{Endpoint: b.endpoint, Daemon: address, Token: token}, b.err
}

// contract is read only once: most of the time of these tests would go into it.
var contract = sync.OnceValues(document.LoadLifecycle)

var birth = time.Date(2026, 11, 21, 12, 0, 0, 123456789, time.UTC)

func newBackend() *backend {
	return &backend{
		sandbox: lifecycle.Sandbox{
			ID: "0f7a3c52-6d1e-4d3f-8c56-5a0b4d8f1e77", Image: "busybox", Entrypoint: []string{"sleep", "60"},
			CreatedAt: birth, ExpiresAt: birth.Add(time.Hour), Owner: "alice",
			Status: lifecycle.Status{State: lifecycle.StatePending, Reason: lifecycle.ReasonProvisioning, Message: "accepted", LastTransitionAt: birth},
		},
		endpoint: lifecycle.Endpoint{Port: 32768, Path: "/proxy/8000", Headers: map[string]string{"X-EXECD-ACCESS-TOKEN": "token"}},
	}
}

// service is the API over a backend, with a client that holds every answer to the contract.
type service struct {
	url    string
	http   *http.Client
	client *gen.ClientWithResponses
	log    *logBuffer
}

func serve(t testing.TB, b lifecycle.Backend, accepted ...keys.Key) *service {
	t.Helper()
	return serveWith(t, api.Options{Backend: b, Keys: keys.Fixed(accepted...)})
}

func serveWith(t testing.TB, options api.Options) *service {
	t.Helper()
	s := &service{log: &logBuffer{}}
	options.Version, options.Logger = api.Version{Version: "1.2.3", Commit: "abc"}, zerolog.New(s.log)
	handler, err := api.New(options)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	document, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	s.url = server.URL
	s.http = &http.Client{Transport: conform.New(document, server.Client().Transport, t), Timeout: wait.Patience()}
	if s.client, err = gen.NewClientWithResponses(server.URL, gen.WithHTTPClient(s.http)); err != nil {
		t.Fatal(err)
	}
	return s
}

func key(name, secret string, role lifecycle.Role) keys.Key {
	return keys.Key{Name: name, Digest: sha256.Sum256([]byte(secret)), Role: role}
}

func with(secret string) gen.RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		if secret != "" {
			r.Header.Set("SERVICE-API-KEY", secret)
		}
		return nil
	}
}

func createRequest() gen.CreateSandboxRequest {
	return gen.CreateSandboxRequest{Image: gen.Image{URI: "busybox"}, Timeout: 60, ResourceLimits: &gen.ResourceLimits{}, Entrypoint: []string{"sleep", "60"}}
}

// logBuffer keeps log lines. The access line may come after the answer.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *logBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

// accessLine waits for the line of that operation.
func (l *logBuffer) accessLine(t testing.TB, operation string) map[string]any {
	t.Helper()
	return l.lineOf(t, func(line map[string]any) bool { return line["operation"] == operation })
}

// lineOf waits for a line of the log that fits.
func (l *logBuffer) lineOf(t testing.TB, fits func(map[string]any) bool) map[string]any {
	t.Helper()
	var found map[string]any
	wait.Until(t, "the log has such a line", func() bool {
		decoder := json.NewDecoder(bytes.NewReader([]byte(l.text())))
		for line := map[string]any{}; decoder.Decode(&line) == nil; line = map[string]any{} {
			if fits(line) {
				found = line
				return true
			}
		}
		return false
	}, func() any { return l.text() })
	return found
}

func (b *backend) setState(state lifecycle.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sandbox.Status.State = state
}
