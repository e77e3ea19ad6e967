package app_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/server/keys"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settings are valid, with an engine that does not exist.
func settings(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default(func(string) string { return "" })
	cfg.Server.Host, cfg.Server.Port = "127.0.0.1", 0
	cfg.Server.DataDir = filepath.Join(t.TempDir(), "data")
	cfg.Runtime.Type, cfg.Runtime.ExecdImage = "docker", "execd"
	cfg.Environment.DockerHost = "unix://" + filepath.Join(t.TempDir(), "docker.sock")
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestEngineThatCannotBeOpened: what fails before there is an engine is an error, and nothing is
// closed that was not opened.
func TestEngineThatCannotBeOpened(t *testing.T) {
	t.Setenv("DOCKER_CERT_PATH", t.TempDir()) // without certificates
	_, err := app.New(t.Context(), settings(t), api.Version{}, zerolog.Nop())
	if err == nil || !strings.Contains(err.Error(), "docker host") {
		t.Errorf("the error is %v", err)
	}
}

func TestAddresses(t *testing.T) {
	const local, remote = "unix:///var/run/docker.sock", "tcp://engine.example.com:2375"
	tests := []struct {
		name                     string
		host, hostIP, dockerHost string
		publish, reach           string
	}{
		{"every address", "0.0.0.0", "", local, "", "127.0.0.1"},
		{"every IPv6 address", "::", "", local, "", "127.0.0.1"},
		{"loopback only", "127.0.0.1", "", local, "127.0.0.1", "127.0.0.1"},
		{"loopback by name", "localhost", "", local, "127.0.0.1", "127.0.0.1"},
		{"IPv6 loopback", "::1", "", local, "::1", "::1"},
		{"one address", "192.0.2.7", "", local, "192.0.2.7", "192.0.2.7"},
		{"a name", "sandbox.example.com", "", local, "", "127.0.0.1"},
		{"in a container", "0.0.0.0", "203.0.113.9", local, "", "203.0.113.9"},
		{"in a container, one address", "172.17.0.2", "203.0.113.9", local, "", "203.0.113.9"},
		{"remote engine", "0.0.0.0", "", remote, "", "engine.example.com"},
		{"remote engine, loopback only", "127.0.0.1", "", remote, "", "engine.example.com"},
		{"remote engine by IPv6", "0.0.0.0", "", "tcp://[2001:db8::7]:2375", "", "2001:db8::7"},
		{"remote engine, host_ip", "0.0.0.0", "203.0.113.9", remote, "", "engine.example.com"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Config{Runtime: config.Runtime{Type: config.RuntimeDocker}}
			cfg.Server.Host, cfg.Sandbox.HostIP, cfg.Environment.DockerHost = tt.host, tt.hostIP, tt.dockerHost
			if publish, reach := app.Addresses(cfg); publish != tt.publish || reach != tt.reach {
				t.Errorf("published on %q, reached at %q; want %q and %q", publish, reach, tt.publish, tt.reach)
			}
		})
	}
}

func TestSeccompProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "profile.json")
	if err := os.WriteFile(file, []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for setting, want := range map[string]string{"": "", "unconfined": "unconfined", file: `{"defaultAction":"SCMP_ACT_ALLOW"}`} {
		cfg := config.Config{Sandbox: config.Sandbox{SeccompProfile: setting}}
		if got, err := app.SeccompProfile(cfg); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", setting, got, err, want)
		}
	}
	cfg := config.Config{Sandbox: config.Sandbox{SeccompProfile: file + ".missing"}}
	if _, err := app.SeccompProfile(cfg); err == nil || !strings.Contains(err.Error(), "sandbox.seccomp_profile") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestRateLimitsOfKeys(t *testing.T) {
	digest := hex.EncodeToString(make([]byte, sha256.Size))
	cfg := config.Server{APIKey: "plain", RateLimit: config.RateLimits{RequestsPerSecond: 10, FailedAttemptsPerMinute: 30}, Keys: []config.Key{
		{Name: "usual", SHA256: digest},
		{Name: "own", SHA256: digest, RateLimit: &config.RateLimit{RequestsPerSecond: 5, Burst: 50}},
		{Name: "none", SHA256: digest, RateLimit: &config.RateLimit{}},
	}}
	keys, err := app.APIKeys(cfg)
	if err != nil {
		t.Fatal(err)
	}
	usual := serve.Rate{PerSecond: 10, Burst: 10}
	for i, want := range []serve.Rate{usual, usual, {PerSecond: 5, Burst: 50}, {}} {
		if keys[i].Rate != want {
			t.Errorf("%s: %+v, want %+v", keys[i].Name, keys[i].Rate, want)
		}
	}
	if got := app.Limits(cfg); got.Anonymous != usual || got.Refused != (serve.Rate{PerSecond: 0.5, Burst: 30}) {
		t.Errorf("%+v", got)
	}
	if got := app.Limits(config.Server{}); got.Anonymous != (serve.Rate{}) || got.Refused != (serve.Rate{}) {
		t.Errorf("off by default: %+v", got)
	}
}

// TestBoundsOfKeys: a key's own limits replace single ones of all keys.
func TestBoundsOfKeys(t *testing.T) {
	digest := hex.EncodeToString(make([]byte, sha256.Size))
	keys, err := app.APIKeys(config.Server{Limits: config.Limits{DefaultCPU: "1", MaxMemory: "1Gi"}, Keys: []config.Key{
		{Name: "usual", SHA256: digest}, {Name: "own", SHA256: digest, Limits: &config.Limits{MaxMemory: "2Gi", MaxTimeout: 60}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := keys[0].Bounds; got.Default["cpu"] != "1" || got.Max["memory"] != "1Gi" || got.Section != "server.limits" {
		t.Errorf("all: %+v", got)
	}
	if got := keys[1].Bounds; got.Default["cpu"] != "1" || got.Max["memory"] != "2Gi" || got.MaxTimeout != time.Minute {
		t.Errorf("the bounds of the key: %+v", got)
	}
	_, err = app.APIKeys(config.Server{Limits: config.Limits{DefaultCPU: "2", MaxCPU: "1"}})
	if err == nil || !strings.Contains(err.Error(), "server.limits.default_cpu") {
		t.Errorf("a default above the maximum: %v", err)
	}
}

func TestAPIKeys(t *testing.T) {
	digest := sha256.Sum256([]byte("alice's"))
	listed := config.Key{Name: "alice", SHA256: hex.EncodeToString(digest[:]), Role: config.RoleUser}
	if keys, err := app.APIKeys(config.Server{}); err != nil || len(keys) != 0 {
		t.Errorf("no keys: %v, %v", keys, err)
	}
	configured, err := app.APIKeys(config.Server{APIKey: "plain", Keys: []config.Key{listed}})
	if err != nil {
		t.Fatal(err)
	}
	want := []keys.Key{
		{Name: "server.api_key", Digest: sha256.Sum256([]byte("plain")), Role: lifecycle.RoleAdmin},
		{Name: "alice", Digest: digest, Role: lifecycle.RoleUser},
	}
	if !reflect.DeepEqual(configured, want) {
		t.Errorf("keys %+v, want %+v", configured, want)
	}
	for _, broken := range []string{"", "abc", strings.Repeat("z", 64), hex.EncodeToString(digest[:31]), hex.EncodeToString(digest[:]) + "00"} {
		if _, err := app.APIKeys(config.Server{Keys: []config.Key{{Name: "bob", SHA256: broken}}}); err == nil || !strings.Contains(err.Error(), "bob") {
			t.Errorf("digest %q: %v", broken, err)
		}
	}
}

func start(t *testing.T, cfg config.Config) error {
	t.Helper()
	service, err := app.New(t.Context(), cfg, api.Version{}, zerolog.Nop())
	if err == nil {
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		_ = service.Run(stopped)
	}
	return err
}

// released proves that a failed start let go of the directory of the records.
func released(t *testing.T, cfg config.Config) {
	t.Helper()
	records, err := store.Open(cfg.Server.DataDir, zerolog.Nop())
	if err != nil {
		t.Fatalf("the failed start still holds the store: %v", err)
	}
	if err := records.Close(); err != nil {
		t.Error(err)
	}
}

func TestDataDirInUse(t *testing.T) {
	cfg := settings(t)
	records, err := store.Open(cfg.Server.DataDir, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	err = start(t, cfg)
	if err == nil || !strings.Contains(err.Error(), cfg.Server.DataDir) || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("error: %v", err)
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	engine := newEngine(t)
	cfg := settings(t)
	cfg.Server.Port = taken.Addr().(*net.TCPAddr).Port
	cfg.Environment.DockerHost = engine.url
	err = start(t, cfg)
	if err == nil || !strings.Contains(err.Error(), "server.port") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error: %v", err)
	}
	if engine.asked() {
		t.Error("the engine was asked for something though the service cannot listen")
	}
	released(t, cfg)
}

func TestEngineThatDoesNotAnswer(t *testing.T) {
	cfg := settings(t)
	err := start(t, cfg)
	if err == nil || !strings.Contains(err.Error(), "container engine") || !strings.Contains(err.Error(), "docker.sock") {
		t.Errorf("error: %v", err)
	}
	released(t, cfg)
}

// TestAPITimeout: docker.api_timeout bounds the calls of an engine that accepts and never answers.
func TestAPITimeout(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	_ = silent.Listener.Close()
	silent.Listener = listener
	silent.Start()
	defer silent.Close()
	cfg := settings(t)
	cfg.Docker.APITimeout = 1
	cfg.Environment.DockerHost = "tcp://" + listener.Addr().String()
	t.Run("row lifecycle/configuration/docker.api_timeout: of an engine that does not answer", func(t *testing.T) {
		if err := start(t, cfg); err == nil || !strings.Contains(err.Error(), "no answer within 1s") {
			t.Errorf("error: %v", err)
		}
	})
	released(t, cfg)
}

func TestSeccompProfileThatIsGone(t *testing.T) {
	cfg := settings(t)
	cfg.Sandbox.SeccompProfile = filepath.Join(t.TempDir(), "gone.json")
	if err := start(t, cfg); err == nil || !strings.Contains(err.Error(), "sandbox.seccomp_profile") {
		t.Errorf("error: %v", err)
	}
	released(t, cfg)
}

func TestExecdImageThatCannotBeHad(t *testing.T) {
	engine := newEngine(t)
	cfg := settings(t)
	cfg.Environment.DockerHost = engine.url
	err := start(t, cfg)
	if err == nil || !strings.Contains(err.Error(), `runtime.execd_image "execd"`) {
		t.Errorf("error: %v", err)
	}
	released(t, cfg)
}

// emptyEngine answers like a Docker Engine that has nothing and can pull nothing.
type emptyEngine struct {
	url      string
	requests chan string
}

func newEngine(t *testing.T) *emptyEngine {
	t.Helper()
	e := &emptyEngine{requests: make(chan string, 1000)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.requests <- r.URL.Path
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
		case strings.HasSuffix(r.URL.Path, "/info"):
			_ = json.NewEncoder(w).Encode(map[string]any{"NCPU": 2, "MemTotal": 1 << 30, "ServerVersion": "20.10"})
		default:
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": "manifest unknown"})
		}
	}))
	t.Cleanup(server.Close)
	e.url = "tcp://" + server.Listener.Addr().String()
	return e
}

func (e *emptyEngine) asked() bool { return len(e.requests) > 0 }

// TestHostLoadOfTheLocalEngine: its directory is measured, also where no key names one.
func TestHostLoadOfTheLocalEngine(t *testing.T) {
	t.Parallel()
	cfg := settings(t)
	cfg.Runtime.Type = config.RuntimeLocal
	if _, err := app.HostLoad(cfg)(); err == nil || !strings.Contains(err.Error(), cfg.Server.DataDir) {
		t.Errorf("of a directory that does not exist: %v", err)
	}
	if err := os.MkdirAll(cfg.Local.Directory(cfg.Server), 0o700); err != nil {
		t.Fatal(err)
	}
	sampler, err := app.HostLoad(cfg)()
	if err != nil {
		t.Fatal(err)
	}
	if sample, err := sampler.Sample(); err != nil || sample.DiskTotalBytes == 0 {
		t.Errorf("%+v, %v", sample, err)
	}
}
