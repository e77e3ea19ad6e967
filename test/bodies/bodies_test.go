package bodies_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	execdproxy "sandbox.internal/execd/proxy"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/server/ingress"
	"sandbox.internal/server/proxy"
	"sandbox.internal/test/wait"
)

// net/http waits half a second before it closes a connection whose client may still send.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// route is how a client reaches the backend.
type route struct {
	address, host, path string
	headers             map[string]string
}

// routes are the ways to the backend.
var routes = map[string]func(*testing.T, *backend) route{
	"service": func(t *testing.T, b *backend) route { return startService(t, b.port(), nil) },
	"execd":   func(t *testing.T, b *backend) route { return startExecd(t, b.port()) },
	"ingress": func(t *testing.T, b *backend) route {
		return startIngress(t, fmt.Sprintf("[[routes]]\nsandbox = %q\naddress = %q\ntoken = \"t\"\n", box, startExecd(t, b.port()).address), b.port())
	},
	"service and execd": func(t *testing.T, b *backend) route {
		execd := startExecd(t, b.port())
		return startService(t, b.port(), &execd)
	},
}

// TestBodies makes random exchanges with every proxy, and with all of them one after the other.
// Each client gets the server's own answer and nothing else, and no byte of a body is taken for a
// request. SEED repeats a run of the test and RUNS sets the number of exchanges with each proxy.
func TestBodies(t *testing.T) {
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), strconv.FormatUint(rand.Uint64(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("RUNS"), "2500"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SEED=%d", seed)
	for name, start := range routes {
		t.Run(name, func(t *testing.T) {
			b := startBackend(t)
			r := start(t, b)
			var workers sync.WaitGroup
			const together = 8
			for worker := range together {
				workers.Go(func() {
					for i := worker; i < runs; i += together {
						x := draw(i+1, rand.New(rand.NewPCG(seed, uint64(i))))
						if err := x.run(r); err != nil {
							t.Errorf("SEED=%d, %v: %v", seed, x, err)
						}
					}
				})
			}
			workers.Wait()
			if strange := b.strange.Load(); strange > 0 {
				t.Errorf("the server got %d requests that were bodies", strange)
			}
		})
	}
}

// TestAnswerToALargeUpload: a client that sends all of its body before it reads gets the answer
// that the server gave before it had read any of it.
func TestAnswerToALargeUpload(t *testing.T) {
	for name, start := range routes {
		t.Run(name, func(t *testing.T) {
			r := start(t, startBackend(t))
			for i, body := range []string{"length", "chunked"} {
				x := &exchange{id: i + 1, status: 409, read: "0", answer: "before", framing: "length", body: body, size: 20 << 20, client: "deaf",
					random: rand.New(rand.NewPCG(1, 1))}
				if err := x.run(r); err != nil {
					t.Errorf("%v: %v", x, err)
				}
			}
		})
	}
}

const box = "0b9d0a3c-52d4-4a0f-8f0e-6a0c5e1b7a11"

// listenAt serves a handler as the programs do, and fails the test for any request that was a body.
func listenAt(t *testing.T, path string, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	watched := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path+"/case" {
			t.Errorf("a request for %s", r.URL.Path)
		}
		handler.ServeHTTP(w, r)
	})
	go func() { served <- listen.Serve(ctx, listener, watched, listen.Options{Logger: zerolog.Nop()}) }()
	t.Cleanup(func() {
		cancel()
		if err := wait.For(t, "the end of the server", served); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// layers puts a handler behind the layers that every service has.
func layers(t *testing.T, handler echo.HandlerFunc) http.Handler {
	t.Helper()
	server, err := serve.New(serve.Options{Rules: &rules.Contract{}, Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	server.HandleAll("reachPort", handler)
	return server
}

// startService forwards as the lifecycle service does, to the port or to an execd before it.
func startService(t *testing.T, port int, execd *route) route {
	t.Helper()
	p := proxy.New(zerolog.Nop())
	target := proxy.Target{Prefix: "/box", Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	if execd != nil {
		target.Address, target.Path = execd.address, execd.path
	}
	handler := layers(t, func(c echo.Context) error {
		listen.ForwardBody(c.Request())
		err := p.Forward(c.Response(), c.Request(), target)
		if errors.Is(err, proxy.ErrRequestBody) {
			return serve.Invalid("body: broke off")
		}
		return err
	})
	return route{address: listenAt(t, "/box", handler), host: "service", path: "/box"}
}

func startExecd(t *testing.T, port int) route {
	t.Helper()
	p := execdproxy.New(execdproxy.Options{
		SelfPorts: []int{44772}, TokenHeader: "X-EXECD-ACCESS-TOKEN", Logger: zerolog.Nop(),
		ErrorBody: func(w http.ResponseWriter, _ *http.Request, status int, code, message string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, "%s %s", code, message)
		},
	})
	path := fmt.Sprintf("/proxy/%d", port)
	handler := layers(t, func(c echo.Context) error {
		listen.ForwardBody(c.Request())
		p.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	return route{address: listenAt(t, path, handler), host: "execd", path: path}
}

func startIngress(t *testing.T, routes string, port int) route {
	t.Helper()
	file := filepath.Join(t.TempDir(), "routes.toml")
	if err := os.WriteFile(file, []byte(routes), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := ingress.DefaultSettings()
	settings.Listen, settings.Admin, settings.Mode, settings.Routes = "127.0.0.1:0", "", ingress.ModeURI, file
	settings.SigningKey = filepath.Join(t.TempDir(), "signing.key")
	if err := os.WriteFile(settings.SigningKey, []byte("the-signing-key-of-these-tests-0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	app, err := ingress.New(settings, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- app.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := wait.For(t, "the end of the service", stopped); err != nil {
			t.Error(err)
		}
	})
	return route{address: app.Addr(), host: "ingress", path: fmt.Sprintf("/%s/%d", box, port), headers: map[string]string{"X-EXECD-ACCESS-TOKEN": "t"}}
}
