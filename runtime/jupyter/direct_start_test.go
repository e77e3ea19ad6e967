package jupyter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
	"sandbox.internal/test/wait"
)

func TestDirectKernelOverTCP(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "kernel.py") // a name that does not say that it is ipykernel
	if err := os.WriteFile(script,
		[]byte("import runpy; runpy.run_module('ipy'+'kernel_launcher', run_name='__main__')"),
		0o600); err != nil {
		t.Fatal(err)
	}
	writeSpec(t, dir, "tcp",
		fmt.Sprintf(
			`{"argv": ["/usr/bin/python3", %q, "-f", "{connection_file}"], "language": "python", "interrupt_mode": "message"}`, script))
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir}})
	k, err := host.Start(t.Context(), "tcp", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(4)"); got != "4\n" {
		t.Errorf("got %q", got)
	}
	if err := k.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDirectTriesAgainWhenAPortWasTaken(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "unlucky", `{"argv": ["sh", "-c",
		"mkdir {resource_dir}/once 2>/dev/null && { echo 'Address already in use' >&2; exit 1; }; m=ipy; exec /usr/bin/python3 -m ${m}kernel_launcher -f {connection_file}"
	], "language": "python"}`)
	host := newDirect(t, jupyter.DirectOptions{SearchPath: []string{dir}})
	k, err := host.Start(t.Context(), "unlucky", kernel.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, k, "print(5)"); got != "5\n" {
		t.Errorf("got %q", got)
	}
}

func TestDirectStartFailures(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "exits",
		`{"argv": ["sh", "-c", "echo early; yes filler | head -n 5000; echo the reason >&2; exit 3"]}`)
	writeSpec(t, dir, "silent", `{"argv": ["sh", "-c", "echo still here; sleep 1000"]}`)
	writeSpec(t, dir, "missing", `{"argv": ["no-such-program-anywhere"]}`)
	host := newDirect(t,
		jupyter.DirectOptions{SearchPath: []string{dir}, StartTimeout: 5 * time.Second})
	for _, test := range []struct {
		spec  string
		is    error
		says  []string
		never string
	}{
		{"exits", kernel.ErrStart, []string{"exit status 3", "the reason"}, "early"},
		{"silent", kernel.ErrStart, []string{"no answer within 5s, in which it used ", "still here"}, ""},
		{"missing", kernel.ErrStart, []string{"no-such-program-anywhere"}, ""},
		{"unknown", kernel.ErrNoSpec, []string{`"unknown"`, "exits, missing, silent"}, ""},
	} {
		t.Run(test.spec, func(t *testing.T) {
			_, err := host.Start(t.Context(), test.spec, kernel.StartOptions{})
			if !errors.Is(err, test.is) {
				t.Fatalf("got %v", err)
			}
			for _, text := range test.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q is not in: %v", text, err)
				}
			}
			if test.never != "" && strings.Contains(err.Error(), test.never) {
				t.Errorf("%q is in: %v", test.never, err)
			}
		})
	}

	t.Run("directory", func(t *testing.T) {
		_, err := host.Start(t.Context(), "silent", kernel.StartOptions{Dir: "/no/such/directory"})
		if !errors.Is(err, kernel.ErrStart) || !strings.Contains(err.Error(), "/no/such/directory") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := host.Start(ctx, "silent", kernel.StartOptions{}); !errors.Is(err,
			kernel.ErrStart) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDirectCloseEndsStartsAndKernels(t *testing.T) {
	dir := t.TempDir()
	writeSpec(t, dir, "silent", `{"argv": ["sleep", "1000"]}`)
	host := newDirect(t,
		jupyter.DirectOptions{SearchPath: []string{dir, "/usr/share/jupyter/kernels"}})
	k := startPython(t, host)
	failed := make(chan error, 1)
	go func() {
		_, err := host.Start(t.Context(), "silent", kernel.StartOptions{})
		failed <- err
	}()
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the end of the kernel", k.Done())
	if err := wait.For(t, "the end of the start", failed); !errors.Is(err, kernel.ErrStart) && !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("the start under way: %v", err)
	}
	if _, err := host.Start(t.Context(), "python3", kernel.StartOptions{}); !errors.Is(err,
		kernel.ErrUnavailable) {
		t.Errorf("a start after the end: %v", err)
	}
}
