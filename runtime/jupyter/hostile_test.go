package jupyter_test

import (
	"errors"
	"io"
	"testing"

	"sandbox.internal/test/loopback"

	"sandbox.internal/runtime/jupyter"
	"sandbox.internal/runtime/kernel"
)

// A cell writes to the kernel's own sockets. It loses its kernel, and this process goes on.
func TestACellThatForgesAFrame(t *testing.T) {
	host := newDirect(t, jupyter.DirectOptions{})
	k := startPython(t, host)
	_, err := k.Execute(t.Context(), `
import os, stat, time
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, b"\x02" + (1 << 62).to_bytes(8, "big"))
    except OSError:
        pass
while True: time.sleep(1)`, func(kernel.Output) {})
	if !errors.Is(err, kernel.ErrEnded) {
		t.Errorf("the cell ended with %v", err)
	}
	if got := run(t, startPython(t, host), "print(6 * 7)"); got != "42\n" {
		t.Errorf("the next kernel: %q", got)
	}
}

// A message that is too long is lost, its cell says so, and the kernel keeps its variables.
func TestAMessageThatIsTooLong(t *testing.T) {
	for name, open := range map[string]func(*testing.T) kernel.Host{
		"direct": func(t *testing.T) kernel.Host { return newDirect(t, jupyter.DirectOptions{}) },
		"server": func(t *testing.T) kernel.Host {
			host := startServer(t, loopback.Port(t), "a token").host(t, io.Discard)
			t.Cleanup(func() {
				if err := host.Close(); err != nil {
					t.Error(err)
				}
			})
			return host
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := open(t).Start(t.Context(), "python3", kernel.StartOptions{})
			if err != nil {
				t.Fatal(err)
			}
			run(t, k, "x = 41")
			reply, err := k.Execute(t.Context(),
				"from IPython.display import display, HTML\ndisplay(HTML('x' * (80 << 20)))",
				func(kernel.Output) {})
			if err != nil || reply.Error == nil || reply.Error.Name != "OutputLost" {
				t.Fatalf("%+v, %v", reply.Error, err)
			}
			if got := run(t, k, "print(x + 1)"); got != "42\n" {
				t.Errorf("the next cell: %q", got)
			}
		})
	}
}
