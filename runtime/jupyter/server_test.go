package jupyter_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
	"sandbox.internal/runtime/kernel/kerneltest"
	"sandbox.internal/test/wait"
)

func TestServer(t *testing.T) {
	t.Parallel()
	server := startServer(t, 0, token)
	t.Run("suite", func(t *testing.T) {
		kerneltest.Run(t, kerneltest.Options{
			Open: func(t *testing.T) kernel.Host {
				host := server.host(t, zerolog.NewTestWriter(t))
				t.Cleanup(func() {
					if err := host.Close(); err != nil {
						t.Errorf("closing the host: %v", err)
					}
				})
				return host
			},
			Languages: []kerneltest.Language{kerneltest.Python()},
			ExitTime:  wait.Patience(),
		})
	})
	server.checkEmpty(t)
}

func TestServerCloseEndsKernels(t *testing.T) {
	server := startServer(t, 0, token)
	host := server.host(t, io.Discard)
	var kernels []kernel.Kernel
	for range 2 {
		k, err := host.Start(t.Context(), "python3", kernel.StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		kernels = append(kernels, k)
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		if _, err := k.Execute(t.Context(), "1", func(kernel.Output) {}); !errors.Is(err,
			kernel.ErrEnded) {
			t.Errorf("a kernel of a closed host: %v, want ErrEnded", err)
		}
	}
	server.checkEmpty(t)
	if _, err := host.Start(t.Context(), "python3", kernel.StartOptions{}); !errors.Is(err,
		kernel.ErrUnavailable) {
		t.Errorf("starting a kernel on a closed host: %v, want ErrUnavailable", err)
	}
}

func TestServerKernelsThatDoNotStart(t *testing.T) {
	server := startServer(t, 0, token)
	writeSpec(t, server.specs, "unlucky", `{"argv": ["sh", "-c",
		"mkdir {resource_dir}/once 2>/dev/null && exit 1; exec /usr/bin/python3 -m ipykernel_launcher -f {connection_file}"
	], "language": "python", "display_name": "Unlucky"}`)
	writeSpec(t, server.specs, "missing",
		`{"argv": ["no-such-program-anywhere"], "language": "python", "display_name": "Missing"}`)
	host := server.host(t, zerolog.NewTestWriter(t))
	k, err := host.Start(t.Context(), "unlucky", kernel.StartOptions{})
	if err != nil {
		t.Fatalf("a kernel that fails once: %v", err)
	}
	if got := run(t, k, "print(1)"); got != "1\n" {
		t.Errorf("got %q", got)
	}
	if _, err := host.Start(t.Context(), "missing", kernel.StartOptions{}); !errors.Is(err,
		kernel.ErrStart) {
		t.Errorf("a kernel without a program: %v, want ErrStart", err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	server.checkEmpty(t)
}

func TestServerCancelledStartLeavesNothing(t *testing.T) {
	server := startServer(t, 0, token)
	host := server.host(t, io.Discard)
	for _, after := range []time.Duration{time.Millisecond, 20 * time.Millisecond,
		100 * time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		if k, err := host.Start(ctx, "python3", kernel.StartOptions{}); err == nil {
			t.Logf("the kernel came within %v", after)
			_ = k.Stop(t.Context())
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a start of %v: %v", after, err)
		}
		cancel()
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	server.checkEmpty(t)
}

func TestServerToken(t *testing.T) {
	server := startServer(t, 0, token)
	for name, wrong := range map[string]string{"wrong": "wrong-token", "none": ""} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			host, err := jupyter.NewServer(jupyter.ServerOptions{URL: server.url, Token: wrong,
				Logger: zerolog.New(&log)})
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			_, specsErr := host.Specs(t.Context())
			_, startErr := host.Start(t.Context(), "python3", kernel.StartOptions{})
			for _, err := range []error{specsErr, startErr} {
				if !errors.Is(err, kernel.ErrUnavailable) ||
					!strings.Contains(err.Error(), "--jupyter-token") {
					t.Errorf(
						"the error is %v, want ErrUnavailable and a word about --jupyter-token",
						err)
				}
				if wrong != "" && strings.Contains(err.Error()+log.String(), wrong) {
					t.Errorf("the token shows: %v; log: %s", err, log.String())
				}
			}
		})
	}
}

func TestServerWithoutToken(t *testing.T) {
	server := startServer(t, 0, "")
	host := server.host(t, io.Discard)
	k, err := host.Start(t.Context(), "python3", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Execute(t.Context(), "1", func(kernel.Output) {}); err != nil {
		t.Error(err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}

func TestServerKilled(t *testing.T) {
	server := startServer(t, 0, token)
	var log bytes.Buffer
	host := server.host(t, &log)
	end := executeForever(t, host)

	server.kill(t)
	if err := await(t, end); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("the cell whose server was killed: %v, want ErrEnded", err)
	}
	if _, err := host.Start(t.Context(), "python3", kernel.StartOptions{}); !errors.Is(err,
		kernel.ErrUnavailable) {
		t.Errorf("starting a kernel without a server: %v, want ErrUnavailable", err)
	}
	if _, err := host.Specs(t.Context()); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("Specs without a server: %v, want ErrUnavailable", err)
	}

	startServer(t, server.port, token)
	k, err := host.Start(t.Context(), "python3", kernel.StartOptions{})
	if err != nil {
		t.Fatalf("starting a kernel on the server that is back: %v", err)
	}
	if _, err := k.Execute(t.Context(), "1", func(kernel.Output) {}); err != nil {
		t.Error(err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), token) {
		t.Errorf("the token is in the log: %s", log.String())
	}
}

func TestServerConnectionCut(t *testing.T) {
	server := startServer(t, 0, token)
	between := newCutter(t, server.url)
	host, err := jupyter.NewServer(jupyter.ServerOptions{URL: between.url, Token: token,
		Logger: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	end := executeForever(t, host)
	between.cut()
	if err := await(t, end); !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("the cell whose connection was cut: %v, want ErrEnded", err)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	server.checkEmpty(t)
}

// executeForever starts a kernel and an endless cell, and returns when that has begun. The channel
// gets Execute's error.
func executeForever(t *testing.T, host kernel.Host) <-chan error {
	t.Helper()
	k, err := host.Start(t.Context(), "python3", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		_, err := k.Execute(t.Context(),
			"import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)",
			func(o kernel.Output) {
				if o.Type == kernel.OutputStdout {
					begun <- struct{}{}
				}
			})
		end <- err
	}()
	wait.For(t, "the beginning of the cell", begun)
	return end
}

func await(t *testing.T, end <-chan error) error {
	t.Helper()
	return wait.For(t, "the end of Execute", end)
}

func TestNewServerRefuses(t *testing.T) {
	for name, test := range map[string]struct{ address, says string }{
		"no scheme":  {"127.0.0.1:8888", "URL"},
		"other":      {"ftp://127.0.0.1", "http://"},
		"no host":    {"http:///x", "http://"},
		"token":      {"http://127.0.0.1:8888/?token=secret", "--jupyter-token"},
		"user":       {"http://me:secret@127.0.0.1:8888", "--jupyter-token"},
		"empty":      {"", "http://"},
		"only colon": {":", "URL"},
		"bad port":   {"http://me:secret@127.0.0.1:x", "URL"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := jupyter.NewServer(jupyter.ServerOptions{URL: test.address})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("%v, want a word about %s", err, test.says)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

// BenchmarkServerCell measures a trivial cell in a kernel that is up.
func BenchmarkServerCell(b *testing.B) {
	server := startServer(b, 0, token)
	host := server.host(b, io.Discard)
	defer host.Close()
	k, err := host.Start(b.Context(), "python3", kernel.StartOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := k.Execute(b.Context(), "1+1", func(kernel.Output) {}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkServerStart measures a kernel's start and end.
func BenchmarkServerStart(b *testing.B) {
	server := startServer(b, 0, token)
	host := server.host(b, io.Discard)
	defer host.Close()
	for b.Loop() {
		k, err := host.Start(b.Context(), "python3", kernel.StartOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := k.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
